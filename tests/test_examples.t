#!/usr/bin/env perl
# Every example compiles with the cc line of its header comment, and the commands that stand under it (lines that begin
# with ./, cc or DT_LINK_) run as they are written: status 0, and "ok" in the last line. What stands under "What it prints"
# is printed (numbers with ~ may differ), and so are the lines by which a program shows its concepts (concepts.txt). Lines
# that begin with mpicc run, too, where MPI is installed. The implementation is compiled once for each of the two and linked
# to all examples; with --full each compiles alone, as its readers do it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use File::Copy qw(copy);
use Test::More;

plan skip_all => 'examples are compiled as their readers do it, without sanitizers' if sanitized();

# The commands of the first comment of a program that begin with one of these, in order.
sub commands {
    my ($file, $begin) = @_;
    my ($comment) = slurp($file) =~ m{^/\*(.*?)\*/}s;
    my @lines = map { s/^\s*\*?\s*//r } split /\n/, $comment || '';
    return map { s/\s{2,}#?.*//r } grep { /^$begin/ } @lines;
}

mkdir "$tmp/tree";
mkdir "$tmp/tree/$_" for qw(examples build);
copy("$root/dtrain.h", "$tmp/tree/dtrain.h");
my %shows; # by program: [concept, a line that it prints]
for (grep { /^[^#]/ } split /\n/, slurp("$root/examples/concepts.txt")) {
    my ($concept, $program, $line) = split ' ', $_, 3;
    push @{$shows{$program}}, [$concept, $line];
}
copy("$root/examples/$_", "$tmp/tree/examples/") for qw(layers.h prose.h timetable.h);
my @examples = sort glob "$root/examples/[0-9]*.c";
for my $example (@examples) { copy($example, "$tmp/tree/examples/") }

my $cc = $ENV{CC} || 'cc';

# What makes an example skip its own implementation: one that this command has compiled; nothing with --full.
sub once {
    my ($compile, $name) = @_;
    return '' if full();
    spew("$tmp/tree/$name.c", "#define DTRAIN_IMPLEMENTATION\n#include \"dtrain.h\"\n");
    is((run_in("$tmp/tree", 300, "$compile -c $name.c"))[0], 0, "the implementation compiles: $compile");
    return " -DDTRAIN_IMPLEMENTED $tmp/tree/$name.o";
}

# Is every line that a program's comment shows printed, in this order? Blanks do not count.
sub prints {
    my ($file, $printed) = @_;
    my ($shown) = slurp($file) =~ m{^ \* What it prints[^\n]*\n(.*?)^ \*\n}ms or return;
    my @printed = map { join ' ', split } split /\n/, $printed;
    my @missing;
    for my $line (map { join ' ', split ' ', s/^ \*//r } split /\n/, $shown) {
        my $pattern = join '', map { /^~/ ? '[\d.e+]+\*?' : quotemeta } split /(~[\d.e+]*\d\*?)/, $line;
        my $at = 0;
        $at++ until $at == @printed || $printed[$at] =~ /^$pattern$/;
        if ($at < @printed) { splice @printed, 0, $at + 1 }
        else { push @missing, $line }
    }
    ok(!@missing, '  and prints what its comment shows') or diag(map({ "not printed: $_\n" } @missing), $printed);
}

# Runs commands until one fails; whether none did, and the last one's last line has "ok". $$all: what they printed.
sub works {
    my ($folder, $all, @commands) = @_;
    my ($status, $out, $err) = (0, '', '');
    for my $command (@commands) {
        ($status, $out, $err) = run_in($folder, 300, $command);
        $$all .= $out;
        diag("$command\nstatus $status\n$out\n$err") if $status;
        return 0 if $status;
    }
    my ($last) = reverse grep { /\S/ } split /\n/, $out;
    return 1 if ($last || '') =~ /\bok\b/;
    diag($out);
    return 0;
}

my $once = once("$cc -O2 -DDT_NCCL", 'implementation');
for my $example (@examples) {
    my ($name) = $example =~ m{([^/]+)$};
    my @commands = commands($example, qr{cc |\./|DT_LINK_});
    ok(@commands && $commands[0] =~ /^cc .*\Q$name\E/, "$name: its header comment says how to compile it") or next;
    my $folder = $commands[0] =~ m{examples/} ? "$tmp/tree" : "$tmp/tree/examples";
    my $all = '';
    ok(works($folder, \$all, map { s/^cc /$cc$once /r } @commands), "$name: runs and ends with ok");
    prints($example, $all);
    my $flat = join ' ', split ' ', $all;
    my @missing = grep { index($flat, $_->[1]) < 0 } @{delete $shows{$name =~ s/\.c$//r} || []};
    ok(!@missing, '  and shows its concepts') or diag(map { "$_->[0]: not printed: $_->[1]\n" } @missing);
    next if slurp("$example") =~ /int main\(void\)/ || !-x "$tmp/tree/examples/$name";
    is((run_in("$tmp/tree/examples", 20, "./$name --rank 2"))[0], 2, '  and refuses a mistyped option');
}

my $missing = mpi_missing();
my $mpi_once;
for my $example (@examples) {
    my ($name) = $example =~ m{([^/]+)$};
    my @commands = commands($example, 'mpicc ') or next;
    SKIP: {
        skip "$name under mpirun: $missing", 1 if $missing;
        $mpi_once = once('mpicc -O1 -DDT_MPI', 'implementation_mpi') unless defined $mpi_once;
        local @ENV{qw(OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM)} = (1, 1); # mpirun asks root for this
        ok(works("$tmp/tree/examples", \my $all, map { s/^mpicc /mpicc$mpi_once /r } @commands), "$name: runs under mpirun");
    }
}
is(join(' ', sort keys %shows), '', 'examples/concepts.txt names programs that exist');
ok(-e "$root/examples/README.md", 'examples/README.md') if @examples > 1;

done_testing();
