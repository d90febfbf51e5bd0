#!/usr/bin/env perl
# Weights that come and go. Runs that begin with a checkpoint's weights, in every layout, resumed, and not from others. Where transformers are installed: directories that they write load here, those that
# are written here load there, and the logits agree within 1e-5 of the largest; safetensors.numpy reads every file of a
# checkpoint.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use JSON::PP;
use Test::More;

my $data = corpus(20000);
my $small = "--data $data --steps 2 --batch 8 --sequence 32 --sample-length 0 --learning-rate 0.03 --warmup 0 --quiet";
sub hash { my ($status, $out, $error) = run(120, trainer() . " @_"); return $out =~ /sha256 (\w+)/ ? $1 : "status $status: $error" }
sub refused {
    my ($words, $what, @options) = @_;
    my ($status, $out, $error) = run(120, trainer() . " @options");
    is($status, 2, "$what: refused");
    like($error, $words, "$what: the sentence");
}

# ---- written here ----

my %model = (gpt2 => '--model nano', llama => '--model llama-nano', mistral => '--model llama-nano --head-width 24 --window 40',
             qwen2 => '--model llama-nano --qkv-bias --rope-scaling linear --rope-factor 2', qwen3 => '--model llama-nano --qk-norm --head-width 24 --qkv-bias --o-bias',
             biases => '--model llama-nano --qkv-bias --o-bias --mlp-bias --rope-scaling yarn --rope-factor 4 --rope-context 16 --rope-low 1 --rope-high 32', tied => '--model llama3.2-1B --layers 2 --width 64 --heads 4 --kv-heads 2 --hidden 96');
my @written;
for my $name (sort keys %model) {
    my ($status, undef, $error) = run(120, trainer() . " $small $model{$name} --checkpoint $tmp/$name --checkpoint-kind full");
    is($status, 0, "a checkpoint of $name") or diag($error);
    push @written, "$tmp/$name/step-000000002";
}

# ---- first weights ----

