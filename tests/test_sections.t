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
    if ($line[$i - 1] =~ m{^/\* ={16,}} && $line[$i] =~ /^ \* (H(\d+))  \S/) {
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
my ($contents) = join("\n", @line[0 .. 170]) =~ /CONTENTS(.*?)THE ONE IDEA/s;
is(join(' ', sort { $a <=> $b } $contents =~ /\bH(\d+)/g), "@banner", 'the table of contents names the sections that there are');
my %at = map { @$_ } @defined;
my ($walk) = slurp("$root/examples/reference.md") =~ /^## One training step\n(.*)/ms;
my @gone = grep { !exists $at{$_} } ($walk // '') =~ /\b(dt__\w+)/g;
ok($walk && !@gone, 'the walk through a step names functions that there are') or diag("@gone");
my @far = sort grep { exists $at{$_} && $at{$_} ne $ahead{$_} } keys %ahead;
is("@far", 'dt__nccl_await dt__nccl_close dt__op_of', 'three functions are declared ahead of their sections: the op table, and how a GPU waits for peers and leaves them');
# Tests are linked to one implementation, whose declarations are found as "dtrain.h" (build.sh).
is(join(' ', grep { slurp($_) =~ m{^#include "\.\./dtrain\.h"}m } glob "$root/tests/*.c"), '', 'no test includes ../dtrain.h');
# Rules of numerics are cited by number, and defined behind the glossary.
my ($rules) = join("\n", @line[0 .. 170]) =~ /RULES OF NUMERICS(.*?)\n \*\n/s;
my @rules = $rules =~ /^ \*     R(\d+)  /mg;
is("@rules", join(' ', 1 .. @rules), 'rules of numerics stand in the header, in order');
my %rule = map { $_ => 1 } @rules;
my $cites = join '', map { slurp($_) } "$root/dtrain.h", glob "$root/README.md $root/examples/*.{md,c,h} $root/tests/*.{c,h,t}";
is(join(' ', sort grep { !$rule{$_} } $cites =~ /(?<![\w"])R(\d\d?)\b(?=[^\w"\n]{0,3}[\s\w.])/g), '', 'each rule that is cited is there');
# What changes in a process and belongs to no handle: README names it. (dt__no_mesh and dt__no_memory stay zero.)
my @variable = map { /^\s*static (?!const|inline)(?:[^(=]*?)\b(\w+)(?:\[\w*\])?(?: = [^(]*)?;/ && !/\*const \w+\b/ ? $1 : () } @line;
is(join(' ', sort grep { !/^dt__no_/ } @variable), 'dt__gpu dt__graphs dt__mpi_trouble dt__stop_signal dt__thread', 'README names the variables that change');
# The goals are 24,600 lines, 1.20 MB and 170 public functions without the code for GPUs, and 26,500 lines, 1.29 MB with it.
# The code for GPUs is what DT_CUDA alone switches on. The header with it is 1.29 MB in the digits of its goal, and 2 kB more
# than 1,290,000 bytes: it must not grow.
my ($declared) = grep { $line[$_] =~ /^#define DTRAIN_IMPLEMENTED/ } 0 .. $#line;
my ($first) = grep { $line[$_] =~ /^#define DT_VERSION/ } 0 .. $#line;
my @public = map { /^DT_API [^(]*?\b(dt_\w+)\(/ ? $1 : () } @line[0 .. $declared];
my ($gpu, $inside) = ('');
for (@line) {
    if (!$inside) { $inside = 1 if /^#if(def DT_CUDA$| defined\(DT_CUDA\) && defined\(__ELF__\))/; next }
    $inside++ if /^#if/;
    $inside-- if /^#endif/ || ($inside == 1 && /^#else/);
    $gpu .= "$_\n" if $inside;
}
my ($plain, $bytes) = (@line - ($gpu =~ tr/\n//), (-s "$root/dtrain.h") - length $gpu);
cmp_ok($plain, '<=', 24_600, "the header keeps its budget: $plain lines, and " . ($gpu =~ tr/\n//) . ' of code for GPUs');
cmp_ok($bytes, '<=', 1_208_000, "  of $bytes bytes, and " . length($gpu));
cmp_ok(length $gpu, '>', 40_000, '  which has been found');
cmp_ok(scalar @line, '<=', 26_500, '  ' . @line . ' lines in all');
cmp_ok(-s "$root/dtrain.h", '<=', 1_292_100, '  of ' . (-s "$root/dtrain.h") . ' bytes');
cmp_ok(scalar @public, '<=', 158, '  with ' . @public . ' public functions');
cmp_ok($declared - $first, '<=', 1150, '  declared in ' . ($declared - $first) . ' lines with their documentation');
my $used = join '', map { slurp($_) } "$root/README.md", glob "$root/examples/{reference,running,parallel}.md $root/examples/*.[ch] $root/examples/tools/*.[ch]";
is(join(' ', grep { $used !~ /\b$_\b/ } @public), '', 'each public function is used by an example or named in the README or a page beside the examples');
# Companion headers of the examples are what any program may write: they use no private name.
is(join(' ', map { slurp("$root/examples/$_.h") =~ /\b((?:dt|DT)__\w+)/g } qw(rules doctor timeline trial dry_run advice)), '', 'companion headers use public names alone');
# A user's environment variables are the rows of the reference's table; tests' are named below it.
my ($table) = slurp("$root/examples/reference.md") =~ /^\| environment \| effect \|\n(.*?)\n\n/ms;
my @user = $table =~ /^\| `(DT_\w+)`/mg;
cmp_ok(scalar(grep { $_ ne 'DT_SANITIZE' } @user), '<=', 12, 'at most twelve variables are for users: ' . join(' ', @user));
# Numbers with fractions are printed and parsed by the functions of H1 that do so in the C locale.
my ($implementation) = slurp("$root/dtrain.h") =~ /^#define DTRAIN_IMPLEMENTED(.*)/ms;
my @local;
while ($implementation =~ /\b(v?[sfd]?n?printf|sn?printf|strto(?:d|f|ld)|atof|f?scanf|sscanf)(\((?:[^()"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?2))*\))/g) {
    my ($call, $arguments) = ($1, $2);
    my $format = join('', $arguments =~ /"((?:[^"\\]|\\.)*)"/g) =~ s/%%//gr;
    push @local, "$call$arguments" if $call =~ /^(strto|atof)/ || $format =~ /%[-+ #0-9.*l]*[aefgAEFG]/;
}
is(join(' ', @local), 'strtof(text, end) strtod(text, end)', 'numbers with fractions do not depend on the locale');
is((scalar grep { length > 120 } @line), 0, 'no line is longer than 120 columns');
my ($parts) = slurp("$root/dtrain.h") =~ /dt__cuda_parts\[\] =\n(.*?)";\n/s;
my $rest = slurp("$root/dtrain.h") =~ s/\Q$parts\E//r;
my @names = map { split /[ >]+/ } $parts =~ /"([^"]*)(?:"|\z)/g;
my @missing = grep { $rest !~ /^(?=[sDte#]).*\Q$_\E/m } @names;
ok(@names > 80 && !@missing, 'each part of the text that a GPU gets begins and ends there') or diag(join "\n", @missing);
done_testing();
