#!/usr/bin/env perl
# Words and sentences that a native reader stumbles over, found in the header, the pages, the examples and the labs. Each
# habit is a pattern and what to write instead; a row that finds something legitimate gets narrower, not longer lists of
# exceptions.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my @habits = (
    [qr/(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer\b|one\b|such\b|less\b|later\b)\w+/, '"is not a ..": the verb is denied, not the noun'],
    [qr/\bbehind (?!it\b|\b(?:a|the) (?:firewall|load balancer|slow link|feedback)\b)(?:(?:training|the work|forward|backward|them|other|others|those|each|one)\b)/, '"after", or "during" for what goes on at the same time'],
    [qr/\bfor want of\b/, '"because there is no .." or "without"'],
    [qr/\bhow manieth\b/, '"the index of"'],
    [qr/\bsuch a one\b|\bthere is none that\b|\bwhich is that of\b|\bas well as are\b|\bas it were\b/, 'a noun and a verb'],
    [qr/\bends never\b|\bcomes never\b/, '"never ends"'],
    [qr/\bfirst ones\b(?! on| before)/, 'name them: "initial weights"'],
    [qr/\bthere must be an? \w+ at least\b|\ba rank at least\b/, '"needs at least one .."'],
    [qr/\b(?:heads|heads) of the keys\b/, '"KV heads"'],
    [qr/\bno whole subtrees?\b|\bno family of\b/, '"not whole subtrees", "unknown family"'],
    [qr/\bruns? again to go on\b/, '"run the same command again to resume"'],
    [qr/\bmend the data\b/, '"fix the data"'],
    [qr/\bit is fp32\b/, '"needs fp32"'],
    [qr/\bthat were ever made\b|\bto be had\b/, 'say who makes or has it'],
);

my @files = ("$root/dtrain.h", "$root/README.md", glob "$root/examples/*.{md,c,h} $root/examples/tools/*.{c,h} $root/examples/staircase/*.{c,h} $root/examples/answers/*.md $root/examples/labs/*/*.{md,c,h} $root/notebooks-c/*.ipynb");
for my $habit (@habits) {
    my ($pattern, $instead) = @$habit;
    my @found;
    for my $file (@files) {
        my $text = slurp($file);
        $text =~ s/\n \* ?|\n */ /g unless $file =~ /ipynb$/; # a sentence may continue on the next line of a comment
        while ($text =~ /$pattern/g) {
            my $from = $-[0] > 40 ? $-[0] - 40 : 0;
            push @found, ($file =~ s{^\Q$root/}{}r) . ': ' . substr($text, $from, 90) =~ tr/\n/ /r;
        }
    }
    is(join("\n", @found), '', "$instead");
}

# The patterns can find what they look for.
my @bad = ('x is no tensor', 'a copy is written behind training', 'tile by tile, for want of a compiler', 'the how manieth', 'such a one', 'it ends never',
    'weights: first ones from x', 'there must be a tensor at least', '2 heads of the keys', 'groups are no whole subtrees', 'run again to go on', 'mend the data', 'it is fp32 (B)', 'is to be had');
is(scalar(grep { $bad[$_] =~ $habits[$_][0] } 0 .. $#habits), scalar @habits, 'each habit is recognized');
done_testing();
