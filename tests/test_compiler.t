#!/usr/bin/env perl
# The compiler (H9) as a user meets it: no pass changes a hash, alone or with the others, on any instruction set, in models
# of the library and of a program's own, or through a checkpoint into the other setting (R13). Then what the report, the
# comparison of bits say, and what is refused. tests/test_random.c compiles random graphs,
# tests/test_layouts.t random layouts. Of cases that are alike a sample, as DT_SEED says; all of them with --full.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $program = trainer();
my %want = golden();
my @passes = qw(bias recompute logits fuse order);
my $every = '--compile on --compile-passes ' . join ',', @passes;

seeded();

# ---- hashes ----
my @recipes = qw(base llama experts tensor tensor_experts context dropout);
for my $name (@recipes) {
    is(hash_of($name, '--compile on --verify-compiler'), $want{$name}, "$name: compiled");
}
is(hash_of($_, "$every --threads 2"), $want{$_}, "$_: by every pass, with 2 threads") for drawn(4, @recipes);
is(hash_of('llama', "--compile on --compile-passes $_"), $want{llama}, "llama: $_ alone") for drawn(4, @passes);
is(hash_of('base', "--compile on --compile-passes -$_"), $want{base}, "base: all but $_") for drawn(3, @passes);
is(hash_of('adam', $every, "DT_ISA=$_"), $want{adam}, "adam: $_") for @{(isas())[0]};
is(hash_of('experts', "--compile on --ranks 4 --ep 2"), $want{experts}, 'experts: 4 ranks');

# ---- trial steps leave no trace ----
# Of the fp16 recipe steps overflow; the others carry averages, momentum, drops of experts, dropout.
sub logged {
    my $options = shift;
    my ($status, $out, $err) = run(120, "$program --data " . corpus(20000) . " --model nano --warmup 2 --validation 0 --sample-length 0 --quiet $options --metrics $tmp/trial.json");
    my ($hash) = $out =~ /^sha256 (\w+)/m;
    my $lines = join "\n", map { s/"rank_\w+":\[.*?\],?|"(?:\w*seconds|elapsed|gflops|peak_share)":[^,}]*,?//gr } grep { /^\{"step"/ } split /\n/, slurp("$tmp/trial.json");
    return ($hash || $err) . "\n$lines";
}
for my $case (['fp16', '--ranks 2 --zero 1'], ['sgd', '--ranks 2 --overlap on'], ['dropless', '--ranks 2 --ep 2'], ['dropout', '--ranks 1']) {
    my ($name, $layout) = @$case;
    my $plain = logged("$Dt::recipe{$name} $layout --compile on");
    is(logged("$Dt::recipe{$name} $layout $_"), $plain, "$name, $layout: the same hash, losses, norms and bytes with $_")
        for drawn(1, '--compile on --compile-report', '--compile on --verify-compiler');
}

