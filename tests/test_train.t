#!/usr/bin/env perl
# A training run as a whole: the memory plan against the peak that the system saw, token shards, metrics, validation that
# no layout changes, accumulation, and ranks killed or frozen in the middle of a step.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use JSON::PP qw(decode_json);
use Test::More;

my $data = corpus(60000);
my $program = trainer();
my $only_threads = ($ENV{DT_SANITIZE} || '') =~ /thread/; # TSan cannot see what processes share

# ---- memory: the printed plan is within 10 % of the peak ----
SKIP: {
    skip 'sanitizers use memory of their own', 2 if sanitized();
    for my $shards (1, 8) {
        my ($status, $out, $err) = run(120, "$program --data $data --model small --batch 8 --sequence 128 --data-shards $shards --steps 1 "
            . "--threads 1 --sample-length 0 --validation 0 & p=\$!; peak=0; while kill -0 \$p 2>/dev/null; do "
            . "k=\$(sed -n 's/^VmHWM:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/\$p/status 2>/dev/null); [ -n \"\$k\" ] && peak=\$k; sleep 0.02; done; wait \$p; echo peak \$peak");
        my ($plan) = $out =~ /^memory\s+([0-9.]+) MB/m;
        my ($peak) = $out =~ /^peak (\d+)/m;
        my $ratio = $plan && $peak ? $peak * 1024 / 1e6 / $plan : 0;
        ok($ratio > 0.9 && $ratio < 1.1, sprintf('%d data shards: peak memory is %.3f of the printed plan', $shards, $ratio)) or diag("$out$err");
    }
}

