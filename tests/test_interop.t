#!/usr/bin/env perl
# Where transformers are installed: directories that they write load here, those that are written here load there, and
# the logits agree within 1e-5 of the largest; safetensors.numpy reads every file of a checkpoint.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my @candidates = grep { defined $_ && have($_) } $ENV{PYTHON}, 'python3', '/usr/bin/python3', 'python';
my ($python) = grep { (run(120, "'$_' -c 'import torch, transformers, safetensors.torch, safetensors.numpy; " .
    "assert tuple(map(int, transformers.__version__.split(\".\")[:2])) >= (4, 43)'"))[0] == 0 } @candidates;
plan skip_all => @candidates ? "no Python here has torch, safetensors and transformers 4.43 or newer (tried @candidates)"
                             : 'no Python here' unless $python;
my $tool = "'$python' '$root/tests/make_interop.py'";

# tests/test_interop.c with directories as arguments compares logits.
sub compare {
    my $program = "$build/test_interop";
    if (!-x $program || -M $program > -M "$root/dtrain.h" || -M $program > -M "$root/tests/test_interop.c") {
        my $cc = $ENV{CC} || 'cc';
        $program = "$tmp/test_interop";
        -x $program or is((run(600, "$cc -std=gnu11 -O1 -DDT_DEBUG -I$root $root/tests/test_interop.c -o $program -lm -lpthread"))[0],
                          0, 'the program that computes logits here');
    }
    my ($status, $out, $error) = run(300, "$program @_");
    is($status, 0, "the same logits: @{[map { m{([^/]+/[^/]+)$} } @_]}");
    diag("$out$error") if $status;
    note($_) for grep { /error|largest/ } split /\n/, $out;
}

# ---- written by transformers ----

my ($status, $out, $error) = run(300, "$tool live $tmp/live");
is($status, 0, 'transformers write six models') or diag($error);
compare(map { "$tmp/live/$_" } split ' ', $out);

# ---- written here ----

my $data = corpus(20000);
my $small = "--data $data --steps 2 --batch 8 --sequence 32 --sample-length 0 --learning-rate 0.03 --warmup 0 --quiet";
my %model = (gpt2 => '--model nano', llama => '--model llama-nano', tied => '--model llama3.2-1B --layers 2 --width 64 --heads 4 --kv-heads 2 --hidden 96');
my @written;
for my $name (sort keys %model) {
    my ($status, undef, $error) = run(120, trainer() . " $small $model{$name} --checkpoint $tmp/$name --checkpoint-kind full");
    is($status, 0, "a checkpoint of $name") or diag($error);
    push @written, "$tmp/$name/step-000000002";
}
($status, undef, $error) = run(300, "$tool expect 32 @written");
is($status, 0, 'transformers load them as they are') or diag($error);
compare(@written);

# A run that begins with them takes the weights: another tensor of the file, another hash.
my %hash;
for my $layout ('', '--ranks 2 --zero 3', '--ranks 2 --pp 2', '--ranks 2 --tp 2') {
    my ($status, $out, $error) = run(120, trainer() . " $small --model $written[1] --weights $written[1] --tensor-shards 2 $layout");
    is($status, 0, "from them $layout") or diag($error);
    $hash{$1}++ if $out =~ /sha256 (\w+)/;
}
is(scalar keys %hash, 1, 'one hash in all layouts');

# ---- safetensors.numpy ----

is((run(120, trainer() . " $small --model nano --optimizer adamw8 --ema 0.5 --checkpoint $tmp/sharded --ranks 2"))[0], 0, 'a sharded checkpoint');
my @files = map { glob "$_/*.safetensors" } @written, "$tmp/sharded/step-000000002";
($status, $out, $error) = run(120, "$tool read @files");
is($status, 0, 'safetensors.numpy reads all ' . @files . ' files') or diag($error);
is(scalar(grep { / [1-9]\d*$/ } split /\n/, $out), scalar @files, 'each with tensors');
done_testing();
