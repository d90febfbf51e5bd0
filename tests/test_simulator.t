#!/usr/bin/env perl
# The simulator: times that are known (one rank, a pipeline of equal stages on links that cost nothing), bytes that real runs
# count, orders (a slower link, a slower rank), symmetry against all ranks, 16384 ranks, the search, traces, wrong input.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $simulate = "$tmp/simulate";
my ($status, $out, $err) = run(300, ($ENV{CC} || 'cc') . " -std=gnu11 -O0 -DDT_DEBUG -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -I$root $root/examples/tools/simulate.c -o $simulate -lm -lpthread -ldl");
is($status, 0, 'compiles without a warning') or BAIL_OUT($err);

sub simulated {
    ($status, $out, $err) = run(60, "$simulate @_ --json");
    require JSON::PP;
    return eval { JSON::PP->new->decode($out) } || do { diag("@_: $out$err"); {} };
}
sub machine { # a calibration with these lines in place of its own
    my ($name, %line) = @_;
    my %all = (segment => '1 0 0', ADD => '0 0 0', update => '0 0 0', fold => '0 0 0', step => '0 0 0', near => '0 0 0 0', far => '0 0 0 0', busy => 1, serial => 1, peak => 1e9, %line);
    spew("$tmp/$name", join '', map { "$_ $all{$_}\n" } sort keys %all);
    return "--calibration $tmp/$name";
}

# ---- known times: a segment's forward or backward takes a second ----

my $unit = machine('unit');
my $equal = '--layers 6 --heads 4 --width 32 --sequence 16 --vocabulary 400 --memory-weight 1 --data-shards 1 --micro-batch 1';
my $one = simulated("$unit $equal --batch 8");
is($one->{step_s}, 8 * 8 * 2, 'one rank: the sum of its work');
is($one->{exposed_s} + $one->{idle_s}, 0, '  and nothing else');
for my $m (4, 12) {
    for my $kind (qw(gpipe 1f1b)) {
        my $s = simulated("$unit $equal --batch $m --per-node 4 --pp 4 --pipeline $kind");
        is(sprintf('%.9f', $s->{idle_s} / $s->{step_s}), sprintf('%.9f', 3 / ($m + 3)), "the bubble of $kind, 4 stages, $m micro-batches");
    }
}
is(simulated("$unit $equal --batch 1 --recompute full")->{step_s}, 8 * 3 - 1, 'recompute: each forward but the last once more');

# ---- bytes: simulated ones are those that a run counts, exactly ----

seeded();
my @runs = map { my ($ranks, $nodes, $options) = @$_; { ranks => $ranks, nodes => $nodes, options => $options } } (
    [2, 1, '--model nano'], [3, 1, '--model nano --zero 1'], [4, 1, '--model nano --zero 2'], [4, 1, '--model nano --zero 3'], [4, 4, '--model nano'], [3, 3, '--model nano'],
    [4, 2, '--model nano'], [4, 2, '--model nano --zero 1'], [6, 3, '--model nano --zero 2'], [4, 2, '--model nano --zero 3'], [4, 1, '--model llama-nano --zero 1 --zero-group 2'],
    [4, 2, '--model llama-nano --zero 3 --zero-group 2'], [4, 1, '--model nano --tp 2 --tensor-shards 2'], [4, 2, '--model nano --tp 2 --tensor-shards 2 --sequence-parallel'],
    [2, 2, '--model nano --tp 2 --tensor-shards 2'], [4, 2, '--model nano --order spread --tp 2 --tensor-shards 2 --zero 1'], [4, 1, '--model nano --cp 2 --context-shards 2'],
    [2, 2, '--model nano --cp 2 --context-shards 2'], [4, 1, '--model nano --pp 2'], [4, 2, '--model nano --pp 2'], [4, 2, '--model nano --order spread --pp 2'],
    [6, 1, '--model nano --pp 2 --zero 3'], [2, 1, '--model llama-nano --batch 16 --micro-batch 8 --pp 2 --pipeline zero-bubble'],
    [4, 1, '--model nano --batch 16 --micro-batch 8 --pp 2 --chunks 2 --pipeline interleaved'], [4, 1, '--model nano --bucket 1000'],
    [4, 1, '--model nano --batch 16 --micro-batch 8 --recompute full --zero 3'], [8, 2, '--model nano --pp 2 --tp 2 --tensor-shards 2'], [8, 2, '--model nano --zero 2'],
    [8, 2, '--model llama-nano --tp 2 --tensor-shards 2 --cp 2 --context-shards 2'], [4, 1, '--model llama-nano --batch 16 --micro-batch 8 --pp 2 --pipeline gpipe --tp 2 --tensor-shards 2']);