# ---- models of a program's own ----
for my $model (qw(11_mlp 12_cnn 13_forecaster)) {
    my $source = slurp("$root/examples/$model.c");
    my ($expected) = $source =~ /sha256\s+([0-9a-f]{64})/;
    my $set = 'layout.compile.mode = DT_COMPILE_ON, layout.compile.passes = "' . join(',', @passes) . '";'
        . ' static dt_probe probe; dt_trial_attach(&layout, &probe); probe.option[0].value = probe.option[1].value = "1";';
    spew("$tmp/$model.c", $source =~ s/(dt_layout layout = dt_layout_default\(\);)/$1 $set/r =~ s/(#include "dtrain.h"\n)/$1#include "$root\/examples\/trial.h"\n/r);
    my ($status, $out, $err) = run(120, linked_with('library', "$tmp/$model.c", "$tmp/$model"));
    like($out, qr/^sha256\s+$expected$/m, "$model: compiled, it has its hash") or diag("status $status\n$err");
    like($out, qr/^compiler \d+ ops became \d+, .*; every bit is the same$/m, "$model: the bits were compared");
}

# ---- what the trainer reads beside outputs: auxiliary losses, counts of experts ----
linked_with('library', "$root/tests/watched.c", "$tmp/watched");
for my $kind (0 .. 5) {
    my $watched = "$tmp/watched $kind --quiet --data " . corpus(20000);
    my (undef, $plain) = run(120, $watched);
    my $lines = () = $plain =~ /^(?:step|mixture|logit|[0-9a-f]{64}$)/mg;
    is($lines, (3, 3, 7, 3, 31, 30)[$kind], "watched $kind: losses, counts and a hash");
    for (drawn(2, '--compile on', '--compile on --compile-passes recompute', $every)) {
        my ($status, $out, $err) = run(120, "$watched $_");
        is($out, $plain, "watched $kind: $_: the same") or diag("status $status: $err");
    }
}

# ---- a checkpoint into the other setting ----
for my $order (['off', 'on'], ['on', 'off']) {
    my $common = "--checkpoint $tmp/at-$order->[0] --checkpoint-every 2 --keep 0";
    my $all = '--data ' . corpus(20000) . " --model nano --warmup 2 --validation 0 --sample-length 0 --quiet $recipe{base}";
    run(300, "$program $all $common --compile $order->[0] --ranks 2");
    my (undef, $out, $err) = run(300, "$program $all $common --compile $order->[1] --resume-step 2");
    my ($hash) = $out =~ /^sha256 (\w+)/m;
    is($hash, $want{base}, "saved with --compile $order->[0], resumed with $order->[1]") or diag($err);
}

# ---- what is said ----
my $small = '--data ' . corpus(20000) . ' --model nano --batch 8 --sequence 64 --steps 2 --validation 0 --sample-length 0';
my (undef, $said) = run(120, "$program $small --compile on --compile-report --verify-compiler");
my (undef, $plain) = run(120, "$program $small");
my ($measured) = $said =~ /^(sha256 \w+)/m;
ok($measured && index($plain, "$measured\n") >= 0, 'measuring takes no batch from training');
my ($recorded, $ops, $groups, $grouped) = $said =~ /^compiler (\d+) ops became (\d+), of which (\d+) are groups of (\d+) ops; compiled in [0-9.]+ s; every bit is the same$/m;
ok($recorded && $ops < $recorded && $groups > 0 && $grouped > $groups, 'the report counts ops and groups') or diag($said);
my ($before, $after) = $said =~ /memory of a unit ([0-9.]+) MB before, ([0-9.]+) MB compiled/;
ok($before && $after < $before, 'a unit needs less memory');
like($said, qr/time of a step [0-9.]+ ms before, [0-9.]+ ms compiled: [0-9.]+x; (pays from|it saves no time)/, 'the times of both');
my (undef, $blocks) = run(120, "$program $small --compile on --compile-passes logits --compile-report --verify-compiler --threads 2");
my ($was, $is) = $blocks =~ /memory of a unit ([0-9.]+) MB before, ([0-9.]+) MB compiled/;
ok($blocks =~ /^\Q$measured\E$/m && $blocks =~ /every bit is the same$/m && $is < $was, 'logits by blocks of rows: the same bits, less memory') or diag($blocks);
my %wide = map { $_ => (run(120, "$program $small --tokenizer $root/tests/golden/tokens/gpt2.json --vocabulary 9000 --sample-length 40 --compile on --compile-report --compile-passes $_"))[1] } '-order', '-order,-logits';
my @of = map { [/memory of a unit [0-9.]+ MB before, ([0-9.]+) MB compiled/, /^sha256 (\w+)/m, /^(---- sample.*?\n----\n)/ms] } @wide{'-order', '-order,-logits'};
ok($of[0][0] < 0.7 * $of[1][0], "a large vocabulary: the pass logits is a usual one: $of[0][0] instead of $of[1][0] MB") or diag($wide{-order});
ok($of[0][2] && $of[0][1] . $of[0][2] eq $of[1][1] . $of[1][2], 'with the same hash and text') or diag(%wide);

# ---- a compiler with a fault ----
SKIP: {
    skip 'the fault is compiled once, without sanitizers', 2 if sanitized();
    mkdir "$tmp/fault";
    my $header = slurp("$root/dtrain.h");
    ok($header =~ s/copy\.aux = 0, copy\.slot = -1;/copy.aux = 0, copy.slot = -1, copy.f += 0.5f;/, 'a pass that copies an op with another number');
    spew("$tmp/fault/dtrain.h", $header);
    my ($status, undef, $err) = run(300, ($ENV{CC} || 'cc') . " -O0 -DDT_DEBUG -I$tmp/fault $root/examples/06_train.c -o $tmp/fault/train -lm -lpthread");
    ($status, undef, $err) = run(60, "$tmp/fault/train $small --dropout 0.1 --experts 4 --compile on --verify-compiler") if !$status;
    ok($status && $err =~ /--verify-compiler: after the first steps the weights have other bits compiled than op by op/, '--verify-compiler refuses other bits') or diag("status $status: $err");
}

# ---- what is refused ----
for ([ '--compile on --compile-passes fuze', qr/'fuze' is not a pass\. A list names .*: bias, .*logits/ ],
     [ '--compile on --compile-passes fuse,-bias', qr/'-bias' does not fit the rest/ ],
     [ '--compile-passes fuse', qr/--compile-passes fuse: there is no compiler .*Set --compile on/ ],
     [ '--compile maybe', qr/off,on|'maybe'/ ]) {
    my ($status, undef, $err) = run(60, "$program $small $_->[0]");
    ok($status && $err =~ $_->[1], "$_->[0] is refused with a sentence") or diag("status $status: $err");
}
spew("$tmp/plain.c", slurp("$root/examples/06_train.c") =~ s/^#define DT_COMPILER\n//mr);
if (sanitizers_missing()) { run(600, ($ENV{CC} || 'cc') . " -std=gnu11 -O0 -DDT_DEBUG -I$root -I$root/examples $tmp/plain.c -o $tmp/plain -lm -lpthread") }
else { linked_with('checked', "$tmp/plain.c", "$tmp/plain") } # the one implementation without DT_COMPILER
my ($status, undef, $err) = run(60, "$tmp/plain $small --compile on");
ok($status && $err =~ /built without DT_COMPILER/, 'a program without the compiler says so') or diag($err);
done_testing();
