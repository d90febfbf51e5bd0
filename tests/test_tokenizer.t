#!/usr/bin/env perl
# Tokenizers in the trainer: a text, the same text as token ids, and two ranks give one hash; samples are decoded; bad
# input is refused. A few seconds of fuzzing under the sanitizers. Where the package `tokenizers` is installed: it loads what
# dtrain.h saved and gives the same ids, and the golden files are what it computes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $cc = $ENV{CC} || 'cc';
my $golden = "$root/tests/golden/tokens";
my $program = trainer();
my $maker = "$build/test_tokenizer";
if (!-x $maker || -M $maker > -M "$root/dtrain.h") {
    $maker = "$tmp/test_tokenizer";
    my ($status, undef, $err) = run(600, "$cc -std=gnu11 -O0 -DDT_DEBUG -I$root -I$root/tests $root/tests/test_tokenizer.c -o $maker -lm -lpthread");
    die "cannot build test_tokenizer: $err" if $status;
}
mkdir "$tmp/made";
is((run_in($root, 60, "$maker $tmp/made"))[0], 0, 'two tokenizers are learned and saved');

# ---- the trainer ----

my $small = '--model nano --batch 8 --sequence 32 --steps 4 --validation 0.1 --threads 1';
sub trained {
    my ($status, $out, $err) = run(120, "$program $small @_");
    diag($err) if $status;
    return ($out =~ /^sha256 (\w+)/m ? $1 : "none ($status)", $out);
}
my $threads = ($ENV{DT_SANITIZE} || '') =~ /thread/ ? '--launch threads' : '';
my $with = "--tokenizer $tmp/made/gpt2";
my ($hash, $out) = trained("--data $golden/train.txt $with --sample-length 77");
like($out, qr/vocabulary 500:/, 'the vocabulary is the tokenizer\'s');
my ($sample) = $out =~ /^---- sample at step 4 ----\nThe (.*)\n----$/ms;
is(length($sample || ''), 77, 'a sample of 77 bytes') or diag($out);
is((trained("--data $tmp/made/tokens.bin $with --quiet"))[0], $hash, 'the text as token ids: the same hash');
is((trained("--data $golden/train.txt $with --quiet --ranks 2 $threads"))[0], $hash, 'on two ranks: the same hash');
isnt((trained("--data $golden/train.txt --quiet"))[0], $hash, 'as bytes: another hash');

sub refused {
    my ($name, $options, $want, $pattern) = @_;
    my ($status, undef, $err) = run(60, "$program $small --quiet $options");
    ok($status == $want && $err =~ $pattern, $name) or diag("status $status\n$err");
}
spew("$tmp/broken.json", '{"model": {');
spew("$tmp/cut.json", substr(slurp("$golden/gpt2.json"), 0, 9000));
refused('no such tokenizer', "--data $golden/train.txt --tokenizer nowhere", 1, qr/cannot read nowhere .*check the name/);
refused('broken JSON', "--data $golden/train.txt --tokenizer $tmp/broken.json", 1, qr/broken\.json, line 1, byte 11/);
refused('a file that is cut', "--data $golden/train.txt --tokenizer $tmp/cut.json", 1, qr/cut\.json, line 1, byte 9000/);
refused('a directory without one', "--data $golden/train.txt --tokenizer $tmp", 1, qr/has no tokenizer\.json/);
spew("$tmp/high.bin", pack('l<256', 20240520, 1, 3000, (0) x 253) . pack('S<*', map { $_ % 600 } 1 .. 3000));
refused('ids of another tokenizer', "--data $tmp/high.bin $with", 2, qr/ids up to 599, the tokenizer .* up to 499: name the one/);

# ---- fuzzing ----

my $flags = '-fsanitize=address,undefined -fno-sanitize-recover=all';
my ($status, undef, $err) = run(600, "$cc -std=gnu11 -g -O1 -DDT_DEBUG $flags -I$root $root/tests/fuzz_tokenizer.c -o fuzz -lm -lpthread");
SKIP: {
    skip "no sanitizers here: $err", 1 if $status;
    my $seconds = full() ? 600 : 4;
    my ($bad, $said, $error) = run($seconds + 120, "$tmp/fuzz $seconds");
    ok($bad == 0 && $said =~ /nothing found/, "fuzzing: $said") or diag($error);
}

# ---- the reference ----

my @candidates = grep { defined $_ && have($_) } $ENV{PYTHON}, 'python3', '/usr/bin/python3';
my ($python) = grep { (run(60, "'$_' -c 'import tokenizers, tiktoken'"))[0] == 0 } @candidates;
SKIP: {
    skip 'no Python here has tokenizers and tiktoken', 2 unless $python;
    ($status, $out, $err) = run(120, "'$python' '$root/tests/make_golden_tokens.py' --load '$tmp/made' '$golden'");
    is($status, 0, "the reference loads what was saved and gives the same ids: $out") or diag($err);
    skip 'computing the golden files again: only with --full', 1 unless full();
    skip 'the golden files need tokenizers 0.20.3', 1 if (run(60, "'$python' -c 'import tokenizers; exit(tokenizers.__version__ != \"0.20.3\")'"))[0];
    ($status, $out, $err) = run(300, "'$python' '$root/tests/make_golden_tokens.py' --check '$golden'");
    is($status, 0, 'the golden files are what it computes') or diag("$out$err");
}
done_testing();