# ---- token shards give the same run as the bytes they hold ----
sub result_of {
    my ($status, $out, $err) = run(120, "$program --model nano --batch 8 --sequence 32 --steps 4 --validation 0.1 --sample-length 0 @_");
    diag($err) if $status;
    return ($out =~ /^sha256 (\w+)/m ? $1 : "none ($status)", $out);
}
my @tokens = unpack 'C*', slurp($data);
my $half = int(@tokens / 3);
spew("$tmp/a.bin", pack('l<256', 20240520, 1, $half, (0) x 253) . pack('S<*', @tokens[0 .. $half - 1]));
spew("$tmp/b.bin", pack('l<256', 20240520, 1, @tokens - $half, (0) x 253) . pack('S<*', @tokens[$half .. $#tokens]));
my ($bytes) = result_of("--data $data --quiet");
my ($shards) = result_of("--data '$tmp/?.bin' --vocabulary 256 --quiet");
is($shards, $bytes, 'two .bin shards of the same tokens give the hash of the text');
my ($seeded) = result_of("--data $data --seed 2 --quiet");
isnt($seeded, $bytes, 'another seed gives another hash');

# ---- metrics and validation in two layouts ----
my @kinds = $only_threads ? ('threads') : ('processes', 'threads');
my %seen;
for my $layout ('--ranks 1', map { "--ranks 3 --launch $_" } @kinds) {
    my ($hash, $out) = result_of("--data $data --eval-every 2 --eval-batches 0 --metrics $tmp/m.jsonl $layout");
    my @line = split /\n/, slurp("$tmp/m.jsonl");
    my $run = decode_json(shift @line);
    is(join(' ', @$run{'version', 'ranks'}, $run->{recipe}{steps}, $run->{recipe}{data} eq $data, $run->{layout}{'eval-every'}),
        join(' ', '0.1.0', $layout =~ /(\d)/, 4, 1, 2), "$layout: metrics begin with recipe and layout");
    is(scalar @line, 4, "$layout: one line of metrics per step");
    my @elapsed = map { /"seconds":[\d.e+-]+,"elapsed":([\d.e+-]+)/ } @line;
    ok(@elapsed == 4 && !grep({ $elapsed[$_] <= $elapsed[$_ - 1] } 1 .. 3), "$layout: the elapsed time rises") or diag("@elapsed");
    is(scalar(grep { /^\{"step":\d+,"loss":[0-9.e+-]+,"validation":(null|[0-9.]+),.*"data_seconds":[0-9.e+-]+,"sent_bytes":\d+,"far_bytes":\d+,"reductions":\d+,"gradient_bytes":\d+,"gradient_far":\d+(?:,"rank_\w+":\[[0-9.e+,-]+\]){6}(?:,"sha256":"[0-9a-f]{64}")?\}$/ } @line), 4, "$layout: well-formed lines");
    my $values = join ' ', map { join ',', /"loss":([^,]+),"validation":([^,]+),"norm":([^,]+)/ } @line;
    push @{$seen{$values}}, $layout;
    like($values, qr/null.*,[0-9.]+,.*null.*,[0-9.]+,/, "$layout: validation after steps 2 and 4");
}
is(scalar keys %seen, 1, 'loss, validation loss and norm are the same digits in every layout');

# ---- the line of progress: where it does not fit, less important figures give way ----
{
    my (undef, $out) = result_of("--data $data --ranks 2 --launch $kinds[0]");
    my @progress = grep { /^step \d/ && !/validation/ } split /\n/, $out;
    ok(@progress >= 2 && !grep({ length > 100 } @progress), 'progress in lines of at most 100 columns') or diag($out);
    ok(!grep({ !/^step \d\/4  loss [\d.]+  .*\d tokens\/s/ } @progress), 'each with the step, the loss and the speed') or diag(@progress);
    ok($progress[0] =~ /eta/ && $progress[-1] !~ /eta/, 'and the time that is left, if any') or diag(@progress);
}

# ---- the fusion threshold: fewer sums of the same bytes, and the same bits ----
my @fused = map {
    my ($hash) = result_of("--data $data --quiet --ranks 2 --bucket $_ --metrics $tmp/m.jsonl");
    is($hash, $bytes, "--bucket $_: the same hash");
    [slurp("$tmp/m.jsonl") =~ /"sent_bytes":(\d+).*"reductions":(\d+),/m];
} 1, 20000, 25000000;
is(join(' ', map { $_->[0] == $fused[0][0] } @fused), '1 1 1', 'and the same bytes');
ok($fused[0][1] > $fused[1][1] && $fused[1][1] > $fused[2][1] && $fused[2][1] > 0, 'in fewer sums: ' . join ', ', map { $_->[1] } @fused);

# ---- the doctor ----
for my $layout ('--ranks 1', '--ranks 2 --nodes 2 --zero 1 --overlap on', '--ranks 3 --data-shards 8') {
    my ($hash, $out) = result_of("--data $data --quiet --doctor $layout");
    is($hash, $bytes, "--doctor, $layout: the same hash");
    like($out, qr/\Adoctor   \d ranks? on \d nodes?, 3 steps of (.*\n)+  1 transport (.*\n)+  2 data (.*\n)+  3 batch (.*\n)+  4 overlap (.*\n)+  5 placement (.*\n)+finding  \w+\nsha256/,
        'five questions and the main finding, once');
}

{ # what the doctor itself takes is no increase of the run's memory
    my (undef, $out) = run(100, trainer() . " --data $data --model nano --batch 8 --sequence 32 --steps 30 --doctor --rules --ranks 1 --eval-batches 0 --sample-length 0");
    like($out, qr/^finding  \w+$/m, 'with rules the doctor looks as well');
    unlike($out, qr/MemoryIncrease/, '  and no rule fires for its memory') or diag($out);
}

# ---- the timeline: what every rank did when ----
for my $case ((map { [$_, 'off'] } @kinds), [$kinds[0], 'on']) {
    my $layout = "--ranks 4 --pp 2 --bucket 5000 --launch $case->[0] --overlap $case->[1]";
    result_of("--data $data --quiet $layout --timeline $tmp/t.json");
    my $all = decode_json(slurp("$tmp/t.json"))->{traceEvents};
    my $event = [grep { $_->{ph} eq 'X' } @$all];
    my %named = map { ("$_->{pid} $_->{tid}" => $_->{args}{name}) } grep { $_->{name} eq 'thread_name' } @$all;
    is_deeply([map { $named{"$_->{pid} $_->{tid}"} // 'none' } @$event],
        [map { "rank $_->{pid} " . ($_->{tid} > 3 ? 'communicates' : 'computes') } @$event], "timeline, $layout: threads have names");
    my (%stages, %end, $late);
    for my $e (@$event) {
        $stages{"$1.$2"}{$e->{tid}} = 1 if $e->{name} =~ /^FORWARD of shard (\d+), micro-batch (\d+), segment/;
        next if $e->{cat} eq 'EXCHANGE';
        $late++ if $e->{ts} < ($end{$e->{tid}} // 0) - 0.002 || $e->{dur} < 0;
        $end{$e->{tid}} = $e->{ts} + $e->{dur};
    }
    is(join(' ', sort keys %end), $case->[1] eq 'on' ? '0 1 2 3 4 5 6 7' : '0 1 2 3', "timeline, $layout: all ranks, and their second threads");
    is(join(' ', map { scalar keys %$_ } values %stages), join(' ', (2) x 8), 'every unit of work went through two stages');
    ok(!$late, 'no bar begins before the one before it has ended');
    is(scalar(grep { $_->{cat} eq 'UPDATE' } @$event), 4, 'each rank updates once');
    is(scalar(grep { $_->{cat} =~ /WARD/ && $_->{dur} <= 0 } @$event), 0, 'no work takes no time');
}
{ # exchanges of tensor, context and expert groups lie inside the segment that waits for them
    result_of("--data $data --quiet --ranks 2 --tp 2 --eval-batches 1 --timeline $tmp/t.json", '--tensor-shards 2');
    my @event = grep { $_->{ph} eq 'X' } @{decode_json(slurp("$tmp/t.json"))->{traceEvents}};
    my @inside = grep { $_->{cat} eq 'EXCHANGE' } @event;
    my @lost = grep { my $x = $_; !grep { $_->{cat} =~ /WARD/ && $_->{tid} == $x->{tid} && $_->{ts} <= $x->{ts} + 0.002 && $_->{ts} + $_->{dur} >= $x->{ts} + $x->{dur} - 0.002 } @event } @inside;
    cmp_ok(scalar @inside, '>', 8, 'timeline: ' . @inside . ' exchanges of the tensor group');
    is(scalar @lost, 0, '  each inside a segment');
}
my ($failed) = run(60, trainer() . " --data $data --model nano --learning-rate 1e30 --warmup 0 --clip 0 --steps 20 --quiet --timeline $tmp/none.json");
is($failed, 1, 'a run that fails');
ok(!-e "$tmp/none.json", 'leaves no timeline');

# ---- ranks killed and frozen in the middle of training ----
SKIP: {
    my $cases = full() ? 40 : 6;
    skip 'thread ranks cannot be killed alone', 2 + 2 * $cases if $only_threads;
    kill_one('STOP all', 0.5, 3, '--batch 8 --sequence 64');
    srand 7;
    for my $case (1 .. $cases) {
        my $signal = $case % 3 ? 'KILL' : 'STOP';
        my $ranks = 2 + int rand 3;
        kill_one($signal, 0.3 + rand 0.7, $ranks, '--batch 8 --sequence 64');
    }
}
done_testing();
