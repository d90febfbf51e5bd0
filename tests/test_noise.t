#!/usr/bin/env perl
# The gradient noise scale (--noise-scale): its estimates from the norms of single samples' gradients, which other runs
# tell; the same numbers and the same weights in every layout. A batch that grows by it (--growth): the same steps and the
# same weights in every layout, and over a restart. What is refused.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use JSON::PP qw(decode_json);
use Layouts;
use Test::More;

my $kind = $only_threads ? ' --launch threads' : '';
seeded();
my %want = golden();
sub metrics {
    my $options = shift;
    unlink "$tmp/metrics";
    my ($status, $out, $err) = run(120, trainer() . ' --data ' . corpus(20000) . ' --model nano --warmup 2 --validation 0 --sample-length 0 '
        . "--quiet --metrics $tmp/metrics$kind $options");
    diag("status $status\n$err") if $status;
    return ($out =~ /^sha256 (\w+)/m ? $1 : '', map { decode_json($_) } grep { /"step"/ } split /\n/, slurp("$tmp/metrics"));
}

# ---- against single samples: with a learning rate of 0 eight steps of one sample are the eight of a batch ----

my $still = '--model llama-nano --sequence 32 --learning-rate 0 --weight-decay 0';
my (undef, $batch) = metrics("$still --batch 8 --steps 1 --noise-scale");
my (undef, @single) = metrics("$still --batch 1 --data-shards 1 --steps 8");
my ($small, $big) = (0, $batch->{norm} ** 2);
$small += $_->{norm} ** 2 / 8 for @single;
my ($variance, $square) = (($small - $big) / (1 - 1 / 8), (8 * $big - $small) / 7);
sub near { my ($got, $want, $what) = @_; cmp_ok(abs($got / $want - 1), '<', 1e-5, "$what: $got, $want") }
near($batch->{noise_variance}, $variance, 'tr(Sigma) from the norms of eight samples and of their mean');
near($batch->{noise_square}, $square, '|G|^2');
near($batch->{noise_scale}, $variance / $square, 'the noise scale');
(undef, $batch) = metrics("$still --batch 8 --data-shards 2 --steps 1 --noise-scale");
($small, $big) = (0, $batch->{norm} ** 2);
(undef, @single) = metrics("$still --batch 4 --data-shards 1 --steps 2");
cmp_ok($batch->{noise_variance}, '>', 0, 'two shards of four');
# the shards of a batch of 8 are its first and its last four samples
$small += $_->{norm} ** 2 / 2 for @single;
near($batch->{noise_variance}, ($small - $big) / (1 / 4 - 1 / 8), 'tr(Sigma) from two shards of four samples');

# ---- any layout ----

my @cases = (
    ['each', '--ranks 1', '--ranks 4 --overlap on --bucket 5000', '--ranks 3', '--ranks 8 --nodes 2'],
    ['tensor', '--ranks 1', '--ranks 4 --tp 2 --pp 2 --pipeline zero-bubble', '--ranks 8 --tp 4 --sequence-parallel'],
    ['context_experts', '--ranks 1', '--ranks 8 --cp 4 --tp 2', '--ranks 4 --cp 2 --pp 2'],
);
for my $case (@cases) {
    my ($recipe, @layouts) = @$case;
    my $first;
    for my $layout (@layouts) {
        my ($hash, @step) = metrics("$recipe{$recipe} $layout --noise-scale");
        my $numbers = join ' ', map { my $s = $_; map { $s->{"noise_$_"} } qw(scale variance square) } @step;
        $first = $numbers if !defined $first;
        is($hash, $want{$recipe}, "$recipe: $layout --noise-scale changes no bit");
        is($numbers, $first, '  and measures the same');
    }
}

# ---- a batch that grows ----

my $growing = '--batch 4 --micro-batch 2 --data-shards 2 --sequence 8 --steps 64 --schedule constant --learning-rate 3e-3 --dropout 0.1 '
    . '--heads 4 --tensor-shards 2 --context-shards 2 --growth 8';
sub grown {
    my ($hash, @step) = metrics("$growing @_");
    return ($hash, join ' ', map { $_->{batch} } @step);
}
for my $accumulation (full() ? qw(shard each) : (qw(shard each))[rand 2]) {
    my $with = "--accumulation $accumulation";
    my ($hash, $batches) = grown("$with --ranks 1");
    like($batches, qr/^(4 ){20,}(8 ){20,}/, "$with: the batch grows: " . join ', ', map { my $b = $_; (() = $batches =~ /\b$b\b/g) . " steps of $b" } 4, 8, 16);
    for my $layout ('--ranks 2 --overlap on --bucket 5000', '--ranks 8 --tp 2 --cp 2 --nodes 2', '--ranks 4 --pp 2 --pipeline zero-bubble') {
        is_deeply([grown("$with $layout")], [$hash, $batches], "  the same steps and bits with $layout");
    }
    my $dir = "$tmp/grown.$accumulation";
    my (undef, $first) = grown("$with --steps 45 --ranks 2 --checkpoint $dir");
    my ($end, $rest) = grown("$with --ranks 4 --tp 2 --checkpoint $dir --checkpoint-every 1 --checkpoint-async");
    is("$first $rest", $batches, '  and over a restart in another layout');
    is($end, $hash, '  to the same bits');
}

# ---- what is refused ----

for my $case (['--data-shards 1', qr/there is one part: set --data-shards 2 or more/], ['--zero 1', qr/leave --zero, --ep, --wire and --reduce native out/],
    ['--wire int8', qr/leave --zero, --ep, --wire and --reduce native out/], ['--experts 4 --ep 2', qr/leave --zero, --ep, --wire and --reduce native out/]) {
    my ($options, $pattern) = @$case;
    my $ranks = $options =~ /shards 1/ ? 1 : 2;
    my ($status, undef, $err) = run(60, trainer() . ' --data ' . corpus(20000) . " --model nano --steps 1 --sample-length 0 --noise-scale --ranks $ranks$kind $options");
    ok($status == 2 && $err =~ $pattern, "refused: $options") or diag("status $status: $err");
}
for my $growth (0, 3, 2048) {
    my ($status, undef, $err) = run(60, trainer() . ' --data ' . corpus(20000) . " --model nano --steps 1 --growth $growth");
    ok($status == 2 && $err =~ /--growth $growth: choose a power of two in \[1,1024\]/, "refused: --growth $growth") or diag("status $status: $err");
}
my ($status, $out) = run(60, trainer() . ' --data ' . corpus(20000) . " --model nano --steps 1 --validation 0 --sample-length 0 --noise-scale$kind");
like($out, qr/^step 1\/1 .* noise scale [\d.e+]+(  |$)/m, 'the progress line has it');

done_testing();
