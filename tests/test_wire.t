#!/usr/bin/env perl
# Compressed gradients in training (--wire): the bits depend on the number of data-parallel ranks alone, and one has those
# of fp32; bytes are the formula's; the loss stays near that of fp32; what is lost is in checkpoints, which go on to the
# same bits, or are refused. The formats themselves are in test_wire.c, top-k and PowerSGD in examples/36_compression.c.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use JSON::PP qw(decode_json);
use Layouts;
use Test::More;

my @lossy = qw(fp16 bf16 int8);
my $kind = $only_threads ? ' --launch threads' : '';
my %want = golden();
sub hash { my ($recipe, $options, $environment) = @_; return hash_of($recipe, "$options$kind", $environment) }

# ---- the bits ----

is(hash('shard', "--ranks 1 --wire $_"), $want{shard}, "$_ on one data-parallel rank is fp32") for @lossy;
is(hash('tensor', '--ranks 4 --tp 2 --pp 2 --wire int8'), $want{tensor}, 'also on four that share a model');
is(hash('shard', '--ranks 2 --wire fp32'), $want{shard}, 'fp32 is exact on two');

my @same = (
    ['shard', 2, '', '--launch threads', '--nodes 2', '--bucket 5000 --overlap on', '--bucket 1', '--zero 1 --threads 2'],
    ['each', 4, '--nodes 2', '--bucket 5000', '--zero 1 --zero-group 2', '--nodes 4 --overlap on --bucket 1'],
    ['tensor', 2, '--tp 4 --sequence-parallel', '--tp 2 --pp 2 --order spread'],
    ['context', 2, '--cp 2 --tp 2', '--cp 4 --nodes 2'],
    ['deep', 2, '--pp 4 --pipeline interleaved', '--pp 2 --pipeline zero-bubble', '--recompute full --offload'],
);
my @turn = qw(int8 fp16 bf16);
for my $case (@same) {
    my ($recipe, $dp, @layouts) = @$case;
    push @turn, shift @turn; # all formats with the first, of the others' one each
    for my $wire (full() || $recipe eq 'shard' ? @lossy : $turn[0]) {
        my $bits = hash($recipe, "--ranks $dp --wire $wire");
        isnt($bits, $want{$recipe}, "$recipe, $wire: $dp data-parallel ranks have other bits than fp32");
        for my $layout (@layouts) {
            my $ranks = $dp;
            $ranks *= $_ for $layout =~ /--[tpc]p (\d)/g;
            is(hash($recipe, "--ranks $ranks --wire $wire $layout"), $bits, "  and the same ones with --ranks $ranks $layout");
        }
    }
}
my ($isas) = isas();
for my $wire (@lossy) {
    my %bits = map { hash('base', "--ranks 2 --wire $wire", "DT_ISA=$_") => 1 } @$isas;
    is(scalar keys %bits, 1, "$wire: the same bits with @$isas");
}

# ---- the bytes ----

