#!/usr/bin/env perl
# A checkpoint in use, by examples/tools/generate: of either kind, in several layouts, without the training text, it draws the
# text that the trainer drew, and its loss is the trainer's; a directory of Hugging Face; stop strings; wrong command lines.
# By tests/predicts.c: what a program trained, another one predicts with the same bits, in any layout, and a third one
# begins with.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $train = trainer();
my $program = linked_with('library', "$root/examples/tools/generate.c", "$tmp/generate");
my $text = "$root/tests/golden/tokens/train.txt";
my $threads = ($ENV{DT_SANITIZE} || '') =~ /thread/ ? '--launch threads' : '';
my $recipe = "--data $text --steps 12 --batch 8 --sequence 32 --learning-rate 5e-3 --validation 0.5 --eval-batches 0 --sample-length 60 --threads 1";

# Trains; returns the text of the sample behind its prompt, as it was printed, and the validation loss.
sub trained {
    my ($folder, $options) = @_;
    my ($status, $out, $err) = run(120, "$train $recipe --checkpoint $folder $options");
    die "training: $err" if $status;
    my ($sample) = $out =~ /^---- sample at step 12 ----\nThe (.*)\n----$/ms;
    return ($sample, $out =~ /validation loss ([\d.]+)/);
}
# What the program prints for a checkpoint; control characters as the trainer shows them.
sub continued {
    my ($status, $out, $err) = run(60, "$program @_");
    diag($err) if $status;
    $out =~ s/\n\z//;
    $out =~ s/^The //;
    return $out =~ s/[\x00-\x08\x0b-\x1f]/?/gr;
}

my @models = (['full', 'GPT-2', '--model nano', ['--ranks 2 --pp 2']],
    ['sharded', 'Llama with tensor shards', '--model llama-nano --tensor-shards 2 --ranks 2 --zero 3', ['', '--ranks 2 --tp 2', '--ranks 4 --tp 2 --pp 2']],
    ['sharded', 'experts and a tokenizer', "--model nano --experts 4 --tokenizer $root/tests/golden/tokens/gpt2.json", ['--no-cache']],
    ['full', 'an average of the weights', '--model nano --ema 0.9 --evaluate-ema', ['']]);
