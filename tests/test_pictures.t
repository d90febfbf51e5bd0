#!/usr/bin/env perl
# The pictures of the course: examples/tools/draw.c draws the stored files again, byte by byte; a page shows each; they are
# XML with a title and a text in place of the picture; their numbers are those that the examples print; wrong input.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

plan skip_all => 'the usual build draws' if sanitized();

my $draw = linked_with('library', "$root/examples/tools/draw.c", "$tmp/draw", '-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror');
mkdir "$tmp/new";
my ($status, $out, $err) = run(60, "$draw -o new");
is("$status$out$err", '0', 'draws');
my @stored = map { s{.*/}{}r } glob "$root/examples/pictures/*";
is(join(' ', map { s{.*/}{}r } glob "$tmp/new/*"), "@stored", 'the stored pictures are those that it draws');
cmp_ok(scalar @stored, '>=', 12, '  ' . @stored . ' of them');
my %picture = map { s/\.svg$//r => slurp("$root/examples/pictures/$_") } @stored;
is(join(' ', grep { $picture{$_} ne slurp("$tmp/new/$_.svg") } sort keys %picture), '', '  byte by byte: draw them again (./build.sh draw -o examples/pictures)');

# ---- how they are made and shown ----

my @wrong;
for my $name (sort keys %picture) {
    my $text = $picture{$name};
    push @wrong, "$name: its size" unless $text =~ /^<svg [^>]*viewBox="0 0 480 \d+" width="560" role="img" aria-labelledby="title about">/;
    push @wrong, "$name: a text in place of it" unless $text =~ m{<title id="title">[^<]{4,}</title>\n<desc id="about">[^<]{40,}</desc>};
    push @wrong, "$name: light and dark" unless $text =~ /prefers-color-scheme: dark/ && $text =~ /max-width: 100%/;
    push @wrong, "$name: needs more than itself" if $text =~ m{<script|<image|href|\bon\w+=|url\((?!#)|http(?!://www\.w3\.org/2000/svg")};
    push @wrong, "$name: $1" if $text =~ /([^\n]*\b-?(?:nan|inf)\b[^\n]*)/;
    push @wrong, "$name: a colour of its own" if $text =~ s/<style>.*?<\/style>//sr =~ /#[0-9a-f]{3,}/;
    push @wrong, "$name: the text has no end" unless $text =~ m{[.\d]</desc>};
}
is(join("\n", @wrong), '', 'each has a size, texts, two colour schemes, and needs nothing else');
SKIP: {
    skip('no python3 to read XML', 1) unless have('python3');
    my @read = run(60, 'python3 -c "import sys, xml.etree.ElementTree as t; print(len([t.parse(f) for f in sys.argv[1:]]))" new/*.svg');
    is("$read[0]$read[1]", '0' . @stored . "\n", '  and is XML') or diag($read[2]);
}
my %page = map { $_ => slurp("$root/examples/$_") } qw(README.md parallel.md);
my %shown = map { $_ => 1 } join('', values %page) =~ m{^!\[[^\]]{10,}\]\(pictures/([\w-]+)\.svg\)$}mg;
is(join(' ', sort keys %shown), join(' ', sort keys %picture), 'a page shows each, with words');
is(join("\n", grep { (() = /^!\[/mg) > 2 } split /^(?=## )/m, $page{'README.md'}), '', '  at most two in a chapter');

# ---- the numbers of examples, which tests/test_examples.t compares with their output ----

sub about { return $picture{$_[0]} =~ m{<desc[^>]*>(.*?)</desc>}s ? $1 : '' }
sub prints { return slurp("$root/examples/$_[0].c") =~ m{^ \* What it prints[^\n]*\n(.*?)^ \*\n}ms ? $1 : '' }
my $schedules = prints('59_schedules');
for (['gpipe', 'GPipe'], ['1f1b', '1F1B'], ['interleaved', 'interleaved'], ['zero-bubble', 'zero-bubble']) {
    my ($name, $head) = @$_;
    my ($rows) = $schedules =~ /^ \*     $head\n((?: \*       stage .*\n)+)/m;
    my @stages = map { my ($stage, $cells) = /(stage \d) +(.*)/; "$stage: " . join(' ', $cells =~ /[FBWfbw]\d/g) =~ s/\b(\w\d)(?: \1)+/$1/gr } split /\n/, $rows // '';
    is(about($name), join('; ', @stages), "$name: the order of 59_schedules");
}

# "75.0 at 1, 60.0 at 2" of a line of a chart.
sub series { return {map { /(\S+) at (\d+)/ ? ($2 => $1) : () } split /,/, about($_[0]) =~ /\b$_[1], [^:]*:((?: [\d.]+ at \d+[,.])+)/ ? $1 : ''} }
my (%idle, $rows);
for ($schedules =~ /^ \*     m = +(\d+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+(?: +[\d.]+)?)/mg) {
    my ($m, $gpipe, undef, undef, $zero, $interleaved) = split;
    ($idle{a}{$m}, $idle{c}{$m}) = ($gpipe, $zero);
    $idle{b}{$m} = $interleaved if defined $interleaved;
}
cmp_ok(scalar keys %{$idle{a}}, '>=', 7, 'idle shares of 59_schedules');
is_deeply({map { $_ => series('bubble', $_) } qw(a b c)}, \%idle, '  are drawn');
my ($slow) = prints('61_scaling') =~ /^ \* +c( +[\d.]+%.*)$/m;
my $drawn = series('scaling', 'c');
is(join(' ', map { $drawn->{$_} } sort { $a <=> $b } keys %$drawn), join(' ', $slow =~ /[\d.]+/g), 'the curve of 61_scaling');
my ($seconds, $wasted) = prints('74_interval') =~ /^ \* +(\d+) +([\d.]+) %.*Young/m;
is(series('interval', 'a')->{$seconds}, sprintf('%.1f', $wasted), 'the lowest point of 74_interval');
my @pairs = prints('54_ring_attention_by_hand') =~ /\d\.\d\d  (\d+ \d+ \d+ \d+)$/mg;
is(join(' ', about('zigzag') =~ /pairs of the ranks ([\d ]+)/g), "@pairs", 'pairs of 54_ring_attention_by_hand');
my %chunks = prints('22_ring') =~ /rank (\d): ((?: +[01]{4})+)   sent/g;
my ($third) = about('ring') =~ /Round 3: ([\d ]+)/;
is(join(' ', map { (split / /, $third)[$_] } sort keys %chunks), join(' ', map { join '', map { tr/1// } split ' ', $chunks{$_} } sort keys %chunks), 'round 3 of 22_ring');
my %places = (pipe => 'pipeline', 'share a node' => 'inside a node', 'are on two nodes' => 'between nodes');
my @places = prints('69_rank_tables') =~ /(DPT|TPD), (\w+): .*? (share a node|are on two nodes)$/mg;
my @missing;
while (my ($order, $axis, $where) = splice @places, 0, 3) {
    my $name = $places{$axis} || $axis;
    push @missing, "$order, $axis" unless about('mesh') =~ /$order: [^.]*\b$name $places{$where}/;
}
is("@missing", '', 'the places of 69_rank_tables');

# ---- wrong input ----

mkdir "$tmp/two";
is((run(60, "$draw ring mesh -o two"))[0] . join(' ', map { s{.*/}{}r } glob "$tmp/two/*"), '0mesh.svg ring.svg', 'draws two of them');
for (['an unknown name', 'circle -o two', 2, qr/there is no picture 'circle'\. Choose from gpipe/], ['no folder', 'ring', 2, qr/^Usage/], ['help', '--help', 0, qr/^\z/], ['-o alone', 'ring -o', 2, qr/no picture '-o'/],
     ['an absent folder', 'ring -o none', 1, qr{cannot write none/ring\.svg\. Name a folder}]) {
    ($status, undef, $err) = run(60, "$draw $_->[1]");
    ok($status == $_->[2] && $err =~ $_->[3], "refused: $_->[0]") or diag("status $status\n$err");
}
done_testing();