# Shapes of the gradients of nano at sequence 32: the tied table is sent for each of its uses.
my @shapes = ([256, 64], [256, 64], [32, 64], [64], [64]);
push @shapes, [64], [64], [64, 192], [192], [64, 64], [64], [64], [64], [64, 256], [256], [256, 64], [64] for 1, 2;
sub count { my $n = 1; $n *= $_ for @{$_[0]}; return $n }
sub up { my ($x, $unit) = @_; return int(($x + $unit - 1) / $unit) }
sub blocks { return up(count($_[0]), 1024) } # a gradient lies in whole blocks
my %words = (fp16 => sub { 512 * blocks($_[0]) }, bf16 => sub { 512 * blocks($_[0]) }, int8 => sub { 4 * 65 * blocks($_[0]) });
# Blocks of 1024 are shared out; rank 0 has the first, and the last may be short (--bucket 1 GB: one of each kind).
sub metrics {
    my ($options, $environment) = @_;
    unlink "$tmp/metrics";
    my ($status, $out, $err) = run(120, ($environment || '') . ' ' . trainer() . ' --data ' . corpus(20000) . ' --model nano --validation 0 '
        . "--sample-length 0 --quiet --batch 8 --sequence 32 --metrics $tmp/metrics$kind $options");
    diag("status $status\n$err") if $status;
    return map { decode_json($_) } grep { /"step"/ } split /\n/, slurp("$tmp/metrics");
}
for my $wire (@lossy) {
    my $all = 0;
    $all += $words{$wire}->($_) for @shapes;
    for my $layout ('', '--overlap on --bucket 5000') {
        my ($m) = metrics("--steps 1 --ranks 2 --wire $wire $layout");
        is($m->{wire_bytes}, 4 * $all, "$wire: 2 ranks $layout send $m->{wire_bytes} bytes, $m->{wire_plain} in fp32");
    }
    my ($m) = metrics("--steps 1 --ranks 4 --nodes 4 --wire $wire");
    is($m->{wire_bytes}, 12 * $all, '  and 4 ranks three times as many, between nodes, too');
    is($m->{far_bytes}, $m->{sent_bytes}, '  all of which leave the node');
}
my ($plain) = metrics('--steps 1 --ranks 2');
my ($int8) = metrics('--steps 1 --ranks 2 --wire int8');
is($int8->{wire_plain} - $int8->{wire_bytes}, $plain->{sent_bytes} - $int8->{sent_bytes}, 'what fp32 would send is what it sends');
ok(!exists $plain->{wire_bytes}, 'and nothing is said of it then');

# ---- the loss ----

my %bound = (fp16 => 0.002, bf16 => 0.005, int8 => 0.01);
my $steps = sanitized() ? 10 : 60;
my @last = metrics("--steps $steps --learning-rate 3e-3 --ranks 2");
for my $wire (@lossy) {
    my @run = metrics("--steps $steps --learning-rate 3e-3 --ranks 2 --wire $wire");
    my $gap = $run[-1]{loss} - $last[-1]{loss};
    cmp_ok(abs $gap, '<', $bound{$wire}, sprintf '%s: after %d steps the loss is %.4f, that of fp32 %.4f', $wire, $steps, $run[-1]{loss}, $last[-1]{loss});
}

# ---- checkpoints ----

my $folders = 0;
my %saved;
sub train {
    my ($options, $wire) = @_;
    my ($status, $out, $err) = run(120, trainer() . ' --data ' . corpus(20000) . ' --model nano --heads 4 --tensor-shards 2 --validation 0 '
        . "--sample-length 0 --quiet --batch 16 --micro-batch 8 --sequence 16 --warmup 2 --schedule constant --threads 1 --wire $wire$kind $options");
    return ($status, $out =~ /^sha256 (\w+)$/m ? $1 : '', $err);
}
for my $wire (qw(int8 bf16)) {
    for my $accumulation (full() ? qw(each shard) : $wire eq 'bf16' ? 'each' : 'shard') {
        my $dir = $saved{$wire} = "$tmp/saved." . $folders++;
        my (undef, $whole) = train("--steps 6 --ranks 2 --accumulation $accumulation", $wire);
        my ($status) = train("--steps 3 --ranks 2 --accumulation $accumulation --checkpoint $dir", $wire);
        is($status, 0, "$wire, $accumulation: three steps of six are saved");
        system "cp -r $dir $dir.copy";
        my (undef, $hash, $err) = train("--steps 6 --ranks 4 --tp 2 --overlap on --accumulation $accumulation --checkpoint $dir --checkpoint-every 1 "
            . '--checkpoint-async', $wire);
        is($hash, $whole, '  the rest, with tp 2, gives the bits of a run that nothing disturbed') or diag($err);
        (undef, $hash) = train("--steps 6 --ranks 4 --pp 2 --zero 1 --bucket 1 --accumulation $accumulation --checkpoint $dir.copy", $wire);
        is($hash, $whole, '  and with pp 2 and ZeRO 1');
        system "rm -rf $dir/step-000000006 && echo step-000000005 > $dir/latest"; # of the asynchronous ones
        (undef, $hash) = train("--steps 6 --ranks 2 --accumulation $accumulation --checkpoint $dir", $wire);
        is($hash, $whole, '  and from a save that was made behind training');
    }
}

