#!/usr/bin/env perl
# Every parallel mode in every combination (R1..R8, R11, R12): a recipe gives the hash of tests/golden/hash.txt in each of
# the layouts that fit 8 ranks: meshes, sequence and expert parallelism, schedules, ZeRO with and without groups, recompute, offload.
# A random sample of them by default (DT_SEED=N draws sample N), all with DT_FULL=1. Then validation and text samples
# in some of them, ranks that are killed in the middle of drawn ones, and what is refused.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Layouts;
use List::Util qw(max min shuffle);
use Test::More;

my $most = $ENV{DT_LAYOUTS} || (sanitized() ? 10 : 20);
seeded();

# ---- a sample of all layouts ----

# A random sample with every value of every axis in it.
sub sample {
    my ($count, @all) = @_;
    my (%seen, @first, @rest);
    for my $l (shuffle @all) {
        my @new = grep { !$seen{$_} } map { "$_->[0] $l->{$_->[0]}" } @axes;
        $seen{$_} = 1 for @new;
        push @{@new ? \@first : \@rest}, $l;
    }
    return (@first, @rest)[0 .. max($count, scalar @first) - 1];
}

my %want = golden();
my $kind = $only_threads ? ' --launch threads' : '';
my @all = layouts({}, @axes);
my @chosen = full() ? @all : sample(min($most, scalar @all), @all);
cmp_ok(scalar @all, '>=', 300, scalar(@all) . ' layouts fit 8 ranks, ' . scalar(@chosen) . ' are tried');
is(hash_of($_->{recipe}, options($_)), $want{$_->{recipe}}, "$_->{recipe}: " . options($_)) for @chosen;

# A data shard per rank and a reduction per micro-batch: buckets share one buffer, and a cut parameter's padding lies on
# what others left there.
for my $name (qw(each switch tensor_experts)) {
    for my $layout (drawn(2, '--bucket 5000', '--zero 3 --zero-group 4', '--zero 2 --bucket 1 --overlap on')) {
        is(hash_of($name, "--ranks 8$kind $layout"), $want{$name}, "$name: --ranks 8 $layout");
    }
}

# Shared experts keep a sum for each rank's tokens in that buffer, in groups that are smaller and larger than ZeRO's.
for my $layout (drawn(2, '--ep 4 --bucket 5000', '--ep 2 --zero 3 --zero-group 4', '--ep 4 --zero 2 --bucket 1', '--ep 4 --zero 3 --zero-group 2')) {
    is(hash_of('tensor_experts', "--ranks 8$kind $layout"), $want{tensor_experts}, "tensor_experts: --ranks 8 $layout");
}

# ---- validation and text samples ----

my $program = trainer();

