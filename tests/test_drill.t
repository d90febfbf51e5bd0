#!/usr/bin/env perl
# The exam drill: what its templates ask is what the planner answers (each question becomes cases for plan --check, wrong
# options those that must be otherwise); rows of the two files have what they need; scripted sessions, spaced repetition,
# cards, wrong input.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my ($drill, $plan, $tools) = ("$tmp/drill", "$tmp/plan", "$root/examples/tools");
my $cc = $ENV{CC} || 'cc';
my $checks = sanitizers_missing() ? '' : '-fsanitize=address,undefined -fno-sanitize-recover=all';
my ($status, $out, $err) = run(120, "$cc -std=gnu11 -O0 -g -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror $checks $tools/drill.c -o $drill -lm");
is($status, 0, 'compiles without a warning') or BAIL_OUT($err);
is((run(120, "$cc -O0 $tools/plan.c -o $plan -lm"))[0], 0, '  and the planner, which knows nothing of it');

# ---- questions ----

my %known = map { $_ => 1 } slurp("$root/examples/concepts.md") =~ /^\| ([0-9A-Z]+-\w+) \|/mg;
my (@rows, @wrong, %twice, %of);
for my $file (qw(scenarios templates)) {
    my @lines = grep { /\S/ && !/^#/ } split /\n/, slurp("$tools/$file.tsv");
    my @head = split /\t/, shift @lines;
    for (@lines) {
        my %row = (file => $file);
        @row{@head} = split /\t/, $_, -1;
        push @rows, \%row;
        my $name = "$file: $row{id}";
        push @wrong, "$name: twice" if $twice{$row{id}}++;
        push @wrong, "$name: the id has blanks" if $row{id} =~ /\s/;
        push @wrong, map { "$name: no concept $_" } grep { !$known{$_} } split ' ', $row{concepts};
        push @wrong, "$name: no program $row{program}" unless -e "$root/examples/$row{program}.c";
        push @wrong, map { "$name: no $_" } grep { !length $row{$_} && $_ ne 'options' } @head;
        push @wrong, "$name: four options, all different" if $file eq 'scenarios' && keys %{{map { lc $row{$_} => 1 } qw(a b c d)}} < 4;
        $of{$file}{$row{domain}}++;
    }
}
is(join("\n", @wrong), '', 'every row has concepts and a program that exist, and all of its cells');
cmp_ok(scalar(grep { $_->{file} eq 'scenarios' } @rows), '>=', 60, 'enough scenarios');
my ($domains) = slurp("$tools/drill.h") =~ /DRILL_DOMAINS "(.*?)"/;
is(join(' ', grep { ($of{scenarios}{$_} || 0) < 5 || ($of{templates}{$_} || 0) < 4 } split /\|/, $domains), '', '  in each domain, and templates as well');
($status, $out, $err) = run(60, "$drill --export $tmp/cards.tsv --seed 7");
my ($drawn) = $out =~ /^\d+ questions written by hand, (\d+) from/m;
is("$status$err", '0', '--export');
cmp_ok($drawn, '>=', 150, '  has enough drawn questions');
my @cards = split /\n/, slurp("$tmp/cards.tsv");
is(join(',', @cards[0, 1]), '#separator:tab,#html:true', '  begins as Anki reads it');
my @broken = grep { !/^#/ && (split(/\t/, $_, -1) != 3 || /<(?!br>)|&(?!lt;|gt;|amp;)/) } @cards;
is("@broken", '', '  has three fields in each line, and no HTML but breaks');
unlike(slurp("$tmp/cards.tsv"), qr/(?:right|wrong): W_\w+(?! (?:fires|does not fire))\b/, '  and a reason says whether a warning fires');
my %asked;
my @same = grep { $asked{$_}++ } map { s/<br>.*//r } @cards;
is("@same", '', '  all questions are different');
is(join("\n", grep { /\{\w+\}|\bnan\b|\binf\b/ } keys %asked), '', '  and their numbers are filled in');

# The planner agrees, over many seeds, and does not agree with another answer.
my $rounds = full() ? 40 : 4;
my (@cases, $failed);
for my $seed (1 .. $rounds) {
    ($status, $out, $err) = run(60, "$drill --cases --seed $seed");
    $failed .= $err if $status;
    my ($head, @lines) = split /\n/, $out;
    push @cases, @lines;
    spew("$tmp/cases.tsv", join "\n", $head, @lines, '');
    ($status, $out, $err) = run(60, "$plan --cases $tmp/cases.tsv --check");
    is((split /\n/, $out)[-1], @lines . ' of ' . @lines, "seed $seed: the planner agrees") or diag(substr $out, 0, 2000);
    is($err, '', '  and knows every fact');
    for my $times (1.33, 0.947) { # 20 bytes a parameter and 85 % of the memory; 95 %
        my @scaled = map { s/params_b=([\d.]+)/'params_b=' . $1 * $times/er } grep { (split /\t/, $_, 3)[2] =~ /(?:^|\t)[a-z][a-z\d+_]*\t/ } @lines;
        spew("$tmp/scaled.tsv", join "\n", $head, @scaled, '');
        ($status, $out) = run(60, "$plan --cases $tmp/scaled.tsv --check");
        is((split /\n/, $out)[-1], @scaled . ' of ' . @scaled, "  for a model counted $times times as large");
    }
    spew("$tmp/other.tsv", join "\n", $head, (map { s/\+(W_\w+)/!$1/r =~ s/=([\d.e+-]+)$/=99$1/r =~ s/\tyes\t/\tno\t/r } grep { /\t\+W_|=[\d.e+-]+$|\tyes\t/ } @lines), '');
    ($status, $out) = run(60, "$plan --cases $tmp/other.tsv --check");
    like($out, qr/^0 of [1-9]\d+\n\z/m, '  and not with another answer') or diag(substr $out, -500);
}
is($failed, undef, 'each template has one right answer');
my %templates = map { (split /\t/)[0] => 1 } @cases;
is(join(' ', grep { !$templates{$_} } map { $_->{id} } grep { $_->{file} eq 'templates' } @rows), '', '  and was asked');

# ---- sessions: a folder with two scenarios and a number ----

sub folder {
    my ($name, @scenarios) = @_;
    my %file = (scenarios => join("\n", slurp("$tools/scenarios.tsv") =~ /^(id\t.*)$/m, @scenarios, ''),
                templates => join("\n", (slurp("$tools/templates.tsv") =~ /^(id\t.*)$/m)[0], (slurp("$tools/templates.tsv") =~ /^(states\t.*)$/m)[0], ''));
    mkdir "$tmp/$name";
    spew("$tmp/$name/$_.tsv", $file{$_}) for keys %file;
    return "$drill --folder $tmp/$name/";
}
my @two = map { join "\t", @$_ } ['kinds', 'strategy', 'DP-1', '22_ring', 'Which one?', 'The rule.', 'The key.', 'Data parallel', 'Sharded data parallel', 'Tensor parallel', 'Pipeline parallel (1F1B)', 'a', 'w1', 'w2', 'w3', 'w4'],
    ['count', 'cost', 'DP-1', '22_ring', 'How many?', 'The rule.', '-', '13 nodes', '12 nodes', '1 node', '3 nodes', 'c', 'w1', 'w2', 'w3', 'w4'];
my $small = folder('small', @two);
($status, $out) = run(20, "$small --domain strategy --seed 3 </dev/null");
my ($letter) = $out =~ /^  (\w)\) Data parallel$/m;
for ([$letter, 1], [uc $letter, 1], ["$letter)", 1], [" $letter ", 1], [ord($letter) - ord('a') + 1, 1], [$letter eq 'a' ? 'b' : 'a', 0], ['', 0]) {
    my ($answer, $right) = @$_;
    spew("$tmp/input", "$answer\n");
    ($status, $out) = run(20, "$small --domain strategy --seed 3 <$tmp/input");
    ok($status == 0 && $out =~ ($right ? qr/^> Right\./m : qr/^> Not right\./m) && $out =~ /^$right of 1 right$/m, "'$answer' is " . ($right ? 'right' : 'wrong')) or diag($out);
}
spew("$tmp/input", "parallel\n5\n$letter\n");
($status, $out) = run(20, "$small --domain strategy --seed 3 <$tmp/input");
like($out, qr/(> Answer with a letter from a to d.*){2}Right\..*a\) .*Rule: The rule\..*The exam: The key\..*Shown by examples\/22_ring\.c \(DP-1\).*strategy +1 of 1/s, 'what is not a letter is asked again; reasons, rule, program, score by domain');
my ($question) = (run(20, "$small --domain memory --seed 11 </dev/null"))[1] =~ /^(A model .*?)\n  \(a/ms;
my ($billion, $bytes) = $question =~ /with ([\d.]+) billion.*with (AdamW|Adam|SGD)/s;
my $gb = $billion * ($bytes eq 'SGD' ? 12 : 16);
for (["$gb", 1], ["$gb GB", 1], [sprintf('%.1f', $gb) =~ tr{.}{,}r, 1], ['~' . $gb * 1.01, 1], [$gb * 1.05, 0], ['many', 0], [$gb / 8, 0]) {
    spew("$tmp/input", "$_->[0]\n");
    like((run(20, "$small --domain memory --seed 11 <$tmp/input"))[1], qr/^$_->[1] of 1 right$/m, "$gb: '$_->[0]' is " . ($_->[1] ? 'right' : 'wrong'));
}
for (['end of input', ''], ['q', "q\n"]) {
    spew("$tmp/input", "$_->[1]");
    ($status, $out) = run(20, "$small <$tmp/input");
    ok($status == 0 && $out =~ /ended after 0 of 3 questions\n\n0 of 0 right/, "$_->[0] ends it with the score") or diag($out);
}

# ---- what is known ----

my $state = "$tmp/state";
sub ask { spew("$tmp/input", join '', map { "$_\n" } @_[1 .. $#_]); return (run(20, "$small --state $state $_[0] <$tmp/input"))[1] }
my ($good) = ask('--domain strategy --seed 1') =~ /^  (\w)\) Data parallel$/m;
ask('--domain strategy --seed 1', $good);
is(slurp($state), "drill 1\nkinds 2 1\n", 'a right answer: the second box');
ask('--domain cost --seed 1', '');
is(slurp($state), "drill 2\nkinds 2 1\ncount 1 2\n", 'a wrong one: the first');
my @order = map { ask("--seed $_ --count 3") =~ /^1 of 3, (\w+)/m } 1 .. 6;
is(slurp($state), "drill 2\nkinds 2 1\ncount 1 2\n", 'sessions that nobody answers change nothing');
my %first = map { $_ => 1 } @order;
is(join(' ', sort keys %first), 'cost strategy', 'those that are due come first: both are, and no new one');
spew($state, "drill 2\nkinds 4 1\ncount 1 2\n");
is(join(' ', map { ask("--seed $_") =~ /^1 of 3, (\w+)/m } 1 .. 4), 'cost cost cost cost', 'box 4 waits, box 1 is due');
spew($state, "drill 2\nkinds 4 1\ncount 3 2\n");
is(join(' ', map { ask("--seed $_") =~ /^1 of 3, (\w+)/m } 1 .. 4), 'memory memory memory memory', 'nothing is due: a new question');
ask('--domain strategy --seed 1', $good);
is(slurp($state), "drill 3\nkinds 5 3\ncount 3 2\n", 'another right answer: the next box');
local $SIG{INT} = 'DEFAULT'; # else what is started in the background ignores it
my $pid = open(my $pipe, '|-', "exec $small --state $state >$tmp/out") or die; # a session that waits for its second answer
syswrite $pipe, "\n";
select undef, undef, undef, 0.1 until slurp("$tmp/out") =~ /^2 of 3.*> \z/ms || !kill 0, $pid;
kill 'INT', $pid;
waitpid $pid, 0;
like(slurp($state), qr/^drill 4\n(?=.* 1 4$)/ms, 'Ctrl-C: the answers before it are kept');
close $pipe;
for (['another file', "hello\n", qr/line 1: not an id/], ['a box', "drill 3\nkinds 9 1\n", qr/line 2: not an id, a box from 1 to 5/], ['half a line', "drill 3\nkinds 2 1\ncou", qr/line 3: not an id/]) {
    spew($state, $_->[1]);
    ($status, undef, $err) = run(20, "$small --state $state </dev/null");
    ok($status == 2 && $err =~ $_->[2] && slurp($state) eq $_->[1], "refused and kept: $_->[0]") or diag("$status $err");
}
spew($state, "drill 2147483647\ncount 1 2147483647\n");
is((run(20, "$small --state $state --count 1 <$tmp/input"))[0], 0, 'a session with a number that is too large');
symlink '/dev/null', "$tmp/device";
($status, $out, $err) = run(20, "$drill --export $tmp/device");
ok($status == 1 && $err =~ /cannot be written/ && $out eq '' && -l "$tmp/device", 'a device is not replaced') or diag("$status $out$err");
($status, undef, $err) = run(20, "$small --domain strategy --state $tmp/none/x <$tmp/input");
ok($status == 1 && $err =~ /cannot be written\. Name a file in a folder that exists/, 'a state in a folder that does not exist');

# ---- options and files that are wrong ----

mkdir "$tmp/heads";
spew("$tmp/heads/$_.tsv", (slurp("$tools/$_.tsv") =~ /^(id\t.*\n)/m)[0]) for qw(scenarios templates);
for (['an option', '--colour', qr/what is '--colour'/], ['a value', '--count', qr/--count needs a value/], ['a number', '--count ten', qr/--count 'ten' is not a whole number from 1/],
     ['half', '--seed 1.5', qr/--seed '1.5'/], ['a domain', '--domain magic', qr/no domain 'magic'\. Choose one of strategy/], ['a folder', "--folder $tmp/nowhere", qr{nowhere/scenarios\.tsv cannot be read}, 1],
     ['no question', "--folder $tmp/heads --domain cost", qr/there is no such question/, 1]) {
    ($status, undef, $err) = run(20, "$drill $_->[1] </dev/null");
    ok($status == ($_->[3] || 2) && $err =~ $_->[2], "refused: $_->[0]") or diag("$status $err");
}
for (['cells', "x\tcost", qr/line 2: not as many cells/], ['domain', $two[0] =~ s/strategy/magic/r, qr/line 2: no such domain/], ['right', $two[0] =~ s/\ta\tw1/\te\tw1/r, qr/line 2: the right option is a, b, c or d/]) {
    my $command = folder('wrong', $_->[1]);
    ($status, undef, $err) = run(20, "$command </dev/null");
    ok($status == 1 && $err =~ $_->[2], "refused: a row with a wrong $_->[0]") or diag("$status $err");
}
my $command = folder('wrong', @two);
my ($head, $template) = split /\n/, slurp("$tmp/wrong/templates.tsv");
for (['kind', $template =~ s/\tnumber\t/\tguess\t/r, qr/line 2: the planner has nothing of this kind and name/], ['number', $template =~ s/\tstates_gb\t/\tstates\t/r, qr/line 2: the planner has nothing/],
     ['option', $template =~ s/\tnumber\tstates_gb\t/\twarn\tW_NO_EFA\t/r . 'W_NO_EFA/W_NOTHING', qr/states: no question/]) {
    spew("$tmp/wrong/templates.tsv", "$head\n$_->[1]\n");
    ($status, $out, $err) = run(20, "$command --domain memory </dev/null");
    ok($status < 2 && "$out$err" =~ $_->[2], "a template with a wrong $_->[0] does no harm") or diag("$status $out $err");
}
like((run(20, "$drill --help"))[1], qr/--domain NAME.*--export FILE/s, '--help');

done_testing();