# ---- what is refused ----

sub refused {
    my ($options, $wire, $pattern) = @_;
    my ($status, undef, $err) = train("--steps 6 $options", $wire);
    ok($status == 2 && $err =~ $pattern, "refused: --wire $wire $options") or diag("status $status: $err");
}
my $saved = $saved{int8};
refused("--ranks 4 --checkpoint $saved", 'int8', qr/is of 2 data-parallel ranks, each with its own compression error, this run has 4: use as many/);
refused("--ranks 1 --checkpoint $saved", 'int8', qr/is of 2 data-parallel ranks, .* this run has 1: use as many/);
refused("--ranks 2 --checkpoint $saved", 'fp16', qr/was made with --wire int8, this run has fp16/);
refused("--ranks 2 --checkpoint $tmp/none --checkpoint-kind full", 'int8', qr/--wire int8: a full checkpoint has no place for what each rank has lost: use --checkpoint-kind sharded/);
refused('--ranks 3', 'bf16', qr/--wire bf16: 3 data-parallel ranks have 8 data shards in uneven runs: let their number be a power of two/);
refused('--ranks 2 --zero 2', 'int8', qr/--wire int8: every rank keeps what it lost .* --zero 2 saves: use --zero 0 or 1/);
refused('--ranks 2 --zero 3', 'int8', qr/that --zero 3 saves/);
refused('--ranks 2 --experts 4 --ep 2', 'bf16', qr/--wire bf16 does not go with --ep 2/);
refused('--ranks 2', $_, qr/--wire '?$_'?/) for qw(topk powersgd);
refused("--ranks 2 $_", 'int8', qr/unknown option --wire-\w+: did you mean/) for '--wire-keep 0.01', '--wire-rank=4';
refused('--ranks 2', 'int4', qr/--wire int4: choose one of fp32,fp16,bf16,int8/);

# Another number of ranks is no way out after a loss; weights alone may go anywhere.
my $killed = trainer() . ' --data ' . corpus(20000) . " --model nano --validation 0 --sample-length 0 --quiet --batch 8 --sequence 32 --steps 400000";
SKIP: {
    skip 'threads cannot be started again', 1 if $only_threads;
    local $ENV{DT_BACKOFF} = 0;
    my (undef, $out, $err) = run(60, "$killed --wire int8 --ranks 2 --elastic 1:2 --max-restarts 2 --checkpoint $tmp/elastic --checkpoint-every 5 & "
        . 'p=$!; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.5; [ -e ' . "$tmp/elastic/latest ] && break; done; "
        . 'kill -KILL $(cat /proc/$p/task/$p/children | cut -d" " -f1); wait $p; echo status $?');
    ok($out =~ /^status [1-9]/m && $err =~ /1 of 2 ranks are left, of which the layout can use 0/, 'a job that loses one of two ranks does not go on with one') or diag($out, $err);
}
my $tool = "$build/25_wire_tool";
is((run(600, ($ENV{CC} || 'cc') . " -std=gnu11 -O0 -DDT_DEBUG -I$root $root/examples/72_checkpoint_tool.c -o $tool -lm -lpthread"))[0], 0, 'the tool');
like((run(60, "$tool convert $saved $tmp/again sharded"))[2], qr/has the compression error of each rank, which belongs to that number of ranks/,
    'refused: another sharded one');
is((run(60, "$tool convert $saved $tmp/weights full"))[0], 0, 'a full one, for other programs');
refused("--ranks 2 --checkpoint $tmp/weights", 'int8', qr/is a full checkpoint, without the compression error of each rank/);

my ($status, $out) = run(60, trainer() . ' --data ' . corpus(20000) . " --model nano --steps 1 --validation 0 --sample-length 0 --ranks 2 --wire int8$kind");
like($out, qr/^layout .* fast numerics; .*^wire     int8, with error feedback: the bits depend on there being 2 data-parallel ranks/ms,
    'the banner says that this is not exact');
like($out, qr/wire 0\.\d+ of fp32/, 'and the progress line which share of the bytes is sent');

done_testing();
