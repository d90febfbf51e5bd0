#!/usr/bin/env perl
# Operands and activations in 16 bits (R18): a run ends where the one in fp32 ends, to 0.02 nats; memory plans say what it
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
my $plain = train("--steps $steps --precision bf16 --no-cache --compile on --verify-compiler");
is($plain->{hash}, $narrow->{hash}, 'compiled, it has the same hash');
is($plain->{text}, $narrow->{text}, 'and draws the same text without a cache');
cmp_ok($plain->{activations}, '<', 0.9 * $narrow->{activations}, "and needs $plain->{activations}");

# ---- checkpoints ----
my $want = train('--steps 6 --precision bf16')->{hash};
train("--steps 6 --precision bf16 --checkpoint $tmp/narrow --checkpoint-every 2 --keep 0 --ranks 2 --zero 2");
is(train("--steps 6 --precision bf16 --checkpoint $tmp/narrow --resume-step 2 --ranks 3 --compile on")->{hash}, $want, 'a checkpoint goes on in another layout');
my $other = train("--steps 8 --precision fp32 --checkpoint $tmp/narrow");
ok($other->{status} && $other->{err} =~ /precision/, 'and is refused in another precision') or diag($other->{err});
done_testing();
