#!/usr/bin/env perl
# Operands and activations in 16 bits (R18), the loss scale of fp16, and fast numerics (R19): a run ends where the one in fp32 ends, to 0.02 nats; memory plans say what it
# saves; text is drawn with the same values with and without a cache; a checkpoint goes on in another layout, compiled or
# not, and not in another precision. tests/test_hash.t and test_layouts.t hold its hashes, tests/test_random.c its bits
# against scalar text.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $program = trainer();
my $small = '--data ' . corpus(60000) . ' --model nano --batch 8 --sequence 64 --validation 0.1 --eval-batches 0 --sample-length 60 --threads 1';
sub train {
    my ($status, $out, $err) = run(300, "$program $small @_");
    my ($hash) = $out =~ /^sha256 (\w+)/m;
    my ($loss) = $out =~ /validation loss ([0-9.]+) nats/;
    my ($activations) = $out =~ /^\s+activations\s+([0-9.]+) (?:kB|MB)/m;
    my ($text) = $out =~ /^---- sample at step \d+ ----\n(.*?)\n----$/ms;
    return { status => $status, hash => $hash || 'none', loss => $loss || 99, activations => $activations || 0, text => $text || '', out => $out, err => $err };
}

my $steps = sanitized() ? 10 : 60;
my ($wide, $narrow) = map { train("--steps $steps --precision $_") } qw(fp32 bf16);
ok(abs($wide->{loss} - $narrow->{loss}) < 0.02, "after $steps steps the loss in bf16 is $narrow->{loss}, in fp32 $wide->{loss}") or diag($narrow->{err});
isnt($narrow->{hash}, $wide->{hash}, 'they are different recipes');
like($narrow->{out}, qr/^layout .*exact fp32 sums of bf16/m, 'the banner says how it computes');
cmp_ok($narrow->{activations}, '<', 0.85 * $wide->{activations}, "activations need $narrow->{activations} instead of $wide->{activations}");
my $plain = train("--steps $steps --precision bf16 --no-cache --compile on");
is($plain->{hash}, $narrow->{hash}, 'compiled, it has the same hash');
is($plain->{text}, $narrow->{text}, 'and draws the same text without a cache');
cmp_ok($plain->{activations}, '<', 0.9 * $narrow->{activations}, "and needs $plain->{activations}");

# ---- checkpoints ----
my $want = train('--steps 6 --precision bf16')->{hash};
train("--steps 6 --precision bf16 --checkpoint $tmp/narrow --checkpoint-every 2 --keep 0 --ranks 2 --zero 2");
is(train("--steps 6 --precision bf16 --checkpoint $tmp/narrow --resume-step 2 --ranks 3 --compile on")->{hash}, $want, 'a checkpoint goes on in another layout');
my $other = train("--steps 8 --precision fp32 --checkpoint $tmp/narrow");
ok($other->{status} && $other->{err} =~ /precision/, 'and is refused in another precision') or diag($other->{err});

