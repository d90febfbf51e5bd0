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

my $golden = "$root/tests/golden/tokens";
my $program = trainer();
my $maker = built('open', 'tests/test_tokenizer.c', 'test_tokenizer');
mkdir "$tmp/made";
is((run_in($root, 60, "$maker $tmp/made"))[0], 0, 'two tokenizers are learned and saved');

# ---- the trainer ----

my ($status, $err);
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

# ---- a tokenizer goes through training and comes out as it was ----

# Added tokens that GPT-2's spelling of bytes cannot carry, or that a plain writer would change.
sub circle {
    my ($name, $from, @added) = @_;
    my $folder = "$tmp/$name";
    mkdir $folder;
    my $json = slurp("$golden/$from");
    my $list = join ",", map { sprintf '{"id":%d,"content":"%s","special":%s}', 900 + $_, $added[$_], $_ % 2 ? 'true' : 'false' } 0 .. $#added;
    $json =~ s/"added_tokens":\s*\[/'"added_tokens":[' . $list . ($json =~ m{"added_tokens":\s*\[\s*\]} || !@added ? '' : ',')/e or die;
    spew("$folder/tokenizer.json", $json . (" \n" x ($name eq 'large' ? 200_000 : 1)));
    spew("$folder/$_", "$_ of $name\n\xff\0x") for qw(tokenizer_config.json special_tokens_map.json added_tokens.json chat_template.jinja vocab.json merges.txt);
    my $text = join '', map { my $a = $_; $a =~ s/\\n/\n/g; $a =~ s/\\"/"/g; "the $a lamp${a}x\n" } grep { !/\\u/ } @added;
    spew("$folder/text", $text x 40 . slurp("$golden/train.txt"));
    my ($first) = trained("--data $folder/text --tokenizer $folder --quiet --checkpoint $folder/runs --checkpoint-kind full --steps 2");
    my ($step) = glob("$folder/runs/step-*");
    is(join(' ', grep { slurp("$folder/$_") ne slurp("$step/$_") } qw(tokenizer.json tokenizer_config.json special_tokens_map.json
        added_tokens.json chat_template.jinja vocab.json merges.txt)), '', "$name: all files of the tokenizer are saved as they were");
    is((trained("--data $folder/text --tokenizer $step/tokenizer.json --quiet --steps 2"))[0], $first, "$name: what was saved gives the same ids");
    return $folder;
}
circle('plain', 'gpt2.json');
circle('spaces', 'gpt2.json', '    ', '  ', '\\n\\n', '\\n', '\\t\\t');
circle('words', 'llama3.json', 'lamp', 'am', '\\"q\\"', '\\u00e9\\u0301', '\\ud83d\\ude00 x', '\\u0000');
my $circle = circle('large', 'gpt2.json', '<|im_start|>', ' the');
my $again = "--data $golden/train.txt --checkpoint $circle/more --validation 0 --schedule constant";
trained("$again --tokenizer $circle --quiet --steps 2");
spew("$tmp/renamed.json", slurp("$circle/tokenizer.json") =~ s/im_start/im_begin/r);
refused('another tokenizer with the same ids', "$again --tokenizer $tmp/renamed.json --steps 3", 2, qr/step-0+2 is of a run with another tokenizer/);
like((trained("$again --tokenizer $circle/tokenizer.json --quiet --steps 3"))[0], qr/^\w{64}$/, 'the same file elsewhere: resumed');

# ---- the program that learns ----

my $tool = linked_with('library', "$root/examples/tools/tokenizer.c", "$tmp/tokenizer");
my ($text) = ("$golden/train.txt");
($status, $out, $err) = run(60, "$tool $text -o $tmp/own/deep --vocabulary 500 --special '<|endoftext|>,<|x|>' --shards $tmp/own/t.bin --shard-tokens=5000");
is($status, 0, 'learns and encodes') or diag($err);
is(slurp("$tmp/own/deep/tokenizer.json"), slurp("$tmp/made/gpt2/tokenizer.json"), 'the same file as by the functions');
my ($next) = $out =~ /^next: .*run (--data .* --tokenizer .*)$/m;
is((trained("$next --quiet"))[0], $hash, 'the line that it ends with trains') or diag($out);
is_deeply([map { s/.*own.//r } glob("$tmp/own/t*")], [map { "t_00000$_.bin" } 0 .. 3], 'four files of ids');
spew("$tmp/it's a text", slurp($text));
(undef, $out) = run(60, qq($tool "$tmp/it's a text" -o "$tmp/own/it's" --vocabulary 300));
is((run(10, "printf '%s\n' " . ($out =~ /^next: \.\/build\.sh run (.*)/m)[0]))[1], "--data\n$tmp/it's a text\n--tokenizer\n$tmp/own/it's\n", 'its names are words for a shell');
for (['a tokenizer that is there', "$text -o $tmp/own/deep", 1, qr/is there already/],
     ['ids that are there', "$text --tokenizer $tmp/own/deep --shards $tmp/own/t.bin --shard-tokens 5000", 1, qr/is there already/],
     ['no text', "-o $tmp/x", 2, qr/name a text/], ['no name', "$text -o ''", 2, qr/a value is missing after -o/], ['no such text', "$tmp/none -o $tmp/x", 1, qr/cannot read/],
     ['a directory', "$tmp -o $tmp/x", 1, qr/not a plain file/], ['an option with a typing error', "$text -o $tmp/x --vocabulry 3", 2, qr/no option --vocabulry/],
     ['255 ids', "$text -o $tmp/x --vocabulary 255", 2, qr/--vocabulary is a whole number of 256 or more, not 255/],
     ['too many ids', "$text -o $tmp/x --vocabulary 1048577", 1, qr/use 257 .* to 1048576/], ['a rule', "$text -o $tmp/x --rule gpt5", 2, qr/--rule is/],
     ['neither', $text, 2, qr/give either -o DIR/], ['a special token', "$text -o $tmp/x --special x", 1, qr/2 or more printable/],
     ['one twice', "$text -o $tmp/x --special aa,aa", 1, qr/named twice/]) {
    my ($name, $options, $want, $pattern) = @$_;
    my ($rc, undef, $said) = run(60, "$tool $options");
    ok($rc == $want && $said =~ $pattern, "refused: $name") or diag("status $rc\n$said");
}

# ---- fuzzing ----

fuzz('tokenizer', full() ? 600 : 4);

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
