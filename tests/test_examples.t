#!/usr/bin/env perl
# Every example compiles with the cc line of its header comment, and the commands that stand under it (lines that begin
# with ./ or cc) run as they are written: status 0, and "ok" in the last line. The implementation is compiled once and
# linked to all of them; with --full each example compiles alone, as its readers do it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use File::Copy qw(copy);
use Test::More;

plan skip_all => 'examples are compiled as their readers do it, without sanitizers' if sanitized();

# The commands of the first comment of a program, in order.
sub commands {
    my ($comment) = slurp(shift) =~ m{^/\*(.*?)\*/}s;
    my @lines = map { s/^\s*\*?\s*//r } split /\n/, $comment || '';
    return map { s/\s{2,}#?.*//r } grep { m{^(cc|\./)} } @lines;
}

mkdir "$tmp/tree";
mkdir "$tmp/tree/$_" for qw(examples build);
copy("$root/dtrain.h", "$tmp/tree/dtrain.h");
my @examples = sort glob "$root/examples/[0-9]*.c";
for my $example (@examples) { copy($example, "$tmp/tree/examples/") }

my $cc = $ENV{CC} || 'cc';
my $once = '';
if (!full()) {
    spew("$tmp/tree/implementation.c", "#define DTRAIN_IMPLEMENTATION\n#include \"dtrain.h\"\n");
    is((run_in("$tmp/tree", 300, "$cc -O2 -DDT_NCCL -c implementation.c"))[0], 0, 'the implementation compiles');
    $once = " -DDTRAIN_IMPLEMENTED $tmp/tree/implementation.o"; # the examples' own is skipped
}
for my $example (@examples) {
    my ($name) = $example =~ m{([^/]+)$};
    my @commands = commands($example);
    ok(@commands && $commands[0] =~ /^cc .*\Q$name\E/, "$name: its header comment says how to compile it") or next;
    my $folder = $commands[0] =~ m{examples/} ? "$tmp/tree" : "$tmp/tree/examples";
    my ($status, $out, $err) = (0, '', '');
    for my $command (@commands) {
        last if $status;
        ($status, $out, $err) = run_in($folder, 300, $command =~ s/^cc /$cc$once /r);
        diag("$command\nstatus $status\n$err") if $status;
    }
    my ($last) = reverse grep { /\S/ } split /\n/, $out;
    ok(!$status && ($last || '') =~ /\bok\b/, "$name: runs and ends with ok") or diag($out);
}
ok(-e "$root/examples/README.md", 'examples/README.md') if @examples > 1;

done_testing();