# What a run says of losses and text: all that is no time, memory or layout.
sub said {
    my $options = shift;
    my ($status, $out, $err) = run(120, "$program --data " . corpus(20000) . " --model nano --batch 8 --sequence 32 --steps 4 --warmup 2 --threads 1 "
        . "--validation 0.2 --eval-every 2 --sample-length 40 $options");
    diag("status $status\n$err") if $status;
    my @losses = map { s/  lr \S+//r } # which gives way in a long line
        $out =~ /^step ([14]\/4  loss \S+  (?:lr \S+  )?norm \S+|\d\/4  validation loss .*)/mg; # those between come by the clock
    my ($text) = $out =~ /^---- sample at step 4 ----\n(.*?)\n----$/ms;
    my ($hash) = $out =~ /^sha256 (\w+)$/m;
    return join "\n", "status $status", @losses, 'text ' . unpack('H*', defined $text ? $text : ''), $hash || 'no hash';
}

my %places = ( # name => options
    '2 ranks' => '--ranks 2',
    'ZeRO 3, 3 ranks' => '--ranks 3 --zero 3',
    '2 stages, ZeRO 2, 4 ranks' => '--ranks 4 --pp 2 --zero 2',
    'interleaved, 2 ranks' => '--ranks 2 --pp 2 --pipeline interleaved',
    'zero-bubble, ZeRO 1, 4 ranks' => '--ranks 4 --pp 2 --zero 1 --pipeline zero-bubble',
    'recompute, 2 threads' => '--ranks 2 --recompute full --threads 2',
    'offload, 2 stages' => '--ranks 2 --pp 2 --recompute full --offload',
    'groups of 2, ZeRO 3, 4 ranks' => '--ranks 4 --zero 3 --zero-group 2',
    'overlap, ZeRO 1, 3 ranks' => '--ranks 3 --zero 1 --overlap on --bucket 5000',
    'overlap, ZeRO 3, 2 stages, 4 ranks' => '--ranks 4 --zero 3 --pp 2 --overlap on',
);
my %shared = ( # with tensor shards: a rank has only some columns of the logits
    'tensor 2' => '--ranks 2 --tp 2',
    'tensor 4, sequence parallel' => '--ranks 4 --tp 4 --sequence-parallel',
    'tensor 2, without a cache' => '--ranks 2 --tp 2 --no-cache',
    'tensor 2, 2 stages, ZeRO 3' => '--ranks 8 --tp 2 --pp 2 --zero 3',
);
my %owned = ( # with experts: all ranks work on every unit of validation and every token of the text
    'experts on 2 ranks' => '--ranks 2 --ep 2',
    'experts on 8 ranks' => '--ranks 8 --ep 8',
    'experts on 4 ranks, 2 stages' => '--ranks 8 --ep 4 --pp 2',
    'experts on 2 ranks, ZeRO 3' => '--ranks 4 --ep 2 --zero 3',
    'experts on 2 of 6 ranks' => '--ranks 6 --ep 2 --zero 1',
    'experts on 4 ranks, groups of 2, without a cache' => '--ranks 4 --ep 4 --zero 1 --zero-group 2 --no-cache',
);
my %around = ( # with context shards: a rank has only some positions of a sequence
    'context 2' => '--ranks 2 --cp 2',
    'context 4, ZeRO 3' => '--ranks 8 --cp 4 --zero 3',
    'context 2, tensor 2, 2 stages' => '--ranks 8 --cp 2 --tp 2 --pp 2 --no-cache',
);
my %both = ( # the tokens of a leaf on their way to experts
    'context 2, experts on 2 ranks' => '--ranks 4 --cp 2 --ep 2 --overlap on',
    'context 4' => '--ranks 4 --cp 4',
    'context 2, experts on 2 ranks, 2 stages, ZeRO 3' => '--ranks 8 --cp 2 --pp 2 --ep 2 --zero 3 --no-cache',
);
my ($shards4, $experts) = ('--heads 4 --tensor-shards 4', '--experts 8 --eval-batches 0'); # 0: more units on some ranks
my %places_of = ($shards4 => \%shared, $experts => \%owned, "$experts --capacity 1.1 --ema 0.5 --evaluate-ema" => \%owned,
    '--tensor-shards 2 --context-shards 4' => \%around, "$experts --context-shards 4 --capacity 1.1" => \%both);
for my $recipe ('', '--ema 0.5 --evaluate-ema', sort keys %places_of) {
    my %places = %{$places_of{$recipe} || \%places};
    my $alone = said("--ranks 1 $recipe");
    like($alone, qr{^status 0\n1/4  loss .*\n2/4  validation loss .*\n4/4  loss .*\n4/4  validation loss .*\ntext [0-9a-f]{88}\n[0-9a-f]{64}$}, "1 rank $recipe: losses, validation twice, 40 bytes of text behind the prompt");
    my @places = sort keys %places;
    @places = (shuffle @places)[0 .. $#places / 3] unless full();
    is(said("$places{$_}$kind $recipe"), $alone, "$_ $recipe: the same losses, validation losses, text and hash") for @places;
}

# ---- ranks killed in the middle ----

SKIP: {
    my $times = full() ? 10 : 1;
    my @modes = ('--pp 2 --zero 3', '--pp 2 --pipeline interleaved', '--tp 2 --tensor-shards 2 --sequence-parallel',
        '--zero 3 --bucket 20000', '--recompute full --offload', '--experts 4 --ep 4', '--experts 4 --ep 2 --zero 2',
        '--cp 4 --context-shards 4', '--cp 2 --context-shards 2 --overlap on', '--cp 2 --context-shards 2 --experts 4 --ep 2',
        '--overlap on --bucket 20000', '--overlap on --zero 3 --pp 2', '--overlap on --experts 4 --ep 2 --zero 1');
    # Of each rank two threads wait for the one that is frozen, or for others that wait for it.
    my @frozen = ('--overlap on --zero 1 --bucket 20000', '--overlap on --zero 3 --pp 2', '--overlap on --tp 2 --tensor-shards 2');
    skip 'thread ranks cannot be killed alone', 2 * $times * (@modes + @frozen) if $only_threads;
    for my $mode (drawn(5, @modes)) { # each keeps both cores busy until then
        kill_one('KILL', 0.2 + rand 0.8, 4, "--batch 8 --sequence 64 --threads 1 $mode") for 1 .. $times;
    }
    for my $mode (@frozen) {
        kill_one('STOP', 0.2 + rand 0.8, 4, "--batch 8 --sequence 64 --threads 1 $mode") for 1 .. $times;
    }
}

# ---- what is refused: options, ranks, the sentence ----

sub refused {
    my ($options, $ranks, $pattern) = @_;
    my ($status, $out, $err) = run(60, "$program --data " . corpus(20000) . " --model nano --batch 8 --sequence 32 --steps 1 --validation 0 --sample-length 0 "
        . "--ranks $ranks$kind $options");
    my @said = grep { !/^dtrain: rank \d+ (\(pid \d+\) )?ended with status/ } split /\n/, $err;
    ok($status == 2 && @said == 1 && $said[0] =~ $pattern, "$options on $ranks ranks: refused") or diag("status $status\n$err");
}
refused('--pp 3', 4, qr/--pp 3 does not divide 4 tensor groups. Set --pp to one of 1, 2, 4\./);
refused('--pp 0', 4, qr/--pp 0 does not divide 4 tensor groups. Set --pp to one of 1, 2, 4\./);
refused('--tp 3', 4, qr/--tp 3 does not divide 4 ranks. Set --tp to one of 1, 2, 4\./);
refused('--pp 8', 8, qr/4 segments cannot fill 8 stages: --pp up to 4, or more --layers/);
refused('--pp 2 --pipeline interleaved --chunks 4', 2, qr/4 segments cannot fill 2 stages of 4 chunks: --chunks up to 2, or more --layers/);
refused('--pp 2 --pipeline interleaved --chunks 0', 2, qr/--chunks 0: choose a whole number in \[1,1000\]/);
refused('--pp 3 --pipeline interleaved', 3, qr/in groups of 3, one per stage, and a rank has 8: .* or use --pipeline 1f1b/);
refused('--pp 2 --pipeline interleaved', 6, qr/in groups of 2, one per stage, and a rank has 3:/);
refused('--pp 2 --pipeline zero-bubble --recompute full', 2, qr/zero-bubble keeps activations .*Set --recompute none, or another --pipeline/);
refused('--pipeline square', 2, qr/--pipeline square: choose one of 1f1b,gpipe,interleaved,zero-bubble/);
refused('--offload', 2, qr/--offload moves .* that only --recompute full keeps. Set both/);
refused('--recompute full --offload --horizon 0', 2, qr/--horizon 0: choose a whole number in \[1,1000\]/);
refused('--recompute some', 1, qr/--recompute some: choose one of none,selective,full/);
refused('--zero 4', 4, qr/--zero 4: choose a whole number in \[0,3\]/);
refused('--zero 4', 1, qr/--zero 4: choose a whole number in \[0,3\]/);
refused('--zero -1', 4, qr/--zero -1: choose a whole number in \[0,3\]/);
refused('--zero 1 --zero-group 3', 4, qr/--zero-group 3 does not divide 4 data-parallel ranks. Set --zero-group to one of 1, 2, 4\./);
refused('--zero 1 --zero-group -1', 4, qr/--zero-group -1 does not divide 4 data-parallel ranks/);
refused('--zero 1 --zero-group 7', 4, qr/--zero-group 7 does not divide 4 data-parallel ranks/);
refused('--zero-group 2', 4, qr/--zero-group 2 has no effect without ZeRO. Set --zero to 1, 2 or 3/);
refused('--tp 2', 2, qr/--tp 2 does not divide 1 tensor shard. .* raise --tensor-shards/);
refused('--sequence-parallel', 2, qr/--sequence-parallel splits rows over the ranks of a tensor group.* Set --tp/);
refused('--experts 4 --ep 3', 4, qr/--ep 3 does not divide 4 data-parallel ranks. Set --ep to one of 1, 2, 4\./);
refused('--experts 4 --ep 0', 4, qr/--ep 0 does not divide 4 data-parallel ranks/);
refused('--experts 4 --ep 4 --pp 2', 4, qr/--ep 4 does not divide 2 data-parallel ranks. Set --ep to one of 1, 2\./);
refused('--experts 6 --ep 4', 4, qr/6 experts cannot be shared by 4 ranks: --ep one of 1, 2/);
refused('--ep 2', 2, qr/--ep 2: the model has no experts to share: set --experts, or leave --ep out/);
refused('--experts 6 --ep 3', 6, qr/--ep 3: .* equal numbers of data shards.* 6 data-parallel ranks and 8 data shards, set --ep to one of 1, 2, or use a power of two/);
refused('--experts 6 --ep 3', 3, qr/--ep 3: .* With 3 data-parallel ranks and 8 data shards, set --ep to one of 1, or use a power of two/);
refused('--zero 2 --zero-group 2', 6, qr/groups of 2 of 6 ranks .* Use a power of two of data-parallel ranks, or leave --zero-group out/);
refused('--order DPP', 4, qr/--order DPP is not an order of the mesh. Set it to cluster .* the letters D, P, T/);
refused('--cp 3', 4, qr/--cp 3 does not divide 4 pipelines. Set --cp to one of 1, 2, 4\./);
refused('--cp 0', 4, qr/--cp 0 does not divide 4 pipelines/);
refused('--cp 2', 2, qr/--cp 2 does not divide 1 context shard. .* raise --context-shards/);
refused('--cp 3 --context-shards 4', 3, qr/--cp 3 does not divide 4 context shards. Set --cp to a power of two up to 4/);
refused('--context-shards 3', 1, qr/--context-shards 3: choose a power of two in \[1,1024\]/);
refused('--context-shards 0', 1, qr/--context-shards 0: choose a power of two/);
refused('--context-shards 32', 1, qr/32 tokens do not divide into two slices for each of 32 context shards: --context-shards one of 1, 2, 4, 8, 16, or/);
refused('--context-shards 2 --sequence 30', 1, qr/30 tokens do not divide .* --context-shards one of 1, or another --sequence/);
refused('--context-shards 16 --tensor-shards 8 --heads 8 --data-shards 8', 1, qr/rows of a unit of work/);
refused('--order DPTCC', 4, qr/--order DPTCC is not an order/);
refused('--memory-weight 2', 2, qr/--memory-weight 2: choose a number in \[0,1\]/);
refused('--memory-weight -1', 2, qr/--memory-weight -1: choose a number in \[0,1\]/);

# A tensor group that spans nodes waits for the network in every block: the banner says so, however the job was started.
for my $case (['--tp 4', 1], ['--tp 2', 0], ['--tp 2 --order spread', 1]) {
    my ($options, $warns) = @$case;
    my ($status, $out) = run(60, "$program --data " . corpus(20000) . " --model nano --heads 4 --batch 8 --sequence 32 --steps 1 --warmup 0"
        . " --tensor-shards 4 --validation 0 --sample-length 0 --ranks 4$kind --nodes 2 $options");
    is($out =~ /warning: tensor groups span several nodes/ ? 1 : 0, $warns, "4 ranks on 2 nodes, $options: " . ($warns ? 'warned' : 'no warning'));
    is($status, 0, '  and trained');
}

done_testing();