# ---- the loss scale of fp16 ----
my $half = train("--steps $steps --precision fp16");
ok(abs($wide->{loss} - $half->{loss}) < 0.02, "after $steps steps the loss in fp16 is $half->{loss}") or diag($half->{err});
like($half->{out}, qr/^layout .*exact fp32 sums of fp16/m, 'the banner says so');
sub column { my ($file, $name) = @_; return join ' ', map { /"$name":([^,}]+)/ ? $1 : () } split /\n/, slurp($file) }
my $wild = '--data ' . corpus(20000) . " --model nano --warmup 2 --validation 0 --sample-length 0 $Dt::recipe{fp16}";
sub wild { my ($status, $out, $err) = run(300, "$program $wild @_"); return { status => $status, hash => $out =~ /^sha256 (\w+)/m ? $1 : $err, err => $err } }
my $whole = wild("--metrics $tmp/whole.json");
is(column("$tmp/whole.json", 'skipped'), '1 2 2 3 3 3', 'steps that overflow are skipped and counted');
is(column("$tmp/whole.json", 'loss_scale'), '32768 16384 16384 8192 8192 8192', 'each halves the scale');
like(column("$tmp/whole.json", 'norm'), qr/^null null \d\S* null \d/, 'and has no norm');
wild("--checkpoint $tmp/half --checkpoint-every 1 --keep 0 --ranks 2");
for my $step (4, 2) {
    is(wild("--checkpoint $tmp/half --keep 0 --resume-step $step --ranks 4 --ep 2")->{hash}, $whole->{hash}, "resumed after step $step, it ends with the same bits");
}
my $fixed = wild("--loss-scale 8192 --metrics $tmp/fixed.json");
is(column("$tmp/fixed.json", 'loss_scale'), join(' ', ('8192') x 6), 'a fixed scale stays');
is($fixed->{status}, 0, 'and trains');
my $none = train("--steps 8 --precision fp16 --loss-scale 1 --learning-rate 1e6 --clip 0 --optimizer sgd");
ok($none->{status} && $none->{err} =~ /not finite: lower --learning-rate/, 'with a scale of 1, an overflow is an error') or diag($none->{err});
for (['--loss-scale 3 --precision fp16', qr/a power of two, 1 to 16777216/], ['--loss-scale 1024', qr/it is for --precision fp16/],
     ['--precision fp8', qr/choose one of fp32,bf16,fp16/]) {
    my $bad = train("--steps 2 $_->[0]");
    ok($bad->{status} && $bad->{err} =~ $_->[1], "refused: $_->[0]") or diag($bad->{err});
}
# ---- fast numerics (R19) ----
my $quick = '--steps 20 --precision bf16 --sample-length 0 --numerics fast';
my $exact = train('--steps 20 --precision bf16 --sample-length 0');
my $fast = train("$quick --metrics $tmp/fast.json --checkpoint $tmp/fast --checkpoint-every 10 --keep 0");
my ($how) = $fast->{out} =~ /^fast     products by (.*?); every other sum is exact$/m;
ok($how, 'the banner says how products are made: ' . ($how || 'not')) or diag($fast->{out});
is(train("$quick --threads 2 --quiet")->{hash}, $fast->{hash}, 'run again it has the same bits');
ok(abs($fast->{loss} - $exact->{loss}) < 0.02, "its loss is $fast->{loss}, that of exact numerics $exact->{loss}");
if (($how || '') =~ /fp32/) {
    is($fast->{hash}, $exact->{hash}, 'without 16-bit products they are the exact bits');
}
else {
    isnt($fast->{hash}, $exact->{hash}, 'these are not the exact bits');
    my ($far) = $fast->{out} =~ /^fast     the first batch differs from exact numerics by \S+ of the loss, (\S+) of the largest gradient$/m;
    ok(defined $far && $far > 0 && $far < 0.02, 'how far they are is printed: ' . ($far || 'not'));
    my ($logged) = column("$tmp/fast.json", 'gradients_from_exact');
    ok(defined $logged && abs($logged - $far) < 0.1 * $far, '  and logged, once');
}
my ($manifest) = glob "$tmp/fast/step-000000010/manifest.json";
like(slurp($manifest), qr/"products": *"by \Q$how\E"/, 'and is in the manifest');
is(train("$quick --checkpoint $tmp/fast --keep 0 --resume-step 10")->{hash}, $fast->{hash}, 'resumed, it ends with the same bits');
my $mixed = train("--steps 20 --precision bf16 --sample-length 0 --checkpoint $tmp/fast");
ok($mixed->{status} && $mixed->{err} =~ /was made with --numerics fast, this run has exact/, 'an exact run does not go on with it') or diag($mixed->{err});
is(train('--steps 3 --numerics fast')->{hash}, train('--steps 3')->{hash}, 'fast numerics of fp32 on one node are the exact ones');
done_testing();
