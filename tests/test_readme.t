#!/usr/bin/env perl
# The commands of README.md and of the pages beside the examples and tests do what they say: every ```sh block runs, as one
# script, in a fresh copy of the repository, in the order of the pages. Blocks that begin with ```sh notest are left out.
# The first ```c block of README.md with a main is main.c there, and book.txt is a text. DT_README_QUICK makes
# `./build.sh run` short and `./build.sh test` nothing. Links lead to files and headings that exist, and the picture shows
# the hash that its program expects.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my @page = qw(README.md examples/parallel.md examples/running.md examples/reference.md examples/cheatsheet.md tests/README.md examples/README.md);
my %page = map { $_ => slurp("$root/$_") } @page;
my $readme = $page{'README.md'};
plan skip_all => 'the sanitized build tests programs, not words' if sanitized();
is(join(' ', grep { !$page{$_} } @page), '', 'the pages are there');
my @all = map { substr $_, length "$root/" } glob "$root/*.md $root/{examples,tests}/*.md";
is(join(' ', grep { !defined $page{$_} && slurp("$root/$_") =~ /^```sh$/m } @all), '', 'no other page has commands');
cmp_ok(($readme =~ tr/\n//), '<=', 240, 'README.md is short');
my $examples = () = glob "$root/examples/[0-9]*.c";
like($readme, qr/alone builds the $examples\sexamples/, '  and counts the examples');

# The list of options is what --help all prints, so that it follows the table in dtrain.h.
my ($help) = (run(60, trainer() . ' --help all'))[1] =~ /^(Recipe: data\n.*)/ms;
my ($list) = $page{'examples/reference.md'} =~ /^## Options\n.*?^```text\n(.*?)^```$/ms;
is($list, $help, 'the list of options in examples/reference.md is that of --help all: paste it there');

# Every link between pages leads somewhere: to a file, and to a heading if it names one.
sub anchors { return map { lc($_) =~ s/[^\w\- ]//gr =~ tr/ /-/r => 1 } slurp(shift) =~ /^#+ (.*)$/mg }
my (@broken, $links);
my @handouts = map { substr $_, length "$root/" } glob "$root/examples/concepts.md $root/examples/labs/README.md $root/examples/labs/*/README.md $root/notebooks-c/README.md";
for my $page (@page, @handouts) {
    my ($folder) = $page =~ m{^(.*/)};
    my $words = slurp("$root/$page") =~ s/^```.*?^```$//msgr;
    for my $link ($words =~ /\]\(([^)\s]+)\)/g) {
        next if $link =~ /^https?:/;
        my ($file, $heading) = $link =~ /^([^#]*)#?(.*)$/;
        my $place = $file ? "$root/" . ($folder || '') . $file : "$root/$page";
        my %anchor = $heading ? anchors($place) : ();
        push @broken, "$page: $link" if !-e $place || ($heading && !$anchor{$heading});
        $links++;
    }
}
is(join("\n", @broken), '', "$links links lead to files and headings that exist");

# The picture is that of a run, which the README's commands repeat.
my ($expected) = slurp("$root/examples/32_one_hash.c") =~ /EXPECTED "([0-9a-f]{64})"/;
my @drawn = slurp("$root/examples/one_hash.svg") =~ /class="hash middle">(\w+)</g;
is("@drawn", join(' ', (substr $expected, 0, 16) x 6), 'examples/one_hash.svg has the hash of 32_one_hash under six layouts');
like($readme, qr/\]\(examples\/one_hash\.svg\).*^cmp build\/one_hash\.svg examples\/one_hash\.svg$/ms, '  README.md shows it and draws it again');

my $copy = "$tmp/a copy"; # a name with a blank
mkdir $copy;
my @files = grep { -e "$root/$_" } qw(dtrain.h examples notebooks-c tests build.sh Makefile LICENSE README.md .ci .clang-format .editorconfig .gitignore);
is((run_in($root, 60, "cp -R @files '$copy'"))[0], 0, 'a fresh copy');
my ($main) = grep { /\bint main\(/ } $readme =~ /^```c\n(.*?)^```$/msg;
spew("$copy/main.c", $main) if $main;
spew("$copy/book.txt", slurp(corpus(full() ? 200000 : 50000)));

# Without --full a cc in front of the compiler saves compilations of the header, and an mpicc before Open MPI's. Programs are
# linked to the tests' implementations, and build.sh gets a copy of one. Examples that no page runs from its folder are empty
# files there: tests/test_examples.t compiles all.
if (!full()) {
    my ($cc, $mpicc) = map { (run(10, "command -v $_"))[1] =~ s/\s+$//r } $ENV{CC} || 'cc', 'mpicc';
    my ($object) = implementation('library') =~ /(\S+\.o)/;
    my ($engines) = $mpicc ? implementation('engines') =~ /(\S+\.o)/ : '';
    mkdir "$tmp/front";
    spew("$tmp/front/cc", <<"TEXT");
#!/bin/sh
case "\$*" in
*' build/dtrain.c -o build/dtrain.o -c '*) exec cp $object build/dtrain.o ;;
*' -o build/examples/06_train '* | *' examples/tools/'*' -o build/examples/'*) ;;
*' -o build/examples/'*) for file; do case \$file in build/examples/*) : >"\$file" && exec chmod 755 "\$file" ;; esac; done ;;
*' -c '* | *' -x '* | *DTRAIN_IMPLEMENTED* | *'.o '*) ;;
*'-lm -lpthread'*) exec $cc -DDTRAIN_IMPLEMENTED "\$@" $object -lm -lpthread -ldl ;;
esac
exec $cc "\$@"
TEXT
    spew("$tmp/front/mpicc", <<"TEXT") if $mpicc;
#!/bin/sh
case "\$*" in
*' -DDT_MPI -DDT_OFI main.c '*) exec $mpicc -DDTRAIN_IMPLEMENTED "\$@" $engines -lfabric -lm -lpthread -ldl ;;
esac
exec $mpicc "\$@"
TEXT
    chmod 0755, glob "$tmp/front/*";
    $ENV{PATH} = "$tmp/front:$ENV{PATH}";
    my $venv = 'build/notebooks/venv'; # with the packages that the notebooks' own test has installed
    run(60, "mkdir -p '$copy/build/notebooks' && cp -R $root/$venv '$copy/$venv'") if -d "$root/$venv";
}
$ENV{DT_README_QUICK} = 1;
delete $ENV{$_} for qw(DT_TEST_BUILD DT_TEST_CFLAGS);

# What is printed, for a comparison: white space is one blank, a number with a unit of time, rate or share is #. `loosely`
# every number, hash, path and instruction set is one, and the pieces of a line of progress that may give way are left out.
sub shown {
    my ($text, $loosely) = @_;
    $text =~ s/^---- sample.*?^----$//msg;
    if ($loosely) {
        $text =~ s/^(step \S+  loss \S+)  .*/$1/mg;
        $text =~ s/^(data +)[^:\n]+:/$1#:/mg;
        $text =~ s/\b[0-9a-f]{64}\b|\b(?:avx512|avx2|neon|portable)(?= kernels)|-?\b\d+(?:\.\d+)?(?:e[+-]?\d+)?/#/g;
    }
    $text =~ s/[\d.]+(?= (?:s|ms|us|%|[MG]B|[MG]B\/s|GFLOP\/s|tokens\/s|samples\/s)\b)/#/g;
    return join ' ', split ' ', $text;
}

# Is every part of a ```text block, which lines of "..." separate, in what was printed?
sub prints {
    my ($page, $text, $printed, $loosely) = @_;
    $printed = shown($printed, $loosely);
    my @missing = grep { index($printed, $_) < 0 } map { shown($_, $loosely) } split /^\.\.\.\n/m, $text;
    ok(!@missing, "  and prints what $page shows") or diag(map({ "not printed: $_\n" } @missing), "printed: $printed");
}

my ($begin) = $readme =~ /^`\.\/build\.sh run` ends like this.*?^```text\n(.*?)^```$/ms;
for my $page (@page) {
    my $text_of_page = $page{$page};
    my @blocks = $text_of_page =~ /^```sh\n(.*?)^```$/msg;
    ok(@blocks || $page eq 'tests/README.md', "$page has commands");
    my $folder = $page eq 'examples/README.md' ? "$copy/examples" : $copy; # the course is read in its folder
    for my $block (@blocks) {
        my ($first) = split /\n/, $block;
        my ($status, $out, $err) = run_in($folder, 900, "set -e\n$block");
        is($status, 0, $first) or diag(substr($out, -2000), substr($err, -2000));
        prints($page, $begin, $out, 1) if $first eq './build.sh run'; # a shorter run than that
        my ($between, $text) = $text_of_page =~ /^```sh\n\Q$block\E```\n((?:(?!```|## )[^\n]*\n)*?)```text\n(.*?)^```$/ms or next;
        my ($with) = $between =~ /with `(DT_\w+=\S+)` in front/;
        ($status, $out, $err) = run_in($folder, 900, "export $with; $block") if $with;
        prints($page, $text, "$out\n$err", $with);
    }
}

done_testing();
