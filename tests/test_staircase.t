#!/usr/bin/env perl
# The staircase (examples/staircase): each step changes at most 40 lines of the step before, compiles with the cc line of its
# comment, runs as the comment says, prints what the comment shows, and ends with the hash of all steps, which staircase.h
# expects. Its question has an answer. `./build.sh staircase` lists the steps and shows the changes. The programs are
# linked to the tests' implementation; with --full each compiles its own.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use File::Copy qw(copy);
use Test::More;

plan skip_all => 'the steps are compiled as their readers do it, without sanitizers' if sanitized();

my @steps = glob "$root/examples/staircase/[0-9]_*.c";
is(scalar @steps, 9, 'nine steps');
my $folder = "$tmp/tree/examples/staircase";
system("mkdir -p $folder") and die 'mkdir';
copy("$root/dtrain.h", "$tmp/tree/");
copy($_, $folder) for @steps, "$root/examples/staircase/staircase.h";

my ($object) = full() ? () : implementation('library') =~ /(\S+\.o)/;
my $cc = ($ENV{CC} || 'cc') . (full() ? '' : " -DDTRAIN_IMPLEMENTED $object");
my ($hash) = slurp("$folder/staircase.h") =~ /^#define EXPECTED 0x([0-9a-f]{16})ull/m or die 'no hash';
my (@sentences, @asked);
for my $step (0 .. $#steps) {
    my ($name) = $steps[$step] =~ m{/(\w+)\.c$};
    my ($sentence, $commands, $shown, $question) = slurp($steps[$step]) =~ m{^/\*[ ]\Q$name\E:[ ](.*?)\n.*?
        ^[ ]\*[ ]Build[ ]and[ ]run[ ]it,[ ]in[ ]this[ ]folder\n(.*?)^[ ]\*\n
        ^[ ]\*[ ]What[ ]it[ ]prints\n(.*?)^[ ]\*\n
        ^[ ]\*[ ]Predict[ ]first:[ ]([^?]*\?.*?)[ ]\*/\n}xms;
    ok($commands, "$name: its comment has all parts") or next;
    push @sentences, $sentence;
    push @asked, "$name.c: " . join ' ', split ' ', $question =~ s/^ \*//mgr;
    my ($compile, @runs) = map { s/^ \*\s+|\s{2,}\(.*$//gr } split /\n/, $commands;
    my ($status, undef, $err) = run_in($folder, 300, ($compile =~ s/^cc/$cc/r) . ' -O1 -Wall -Wextra -Werror -ldl');
    is($status, 0, '  and compiles') or diag($err), next;
    my $printed = '';
    for my $run (@runs) {
        my $dies = $run =~ / state \d+$/;
        ($status, my $out, $err) = run_in($folder, 60, $run);
        $printed .= $out;
        ok($dies ? $status && $out eq '' : !$status && $out =~ /^hash $hash\nok:/m, "  $run: " . ($dies ? 'dies' : 'ok')) or diag("status $status\n$out$err");
    }
    my @missing = grep { index($printed, "$_\n") < 0 } map { s/^ \*\s+//r } split /\n/, $shown;
    is(join("\n", @missing), '', '  and prints what its comment shows') or diag($printed);
    next unless $step;
    is((run_in($folder, 60, "./$name --ranks 3"))[0], 2, '  and refuses three ranks');
    my ($listed, $diff) = run_in($root, 60, "./build.sh staircase $step");
    is($listed, 0, "./build.sh staircase $step");
    my ($before) = $steps[$step - 1] =~ m{([^/]+)$};
    my (undef, $changes) = split /^--- \Q$before\E\n\+\+\+ \Q$name\E\.c\n/m, $diff;
    my ($plus, $minus) = map { scalar(() = ($changes || '') =~ /^\Q$_\E/mg) } '+', '-';
    ok($plus && $plus <= 40 && $minus <= 40, "  shows at most 40 new lines and 40 old ones ($plus and $minus)");
}
my $page = slurp("$root/examples/answers/staircase.md");
my @answered = $page =~ m{^## \[(\w+\.c)\]\(\.\./staircase/\1\)\n\n\*\*Predict first:\*\* (.*?)\n\n<details><summary>Answer</summary>\n\n\S.*?\n\n</details>$}msg;
my @pairs = map { "$answered[2 * $_]: $answered[2 * $_ + 1]" } 0 .. $#answered / 2;
is(join("\n", @pairs), join("\n", @asked), 'examples/answers/staircase.md answers what the steps ask');
my ($status, $list) = run_in($root, 60, './build.sh staircase');
is(join("\n", grep { index($list, $_) < 0 } @sentences), '', './build.sh staircase lists the steps');
my ($none, $told, $said) = run_in($root, 20, 'CC=nope ./build.sh lab 1');
ok($none == 1 && $told eq '' && $said =~ /^build\.sh: no C compiler 'nope': .* unset CC$/, 'a compiler that is not there') or diag($told . $said);
for ('staircase 9', 'staircase --help', 'exercise', 'lab x0') { # a word is not a pattern of names
    my ($refused, undef, $why) = run_in($root, 60, "./build.sh $_");
    ok($refused == 2 && $why =~ /^build\.sh: no /m, "./build.sh $_: there is none") or diag($why);
}
done_testing();