for my $from (grep { m{/(gpt2|llama|qwen3)/} } @written) {
    my ($name) = $from =~ m{([^/]+)/step};
    my $start = "$small --schedule constant --model $from --weights $from --tensor-shards 2 --ema 0.5";
    my %hash = map { hash("$start $_") => $_ } '', '--ranks 2 --zero 3', '--ranks 2 --pp 2', '--ranks 2 --tp 2', '--ranks 3', '--ranks 2 --tp 2 --sequence-parallel --compile on';
    is(join(' ', map { length } keys %hash), 64, "$name: one hash in all layouts") or diag(%hash);
    unlike(hash($start =~ s/--weights \S+//r), qr/(??{(keys %hash)[0]})/, "$name: which is not that of drawn weights");
    my $keep = "--checkpoint $tmp/from_$name";
    is(hash("$start $keep"), (keys %hash)[0], "$name: saved");
    is(hash("$start $keep --steps 4"), hash("$start --steps 4"), "$name: and resumed");
    refused(qr/is of a run with other initial weights: give the same/, "$name, without them", $start =~ s/--weights \S+//r, "$keep --steps 4");
    run(60, "mkdir $tmp/other_$name && cp $from/config.json $from/model.safetensors $tmp/other_$name");
    my $bytes = slurp("$tmp/other_$name/model.safetensors");
    substr($bytes, -2, 1) = chr(ord(substr($bytes, -2, 1)) ^ 1);
    spew("$tmp/other_$name/model.safetensors", $bytes);
    refused(qr/is of a run with other initial weights/, "$name, from others", $start =~ s/--weights \S+/--weights $tmp\/other_$name/r, "$keep --steps 4");
}

# ---- a tokenizer goes with the weights ----

my $program = linked_with('library', "$root/examples/tools/checkpoint.c", "$tmp/checkpoint");
my ($status, $out, $error);
like(hash("$small --model nano --tokenizer $root/tests/golden/tokens/gpt2.json --checkpoint $tmp/words"), qr/^\w{64}$/,
     'a checkpoint with a tokenizer');
is((run(60, "$program convert $tmp/words $tmp/words.full full"))[0], 0, 'converted');
is((run(60, "$program verify $tmp/words.full"))[0], 0, 'whole');
($status, $out) = run(60, "$program show $tmp/words.full");
like($out, qr/\b$_ .*sha256/, "$_ goes with it") for qw(tokenizer.json);
is(hash("$small --model $tmp/words.full/step-000000002 --weights $tmp/words.full/step-000000002 --tokenizer $tmp/words.full/step-000000002"),
   hash("$small --model $tmp/words.full/step-000000002 --weights $tmp/words.full/step-000000002 --tokenizer $root/tests/golden/tokens/gpt2.json"),
   'and is the same');

# ---- what training does not change ----

# The bytes of a tensor in a directory's model.safetensors, from row $from on.
sub rows {
    my ($folder, $name, $from) = @_;
    my $bytes = slurp("$folder/model.safetensors");
    my $header = decode_json(substr($bytes, 8, my $length = unpack('Q<', $bytes)));
    my ($begin, $end) = @{$header->{$name}{data_offsets}};
    return substr($bytes, 8 + $length + $begin + ($end - $begin) / $header->{$name}{shape}[0] * $from,
                  ($end - $begin) / $header->{$name}{shape}[0] * ($header->{$name}{shape}[0] - $from));
}
sub converted {
    my ($from, $to, $kind) = @_;
    my ($status, $out, $error) = run(60, "$program convert $from $to $kind");
    is($status, 0, "a checkpoint becomes $kind") or diag($error);
}
my $wpe = 'transformer.wpe.weight';
for my $name (qw(gpt2 tied)) {
    my ($base, $two) = ("$tmp/base_$name", 'step-000000002');
    is((run(120, trainer() . " $small $model{$name} --sequence 48 --checkpoint $tmp/long_$name --checkpoint-kind full; mkdir $base; " .
                 "cp $tmp/long_$name/$two/model.safetensors $base"))[0], 0, "$name: a model of 48 positions");
    my $config = slurp("$tmp/long_$name/$two/config.json");
    like($config, qr/"(n_positions|max_position_embeddings)": 48,/, "$name: says so");
    $config =~ s/null,\n  "eos_token_id": null/7,\n  "eos_token_id" :\t[1, 2],  "task": {"a": ["\\u00e4", null]}/;
    $config =~ s/"torch_dtype": "float32"/"dtype":"bfloat16"/ if $name eq 'tied';
    spew("$base/config.json", $config);
    $config =~ s/bfloat16/float32/;
    my $tune = "$small --schedule constant --model $base --weights $base --ema 0.5";
    like((run(120, trainer() . ' ' . ($tune =~ s/--quiet|--sequence \d+//gr)))[1], qr/sequences of 48 tokens/,
         "$name: 48 tokens unless another number is given");
    like((run(120, trainer() . ' ' . ($tune =~ s/--quiet//gr) . " --checkpoint $tmp/tuned_$name --checkpoint-kind full"))[1],
         qr/^sequence 32 tokens of the model's 48 positions/m, "$name: fewer are shown");
    my $parts = "$tune --checkpoint $tmp/parts_$name --checkpoint-async --ranks 2";
    is(hash("$parts --zero 1"), hash($tune), "$name: sharded");
    converted("$tmp/parts_$name", "$tmp/whole_$name", 'full');
    converted("$tmp/whole_$name", "$tmp/again_$name", 'sharded');
    converted("$tmp/again_$name", "$tmp/third_$name", 'full');
    converted("$tmp/tuned_$name", "$tmp/half_$name", 'bf16');
    is(hash("$parts --pp 2 --steps 4"), hash("$tune --steps 4"), "$name: resumed in another layout");
    converted("$tmp/parts_$name", "$tmp/later_$name", 'full');
    like(hash("$small --sequence 16 --model $tmp/third_$name/$two --weights $tmp/third_$name/$two --checkpoint $tmp/child_$name --checkpoint-kind full"),
         qr/^\w{64}$/, "$name: and trained again");
    for my $of (qw(tuned/2 whole/2 third/2 later/4 child/2)) {
        my ($run, $step) = split m{/}, $of;
        my $folder = sprintf "$tmp/${run}_$name/step-%09d", $step;
        is(slurp("$folder/config.json"), $config, "$name, $run: config.json as it was");
        next if $name eq 'tied';
        ok(rows($folder, $wpe, 32) eq rows($base, $wpe, 32), "$run: the table's other rows as they were");
        ok(rows($folder, $wpe, 0) ne rows($base, $wpe, 0), "$run: trained rows are others");
    }
    ok(rows("$tmp/whole_$name/$two", $wpe, 0) eq rows("$tmp/tuned_$name/$two", $wpe, 0), 'the same in both kinds') if $name eq 'gpt2';
    like(slurp("$tmp/half_$name/$two/config.json"), qr/dtype": ?"bfloat16"/, "$name: in bf16 the type is another");
}

# ---- with transformers ----

my @candidates = grep { defined $_ && have($_) } $ENV{PYTHON}, 'python3', '/usr/bin/python3', 'python';
my ($python) = grep { (run(120, "'$_' -c 'import torch, transformers, safetensors.torch, safetensors.numpy; " .
    "assert tuple(map(int, transformers.__version__.split(\".\")[:2])) >= (4, 43)'"))[0] == 0 } @candidates;
my $why = @candidates ? "no Python here has torch, safetensors and transformers 4.43 or newer (tried @candidates)"
                             : 'no Python here' unless $python;
my $tool = "'" . ($python // '') . "' '$root/tests/make_interop.py'";

# tests/test_interop.c with directories as arguments compares logits.
sub compare {
    my $program = built('open', 'tests/test_interop.c', 'test_interop');
    my ($status, $out, $error) = run(300, "$program @_");
    is($status, 0, "the same logits: @{[map { m{([^/]+/[^/]+)$} } @_]}");
    diag("$out$error") if $status;
    note($_) for grep { /error|largest/ } split /\n/, $out;
}

SKIP: {
    skip $why, 8 unless $python;

    # Written by transformers.
    ($status, $out, $error) = run(300, "$tool live $tmp/live");
    is($status, 0, 'transformers write models of the families') or diag($error);
    compare(map { "$tmp/live/$_" } split ' ', $out);

    # Written here.
    ($status, undef, $error) = run(300, "$tool expect 32 @written");
    is($status, 0, 'transformers load them as they are') or diag($error);
    compare(@written);

    is((run(120, trainer() . " $small --model nano --optimizer lion --ema 0.5 --checkpoint $tmp/sharded --ranks 2"))[0], 0, 'a sharded checkpoint');
    my @files = map { glob "$_/*.safetensors" } @written, "$tmp/sharded/step-000000002";
    ($status, $out, $error) = run(120, "$tool read @files");
    is($status, 0, 'safetensors.numpy reads all ' . @files . ' files') or diag($error);
    is(scalar(grep { / [1-9]\d*$/ } split /\n/, $out), scalar @files, 'each with tensors');
}
done_testing();