my $text = corpus(20000);
@runs = map { splice @runs, rand @runs, 1 } 1 .. 4 unless $ENV{DT_FULL};
for my $run (@runs) {
    my $options = "--batch 8 --overlap off $run->{options}";
    run(120, trainer() . " --data $text --validation 0 --sample-length 0 --quiet --threads 1 --steps 2 --metrics $tmp/m.jsonl $options --ranks $run->{ranks} --nodes $run->{nodes}");
    my ($all, $far) = (slurp("$tmp/m.jsonl") =~ /.*"sent_bytes":(\d+),"far_bytes":(\d+)/s);
    my $s = simulated("$unit --nodes $run->{nodes} --per-node " . $run->{ranks} / $run->{nodes} . " $options --vocabulary 256");
    is(join(' ', map { $_ // '-' } @$s{qw(rank_sent_bytes rank_far_bytes)}), "$all $far", "bytes of $run->{ranks} ranks on $run->{nodes} nodes, $run->{options}");
    unlink "$tmp/m.jsonl";
}

# ---- orders ----

my $job = '--model 124M --precision bf16 --sequence 128 --batch 128 --micro-batch 32 --tp 2 --pp 2 --overlap on';
my $near = simulated("--nodes 8 --instance p4d $job");
cmp_ok(simulated("--nodes 8 --instance p4d $job --slow 5=1.5")->{step_s}, '>', $near->{step_s}, 'a slow rank makes a step longer');
cmp_ok($near->{simulated}, '<', 8, '  whose ranks are not all simulated');
for my $slow ('', '--slow 5=1.5 --slow 40=1.2') {
    my ($some, $every) = map { simulated("--nodes 8 --instance p4d $job $slow $_") } '', '--every';
    cmp_ok(abs($every->{step_s} / $some->{step_s} - 1), '<', 1e-3, "  and all $every->{ranks} together take as long but for uneven pieces, $slow");
}
my ($quick, $late) = map { simulated(machine('far', far => $_) . " --nodes 4 --per-node 2 --model nano --vocabulary 256 --zero 2") } '0 0 1 1e-6', '0 0 1 2e-6';
cmp_ok($late->{step_s}, '>', $quick->{step_s}, 'a slower link makes a step longer');
my $alone = simulated('--nodes 64 --instance p5 --model 124M --overlap on');
ok($alone->{simulated} == 1 && $alone->{exposed_s} > 0 && $alone->{idle_s} == 0, 'equal ranks wait for exchanges, not for each other');
is(simulated("--nodes 1 --instance p5 --model nano --input-tokens-s 1024")->{step_s} * 1024, 16 * 128, 'input: no faster than it comes');
cmp_ok(simulated("--nodes 64 --instance p5 $job --mtbf-h 100")->{goodput}, '<', 1, 'failures cost');
is(simulated('--nodes 2048 --layers 48 --heads 64 --width 8192 --sequence 2048 --precision bf16 --tp 8 --pp 8 --batch 2048 --micro-batch 256')->{ranks}, 16384, '16384 ranks');

($status, $out) = run(120, "$simulate --nodes 1 --instance p4d --model 124M --precision bf16 --sequence 128 --batch 32 --search");
my @steps = $out =~ /^ +\d+ +\d+ +\d+ +\d+ +\w+ +\d+ +([\d.e-]+)/mg;
ok(@steps == 10 && "@steps" eq join(' ', sort { $a <=> $b } @steps), 'a search: the best ten, in order') or diag($out);
like($out, qr/^planner    \w+.* on 1 x p4d/m, '  and what the planner says');
my $layout = $out =~ /^ +(\d+) +(\d+) +\d+ +(\d) +none +(\d+) .*fastest/m ? "--tp $1 --pp $2 --zero $3 --tensor-shards $1 --micro-batch " . $4 * 8 / $1 / $2 . ' --data-shards ' . 8 / $1 / $2 : '';
is(sprintf('%.3g', simulated("--nodes 1 --instance p4d --model 124M --precision bf16 --sequence 128 --batch 32 $layout")->{step_s} // 0), sprintf('%.3g', $steps[0] // 1), '  whose first one takes as long by itself');

run(60, "$simulate --nodes 4 --instance p4d $job --trace $tmp/trace --rank 9");
my $trace = eval { JSON::PP->new->decode(slurp("$tmp/trace")) };
my @bars = grep { $_->{ph} eq 'X' } @{$trace->{traceEvents} || []};
ok((grep { $_->{cat} eq 'FORWARD' } @bars) && !(grep { $_->{pid} != 9 || $_->{dur} < 0 } @bars), 'a trace of a rank');

# ---- wrong input ----

for (['a number', '--nodes x', qr/--nodes x is not a whole number from 1/], ['half a node', '--nodes 2.5', qr/--nodes 2\.5 is not a whole/], ['a table as JSON', '--search --json', qr/leave out --json/],
     ['a place', "--calibrate $tmp/none/x", qr/cannot write/], ['a file that is something else', "--calibrate $tmp/trace", qr/is not a calibration: name another/], ['no value', '--nodes', qr/--nodes needs a value/], ['a slow rank', '--slow 3', qr/it is RANK=FACTOR/], ['one too far', '--slow 999=2', qr/beyond the last/], ['more than a number of a rank', '--slow 4294967297=2', qr/it is RANK=FACTOR/],
     ['a type', '--instance p9', qr/p9 is not in the catalogue/], ['a calibration', '--calibration nothing', qr/cannot be read/], ['an option', '--bogus 3', qr/unknown option --bogus/], ['a word', 'word', qr/what is 'word'/],
     ['a rank', '--rank 8', qr/--rank 8: it is beyond/], ['a layout', '--tp 3', qr/--tp 3 does not divide/], ['ranks', '--nodes 4000', qr/16384 ranks at most/], ['ranks of a node', '--per-node 0', qr/--per-node 0/]) {
    my ($name, $options, $pattern) = @$_;
    ($status, $out, $err) = run(60, "$simulate $options");
    ok($status == 2 && $err =~ $pattern, "refused: $name") or diag("status $status\n$err");
}
for ("near 1 2\n", "MATMUL 1 2\n", "MATMUL 1 2 -3\n", "what 1\n", "\n", "near 0 0 0 nan\npeak 1\n") {
    spew("$tmp/broken", $_);
    ($status, $out, $err) = run(60, "$simulate --calibration $tmp/broken");
    ok($status == 2 && $err =~ /not a calibration's|no line 'peak'/, 'refused: ' . s/\n.*//sr) or diag("status $status\n$err");
}
done_testing();
