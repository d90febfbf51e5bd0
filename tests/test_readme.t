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
my ($help) = (run(60, trainer() . ' --help'))[1] =~ /^(Recipe\n.*)/ms;
my ($list) = $readme =~ /^## Options\n.*?^```text\n(.*?)^```$/ms;
is($list, $help, 'the list of options in README.md is that of --help: paste it there');

my $copy = "$tmp/copy";
mkdir $copy;
my @files = grep { -e "$root/$_" } qw(dtrain.h examples tests build.sh Makefile LICENSE README.md .ci .clang-format .editorconfig .gitignore);
is((run_in($root, 60, "cp -R @files '$copy'"))[0], 0, 'a fresh copy');
my ($main) = grep { /\bint main\(/ } $readme =~ /^```c\n(.*?)^```$/msg;
spew("$copy/main.c", $main) if $main;
spew("$copy/book.txt", slurp(corpus(200000)));

$ENV{DT_README_QUICK} = 1;
delete $ENV{$_} for qw(DT_TEST_BUILD DT_TEST_CFLAGS);
my @blocks = $readme =~ /^```sh\n(.*?)^```$/msg;
ok(scalar @blocks, 'README.md has commands');
for my $block (@blocks) {
    my ($first) = split /\n/, $block;
    my ($status, $out, $err) = run_in($copy, 900, "set -e\n$block");
    is($status, 0, $first) or diag(substr($out, -2000), substr($err, -2000));
}

done_testing();