for (@models) {
    my ($kind, $what, $options, $layouts) = @$_;
    my $place = "$tmp/" . ($what =~ s/\W/-/gr);
    my ($sample, $loss) = trained($place, "$options --checkpoint-kind $kind $threads");
    is(continued("$place --prompt 'The ' --bytes 60 $_ $threads"), $sample, "$what, $kind" . ($_ && ", $_") . ': the text that the trainer drew') for @$layouts;
    next if $what =~ /tokenizer/;
    my ($status, $out) = run(60, "$program eval $place --data $text");
    my ($tokens, $bytes, $nats, $perplexity, $bits) = $out =~ /^(\d+) tokens, (\d+) bytes: loss ([\d.]+) nats per token, perplexity ([\d.]+), ([\d.]+) bits per byte$/;
    ok(!$status && $tokens == $bytes && abs($nats - $loss) < 0.2 && abs($perplexity - exp $nats) < 0.02 && abs($bits - $nats / log 2) < 1e-3,
        "  its loss on the whole text is near that on a half: " . ($out =~ s/\n//r)) or diag("validation loss $loss");
}

# The same numbers in any layout.
my $place = "$tmp/Llama-with-tensor-shards";
my (undef, $alone) = run(60, "$program eval $place --data $text");
my (undef, $many) = run(60, "$program eval $place --data $text --ranks 4 --tp 2 --zero 1 $threads");
is($many, $alone, 'evaluated on 4 ranks: the same loss');

is((run(60, "$program eval --checkpoint $place --data $text"))[1], $alone, '--checkpoint names it, too');
my ($used, $out, $which) = run(60, "$program eval --data $text --default $place");
ok(!$used && $out eq $alone && $which =~ /^generate: using \Q$place\E$/m && $which =~ /^left out: the first token/m, 'or --default, which is said, and so is what is left out');
spew("$tmp/short", 'The end');
like((run(60, "$program eval $place --data $tmp/short"))[1], qr/^6 tokens, 6 bytes: loss /, 'a text shorter than a sequence is measured');

# Hugging Face's form: without the manifest it is a directory like any other program's.
my $hub = "$tmp/hub";
rename "$tmp/GPT-2/step-000000012", $hub or die "$hub: $!";
unlink "$hub/manifest.json";
my $greedy = continued("$hub --prompt 'The ' --bytes 40 --temperature 0");
my $words = continued("$hub --prompt 'The ' --bytes 300 --seed 3");
like($words, qr/\w/, 'a directory with config.json and model.safetensors');
my ($word) = substr($words, 20) =~ /(\w\w)/;
is(continued("$hub --prompt 'The ' --bytes 300 --seed 3 --stop '$word' --stop zzzz"), substr($words, 0, index $words, $word), "the text ends before a stop string, $word");
# The text ends where the first of several strings begins, in any order of theirs, though one is complete before another;
# strings that only begin, that are longer than the text, or that tokens cut.
sub quoted { return join ' ', map { "--stop '" . s/'/'\\''/gr . "'" } @_ }
sub ends { my $at = length $_[0]; for (@_[1 .. $#_]) { my $i = index $_[0], $_; $at = $i if $i >= 0 && $i < $at } return substr $_[0], 0, $at }
my $cut = "$tmp/experts-and-a-tokenizer";
for my $from ($hub, $cut) {
    my $all = `$program $from --prompt 'The ' --bytes 200 --seed 3 2>/dev/null` =~ s/^The //r =~ s/\n\z//r;
    my $part = sub { substr $all, $_[0], $_[1] };
    for (grep { !/[\0\n]/ } map { join "\t", @$_ } [$part->(31, 2), $part->(30, 4)], [$part->(40, 3), $part->(41, 1)], [$part->(30, 4) . 'zzzz', $part->(32, 3)],
         [$part->(150, 50) . 'z'], ['y' x 5000, $part->(199, 1)], [$part->(0, 1)]) {
        my @stop = split /\t/;
        for my $list (\@stop, [reverse @stop]) {
            my $got = `$program $from --prompt 'The ' --bytes 200 --seed 3 @{[quoted(@$list)]} 2>/dev/null`;
            is($got, 'The ' . ends($all, @stop) . "\n", 'the text ends before the first of ' . @stop . ' strings');
        }
    }
}
is(continued("$hub --prompt 'The ' --bytes 40 --samples 2 --temperature 0"), "$greedy\n----\nThe $greedy", 'two samples of the most likely');
spew("$tmp/prompt", "The \n");
isnt(continued("$hub --prompt-file $tmp/prompt --bytes 40 --seed 1"), continued("$hub --prompt 'The ' --bytes 40 --seed 2"), 'another seed, another text');
spew("$tmp/long", 'x' x 500 . 'The end of ');
spew("$tmp/tail", substr 'x' x 500 . 'The end of ', -1023);
is(continued("$hub --prompt-file $tmp/long --bytes 10 --temperature 0") =~ s/.* of//sr, continued("$hub --prompt-file $tmp/tail --bytes 10 --temperature 0") =~ s/.* of//sr, 'of a long prompt its end counts');

for (["$tmp/none --prompt x", 1, qr/cannot read .*none/], ["$tmp --prompt x", 1, qr/holds neither model.safetensors nor .* nor a checkpoint/], [$hub, 2, qr/give one of --prompt/], ["$hub --prompt ''", 2, qr/the prompt is empty/],
    ["$hub y --prompt x", 2, qr/what is 'y'/], ["$hub --checkpoint $hub --prompt x", 2, qr/what is '/], ['--prompt x', 2, qr/no checkpoint is named. Usage/],
    ['--default "" --prompt x', 2, qr/no checkpoint is named/], ["eval $hub", 2, qr/eval needs --data/], ["eval $hub --data $tmp/none", 1, qr/cannot (read|find) .*none/],
    ["$hub --prompt x --bytes -1", 2, qr/--bytes -1: choose a whole number/], ["$hub --prompt x --stop ''", 2, qr/stop string is empty/],
    ["$hub --prompt-file $tmp", 1, qr/is not a text/], ["$hub --prompt-file $hub/model.safetensors", 1, qr/is not a text/],
    ["$hub --prompt x --bytes 3 >/dev/full", 1, qr/cannot write the output/],
    ["$hub --prompt x --tp 3", 2, qr/--tp 3/], ["$hub --prompt x --top-k -1", 2, qr/--top-k/], ["$hub --prompt x --width 3 --bogus", 2, qr/--bogus/]) {
    my ($command, $want, $says) = @$_;
    my ($status, $out, $err) = run(60, "$program $command");
    ok($status == $want && $err =~ $says, "refused: $command") or diag("status $status: $err");
}

# ---- trained in one program, used in another ----

my $predicts = linked_with('library', "$root/tests/predicts.c", "$tmp/predicts");
for (['own', '--ranks 2 --zero 3', '--ranks 2 --pp 2', '--ranks 3 --checkpoint-kind full'], ['own', '--checkpoint-kind full --precision bf16', '--ranks 2'],
     ['tokens', '--ranks 2 --pp 2', '--ranks 2'], ['gpt2', '--tensor-shards 2 --ranks 4 --tp 2 --pp 2', '', '--ranks 2 --tp 2'],
     ['gpt2', '--context-shards 2 --ranks 2 --cp 2', '--ranks 2 --cp 2'], ['llama', '--tensor-shards 2 --ranks 2 --zero 3 --precision bf16', '', '--ranks 2 --tp 2'],
     ['experts', '--ranks 2 --ep 2', '', '--ranks 2 --ep 2'], ['gpt2', '--ema 0.9 --evaluate-ema --checkpoint-kind full', '--ranks 2']) {
    my ($model, $trained, @used) = @$_;
    my $there = "$tmp/of_$model" . ($trained =~ s/\W+/-/gr);
    my ($status, $want, $err) = run(120, "$predicts $model train $there --data $text --threads 1 $trained $threads");
    like($want, qr/^1: \w{16}\n7: \w{16}\n1000: \w{16}\n\z/, "$model, trained with $trained") or diag($err);
    for (@used) {
        my ($status, $out, $err) = run(120, "$predicts $model use $there --threads 1 $_ $threads");
        is($out, $want, "  used" . ($_ && " with $_") . ': the same predictions') or diag($err);
    }
    next if $trained =~ /ema/; # training begins with the weights, not with their average
    my (undef, $first, $said) = run(120, "$predicts $model from $there/step-000000005 --data $text --threads 1");
    is($first, $want, '  a trainer of its recipe begins with its weights') or diag($said);
}
my $owned = "$tmp/of_own-ranks-2-zero-3";
for (['wide', qr/of another model: hidden.one.weight has shape \(5,32\) here, and there \(5,24\)/], ['renamed', qr/it has out.two.weight, which this model lacks/],
     ['more', qr/out.more.weight has shape \(24,24\) here, and there no place/], ['tokens', qr/words: embed: needs a table/],
     ['gpt2', qr/of custom segments, which it does not contain: call dt_predictor_open with them/]) {
    my ($model, $says) = @$_;
    my ($status, $out, $err) = run(60, "$predicts $model use $owned");
    ok($status == 2 - ($model eq 'tokens') && $err =~ $says, "segments of another model, $model: refused") or diag("status $status: $out$err");
}
my ($refused, undef, $why) = run(60, "$predicts own use $tmp/of_gpt2-context-shards-2-ranks-2-cp-2");
ok($refused == 2 && $why =~ /of a model of a family, which it describes: give no segments/, 'segments for a family: refused') or diag($why);
done_testing();
