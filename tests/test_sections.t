#!/usr/bin/env perl
# The header reads from top to bottom: its sections have one banner each, in order, and private functions are used below
# their definition, but for a few declared ahead within reach of the op table.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my @line = split /\n/, slurp("$root/dtrain.h");
my (@banner, @defined, %ahead, $section);
for my $i (0 .. $#line) {
    if ($line[$i - 1] =~ m{^/\* ={60,}} && $line[$i] =~ /^ \* (H(\d+))  \S/) {
        push @banner, $2;
        $section = $1;
    }
    next unless $section;
    $ahead{$1} = $section if $line[$i] =~ /^static [^=({]*?\b(dt__\w+)\([^{}]*\);$/;
    push @defined, [$1, $section] if $line[$i] =~ /^static [^=({]*?\b(dt__\w+)\([^;]*$/;
}
is("@banner", join(' ', sort { $a <=> $b } @banner), 'the banners are in order: H' . join(' H', @banner));
my %once;
ok(!(grep { $once{$_}++ } @banner), 'each once');
my ($contents) = join("\n", @line[0 .. 60]) =~ /CONTENTS(.*?)THE ONE IDEA/s;
is(join(' ', sort { $a <=> $b } $contents =~ /\bH(\d+)/g), "@banner", 'the table of contents names the sections that there are');
my %at = map { @$_ } @defined;
my @far = sort grep { exists $at{$_} && $at{$_} ne $ahead{$_} } keys %ahead;
is("@far", 'dt__op_of', 'one function is declared ahead of its section: the op table');
# Ops, models and tokenizers take more lines than was first thought (15,000): a rise is a decision, not an accident.
cmp_ok(scalar @line, '<', 32600, 'the header keeps its budget: ' . @line . ' lines');
is((scalar grep { length > 120 } @line), 0, 'no line is longer than 120 columns');
done_testing();
