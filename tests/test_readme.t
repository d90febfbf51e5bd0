#!/usr/bin/env perl
# The commands of README.md do what they say: every ```sh block runs, as one script, in a fresh copy of the repository.
# Blocks that begin with ```sh notest are left out. The first ```c block with a main is main.c there, and book.txt is a
# text. DT_README_QUICK makes `./build.sh run` short and `./build.sh test` nothing.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $readme = slurp("$root/README.md");
plan skip_all => 'there is no README.md' unless $readme;
plan skip_all => 'the sanitized build tests programs, not words' if sanitized();

# The list of options is what --help prints, so that it follows the table in dtrain.h.
my ($help) = (run(60, trainer() . ' --help all'))[1] =~ /^(Recipe: data\n.*)/ms;
my ($list) = $readme =~ /^## Options\n.*?^```text\n(.*?)^```$/ms;
is($list, $help, 'the list of options in README.md is that of --help all: paste it there');

my $copy = "$tmp/copy";
mkdir $copy;
my @files = grep { -e "$root/$_" } qw(dtrain.h examples tests build.sh Makefile LICENSE README.md .ci .clang-format .editorconfig .gitignore);
is((run_in($root, 60, "cp -R @files '$copy'"))[0], 0, 'a fresh copy');
my ($main) = grep { /\bint main\(/ } $readme =~ /^```c\n(.*?)^```$/msg;
spew("$copy/main.c", $main) if $main;
spew("$copy/book.txt", slurp(corpus(200000)));

$ENV{DT_README_QUICK} = 1;
delete $ENV{$_} for qw(DT_TEST_BUILD DT_TEST_CFLAGS);

# What is printed, for a comparison: white space is one blank, a number with a unit of time, rate or share is #. `loosely`
# every number, hash, path and instruction set is one, and the pieces of a line of progress that may give way are left out.
sub shown {
    my ($text, $loosely) = @_;
    $text =~ s/^---- sample.*?^----$//msg;
    if ($loosely) {
        $text =~ s/^(step \S+  loss \S+)  .*/$1/mg;
        $text =~ s/^(data +)\S+:/$1#:/mg;
        $text =~ s/\b[0-9a-f]{64}\b|\b(?:avx512|avx2|neon|portable)(?= kernels)|-?\b\d+(?:\.\d+)?(?:e[+-]?\d+)?/#/g;
    }
    $text =~ s/[\d.]+(?= (?:s|ms|us|%|[MG]B|[MG]B\/s|GFLOP\/s|tokens\/s|samples\/s)\b)/#/g;
    return join ' ', split ' ', $text;
}

# Is every part of a ```text block, which lines of "..." separate, in what was printed?
sub prints {
    my ($text, $printed, $loosely) = @_;
    $printed = shown($printed, $loosely);
    my @missing = grep { index($printed, $_) < 0 } map { shown($_, $loosely) } split /^\.\.\.\n/m, $text;
    ok(!@missing, '  and prints what README.md shows') or diag(map({ "not printed: $_\n" } @missing), "printed: $printed");
}

my ($begin) = $readme =~ /^`\.\/build\.sh run` ends like this.*?^```text\n(.*?)^```$/ms;
my @blocks = $readme =~ /^```sh\n(.*?)^```$/msg;
ok(scalar @blocks, 'README.md has commands');
for my $block (@blocks) {
    my ($first) = split /\n/, $block;
    my ($status, $out, $err) = run_in($copy, 900, "set -e\n$block");
    is($status, 0, $first) or diag(substr($out, -2000), substr($err, -2000));
    prints($begin, $out, 1) if $first eq './build.sh run'; # a shorter run than that
    my ($between, $text) = $readme =~ /^```sh\n\Q$block\E```\n((?:(?!```|## )[^\n]*\n)*?)```text\n(.*?)^```$/ms or next;
    my ($with) = $between =~ /with `(DT_\w+=\S+)` in front/;
    ($status, $out, $err) = run_in($copy, 900, "export $with; $block") if $with;
    prints($text, "$out\n$err", $with);
}

done_testing();
