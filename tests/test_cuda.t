#!/usr/bin/env perl
# CUDA without a GPU. The real compiler, NVRTC, takes the device's text where it is installed. The text also runs on an
# emulation of warps (cuda_emulation.h) as part of a stand-in for the driver (cuda_stand_in.cpp), whose device memory the
# host cannot touch and whose streams run in random allowed orders: trainers with --device cuda reach the hashes of the
# CPU, failures at drawn calls end with a sentence, and nothing is left behind. With --full more of each.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Layouts;
use List::Util qw(sum);
use Test::More;

plan skip_all => 'the device is emulated in a usual build' if sanitized();
my $cc = $ENV{CC} || 'cc';
my $cxx = $ENV{CXX} || 'g++';
plan skip_all => "$cxx is not installed (apt-get install g++)" unless have($cxx);
seeded();

# ---- the text ----

my $text = "$tmp/cuda.txt";
my $headers = join ' ', map { "-I$_" } glob '/usr/local/cuda/include'; # with which the compiler compares numbers
linked_with('gpu', "$root/tests/cuda_text.c", "$tmp/text", "-w $headers");
my ($bad, undef, $err) = run(20, "./text 2 >$text");
ok(!$bad && -s $text > 50000, 'the device text is printed') or BAIL_OUT($err);
unlike(slurp($text), qr/#include/, 'it includes nothing');
my ($nvrtc) = grep { -e $_ } $ENV{DT_NVRTC_LIBRARY} || (), glob('/usr/local/cuda*/lib*/libnvrtc.so'), glob('/usr/lib/x86_64-linux-gnu/libnvrtc.so*');
SKIP: {
    skip 'NVRTC is not installed (cuda-nvrtc of the CUDA Toolkit)', 1 unless $nvrtc;
    my ($bad, undef, $err) = run(60, "$cc -std=gnu11 -O1 -Wall -Wextra -Werror $root/tests/cuda_compile.c -o cuda_compile -ldl");
    BAIL_OUT($err) if $bad;
    my ($options) = slurp("$root/dtrain.h") =~ /const char \*options\[\] = \{code->flags, (.*?)\};/s; # of dt__cuda_compile
    $options =~ s/[",\n]+/ /g;
    my ($status, $said, $error) = run(600, "./cuda_compile $nvrtc $text - --gpu-architecture=compute_90a -G $options"); # -G: not optimized, in a tenth of the time
    is("$status $said$error", "0 compiled without a warning\n", 'NVRTC compiles it');
}
SKIP: {
    skip 'registers are counted with --full, by ptxas', 1 unless full() && $nvrtc && glob '/usr/local/cuda*/bin/ptxas';
    my ($bad, $rows, $error) = run(7200, "$root/tests/registers.pl");
    is("$bad$error", '0', 'NVRTC compiles every module for sm_80, sm_90a and sm_100 without a warning');
    my @spill = grep { /\tdt__(?:gemm|attention|flash)_\w+\t\d+\t(\d+)/ && $1 > 32 } split /\n/, $rows; # 32 bytes: of the loop's counters
    is("@spill", '', 'no spills in products and attention');
    my ($table, $version) = (slurp("$root/tests/registers.tsv"), $rows =~ /^# (ptxas \S+) /);
    if ($table =~ /\Q$version\E /) { is($rows, $table, 'registers, spilled bytes and shared memory are those of registers.tsv') }
    else { note("registers.tsv is not compared: this is $version") }
}

# ---- the stand-in ----

my $stand_in = "$tmp/stand_in.so";
($bad, undef, $err) = run(300, "$cxx -std=c++17 -O2 -ffp-contract=off -mfma -shared -fPIC -Wall -Wextra -Wno-unused-function -Wno-unknown-pragmas -I$root/tests -DDT__TEXT='\"$text\"' $root/tests/cuda_stand_in.cpp -o $stand_in -lpthread");
ok(!$bad, 'the stand-in is compiled from the same text') or BAIL_OUT($err);
my $strict = '-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror';
linked_with('gpu', "$root/examples/06_train.c", "$tmp/train", $strict);

my $data = corpus(4000);
sub there { return "XDG_CACHE_HOME=$tmp " . join ' ', map "DT_${_}_LIBRARY=$_[0]", qw(CUDA NVRTC CUBLAS) }
my $there = there($stand_in);
my $common = "--data $data --steps 2 --warmup 1 --batch 4 --data-shards 2 --sequence 32 --threads 1 --validation 0 --sample-length 0";
mkdir "$tmp/none";
sub train { my ($environment, $options) = @_; return run(300, "$environment ./train $common $options") }
sub hash { return $_[0] =~ /^sha256 ([0-9a-f]{64})$/m ? $1 : 'none' }

# Without a driver.
my ($status, $out, $error) = train("XDG_CACHE_HOME=$tmp DT_CUDA_LIBRARY=/nowhere.so", '--model nano --layers 1');
like($out, qr/^ +on the CPU: the driver of NVIDIA's GPUs \(libcuda\) cannot be loaded \(.*\)\. Install it, or name its\s+file in DT_CUDA_LIBRARY$/m, 'auto: without a driver it computes on the CPU, and says why');
($status, undef, $error) = train("DT_CUDA_LIBRARY=/nowhere.so", '--model nano --layers 1 --device cuda');
ok($status && $error =~ /the driver of NVIDIA's GPUs \(libcuda\) cannot be loaded/, 'cuda: without a driver it fails') or diag($error);
for (['cuda:7' => qr/--device cuda:7: the GPUs here are 0\.\.0/], ['gpu' => qr/--device gpu: it is auto, cpu, cuda or cuda:N/], ['cuda:x' => qr/--device cuda:x: it is auto/]) {
    ($status, undef, $error) = train($there, "--model nano --layers 1 --device $_->[0]");
    ok($status && $error =~ $_->[1], "--device $_->[0] is refused") or diag($error);
}
($status, undef, $error) = train("$there STAND_IN_GPUS=0", '--model nano --layers 1 --device cuda');
ok($status && $error =~ /the driver finds no GPU\. Check CUDA_VISIBLE_DEVICES/, 'no GPU') or diag($error);
($status, undef, $error) = train("$there STAND_IN_ARCH=7.0", '--model nano --layers 1 --device cuda');
ok($status && $error =~ /has compute capability 7\.0: 8\.0 or newer is needed/, 'an old GPU') or diag($error);
my $little = '--model nano --layers 1 --device cuda';
($status, undef, $error) = train("$there STAND_IN_MEMORY=300000", $little);
my ($needs) = $error =~ /the GPU of rank 0 has 0\.3 MB left, and its ranks \(1\) need (\d+\.\d) MB: use a smaller model/;
ok($status && $needs, 'a small GPU: before step 1 its memory is known to be too little') or diag($error);
my $enough = "$there STAND_IN_MEMORY=" . 1e6 * (($needs || 1) + 0.1); # 0.05 of it for what was rounded
isnt(hash((train($enough, $little))[1]), 'none', '  as much as was said is enough');
($status, undef, $error) = train($enough, "$little --ranks 2");
ok($status && $error =~ /and its ranks \(2\) need \d/, '  but not for two ranks') or diag($error);
($status, undef, $error) = train("$there STAND_IN_MEMORY=300000", "$little --no-memory-check");
ok($status && $error =~ /the GPU has no \d+\.\d MB left for this rank: use a smaller model/, '  without the check no memory is had') or diag($error);

# The compiled code is cached.
{
    my $cached = sub { my ($folder, $options) = @_; return run(300, "$there XDG_CACHE_HOME=$tmp/$folder HOME=$tmp ./train $common $little $options") };
    mkdir "$tmp/$_" for 'fresh', 'open', 'open/dtrain';
    chmod 0777, "$tmp/open/dtrain";
    my $trained = hash(($cached->('fresh', '--ranks 2'))[1]);
    my @made = glob("$tmp/fresh/dtrain/*");
    is(join(' ', map { m{/[0-9a-f]{64}\.cubin$} || $_ } @made), '1 1 1', 'two ranks leave complete files of the code that the model needs, no more') or diag("@made");
    my $good = slurp($made[0]);
    for my $spoilt (substr($good, 0, length($good) / 2), 'x' . substr($good, 1), '') {
        spew($made[0], $spoilt);
        is(hash(($cached->('fresh', ''))[1]), $trained, 'spoilt code is not used');
        ok(slurp($made[0]) eq $good, '  and is compiled again');
    }
    is(hash(($cached->('open', ''))[1]), $trained, 'where others may write to the folder of code');
    is(join(' ', glob("$tmp/open/dtrain/*")), '', '  it is not used');
    my ($status, undef, $error) = run(60, "$there XDG_CACHE_HOME=$made[0]/none HOME= TMPDIR=$made[0] ./train $common $little");
    ok($status && $error =~ /cannot write to any cache directory\. Set XDG_CACHE_HOME to a writable one/, 'without a folder it fails') or diag($error);
}

# The hashes of the CPU.
my $groups = '--compile=on --compile-passes bias,logits,fuse'; # the compiler's, also of ops on blocks of logits
my @layouts = ('--model nano', "--model llama-nano --precision bf16 --threads 2 $groups", '--model nano --dropout 0.1 --ranks 2', '--model nano --ranks 2 --tp 2 --tensor-shards 2', '--model llama-nano',
               '--model llama-nano --experts 4', '--model nano --precision bf16', '--model nano --ranks 2 --pp 2 --layers 2',
               '--model nano --ranks 2 --zero 3', '--model nano --recompute full --offload', '--model nano --context-shards 2 --ranks 2 --cp 2',
               '--model llama-nano --precision fp16 --ranks 2', '--model nano --optimizer lion --ema 0.9', '--model nano --ranks 4 --tp 2 --tensor-shards 2',
               '--model llama-nano --experts 4 --ranks 2 --ep 2', '--model nano --dropout 0.1 --ranks 4 --tp 2 --cp 2 --tensor-shards 2 --context-shards 4',
               '--model llama-nano --experts 4 --ranks 4 --tp 2 --ep 2 --tensor-shards 2 --context-shards 2 --precision bf16');
# Under the checked stand-in, which finds races, addresses outside of what the device may use, and reads of what nobody wrote.
my $checked = "$tmp/checked.so";
($bad, undef, $err) = run(600, "$cxx -std=c++17 -O1 -g -ffp-contract=off -mfma -fPIC -fsanitize=thread -w -I$root/tests -DDT__TEXT='\"$text\"' -c $root/tests/cuda_stand_in.cpp -o checked.o && $cxx -shared checked.o -o $checked");
ok(!$bad, 'the checked stand-in is compiled') or BAIL_OUT($err);
# Attention by tensor cores against doubles.
linked_with('gpu', "$root/tests/gpu_attention.c", "$tmp/attention", $strict);
for (["XDG_CACHE_HOME=$tmp DT_CUDA_LIBRARY=$checked DT_NVRTC_LIBRARY=$checked", 'cases'], full() ? [$there, (1 + int rand 1e6) . ' 50'] : ()) {
    my ($bad, $out, $error) = run(1200, "$_->[0] ./attention $_->[1]");
    ok(!$bad && $out =~ /^1\.\.[1-9]/m, "attention by tensor cores: $_->[1]") or diag(join "\n", $error, grep { !/^ok/ } split /\n/, $out);
}
for my $layout ('--model nano --recompute full --offload --layers 3 --dropout 0.1', # its copies overlap with ops
                drawn(1, "--model nano --width 40 --heads 2 $groups", '--model nano --dropout 0.1 --precision bf16', '--model llama-nano --experts 4', '--model nano --ranks 2 --tp 2 --tensor-shards 2', '--model nano --optimizer sgd --ema 0.9', '--model nano --context-shards 2 --ranks 2 --cp 2')) {
    my $want = hash((train('', "--layers 1 $layout --device cpu"))[1]);
    my ($bad, $out, $error) = train(there($checked), "--layers 1 $layout --device cuda");
    is(hash($out), $want, "checked: $layout") or diag($error);
}
for my $layout (full() ? @layouts : (@layouts[0, 1], drawn(3, @layouts[2 .. $#layouts]))) {
    my $options = "--layers 1 $layout";
    my $want = hash((train('', "$options --device cpu"))[1]);
    my ($bad, $out, $error) = train($there, "$options --device cuda");
    is(hash($out), $want, "the hash of the CPU: $layout") or diag($error);
    like($out, qr/stand-in GPU 0 computes(?!.*ran on the host)/s, '  on the device, all of it');
    unlike("$out$error", qr/stand-in: .*not/, '  and nothing is left behind');
}

# With --full, layouts of all kinds, drawn, of recipes whose hashes are written down.
my %golden = golden();
for (full() ? 1 .. 60 : ()) {
    my $name = (sort keys %golden)[rand keys %golden];
    my $options = options(draw($name, 4));
    is(hash_of($name, "$options --device cuda --timeout 100", $there, './train'), $golden{$name}, "$name: $options");
}

# Random graphs, planned and of a program's own, node by node; and every op, and loops of a program's own.
for my $test (full() ? qw(random ops loop) : 'random') {
    my $graphs = full() ? 40 : 6;
    linked_with('gpu', "$root/tests/test_$test.c", "$tmp/on_gpu_$test");
    my ($status, $out, $error) = run_in($root, 1200, "$there DT_GPU=1 DT_GRAPHS=$graphs $tmp/on_gpu_$test");
    ok(!$status && $out =~ /^ok 1/m && $out !~ /^not ok/m, "test_$test passes on the GPU") or diag("status $status\n", grep({ /^not ok/ } split /^/m, $out), $error);
}

# Text, validation, and checkpoints of either kind that go from the CPU to the GPU and back.
my $six = "./train --data $data --model nano --layers 1 --batch 4 --data-shards 2 --sequence 32 --threads 1 --steps 6 --warmup 1";
my %said = map { $_ => join('', grep { !m{tokens/s|computes|GEMM|on the GPU} } split /^/, (run(300, "$there $six --sample-length 24 --sample-every 3 --eval-every 3 --device $_"))[1]) } qw(cpu cuda);
ok($said{cpu} eq $said{cuda} && $said{cpu} =~ /validation loss.*sample at step 6/s, 'text is drawn and validation computed as on the CPU') or diag("$said{cpu}\n$said{cuda}");
for my $kind (drawn(1, 'sharded', 'full')) {
    my ($last, @hash);
    for (['cpu', 0], ['cuda', 2], ['cpu', 4]) { # a copy of the step that the one before has saved
        my ($where, $step) = @$_;
        my $folder = sprintf '%s-%d', $kind, $step;
        run(10, sprintf 'mkdir %s && cp -r %s/step-%09d %s', $folder, $last, $step, $folder) if $last;
        push @hash, hash((run(300, "$there $six --validation 0 --sample-length 0 --checkpoint $folder --checkpoint-kind $kind --checkpoint-every 2 --keep 0 --device $where"))[1]);
        $last = $folder;
    }
    is("@hash[1, 2]", "$hash[0] $hash[0]", "a $kind checkpoint goes to the GPU and back");
}

# Fast numerics: products by cuBLASLt, as the stand-in has it, and by the exact tiles where it has no kernel.
linked_with('gpu', "$root/tests/gpu_fast.c", "$tmp/gpu_fast", $strict);
for ('', 'STAND_IN_NO_KERNEL=1') {
    my ($bad, $out, $error) = run(300, "$there $_ ./gpu_fast small");
    ok(!$bad && $out =~ /^ok$/m, "fast products are near to doubles $_") or diag("$out$error");
}
sub loss { return $_[0] =~ /^ok: \d steps?, loss (\S+)/m ? $1 : 'nan' }
for (drawn(1, ['--model nano --precision bf16 --dropout 0.1', 'bf16'], ['--model llama-nano --precision fp16 --ranks 2', 'fp16'], ['--model nano', 'tf32'],
           ['--model llama-nano --experts 4 --precision bf16', 'bf16'], ['--model nano --ranks 2 --tp 2 --tensor-shards 2 --precision bf16', 'bf16'])) {
    my ($layout, $kind) = @$_;
    my $want = loss((train('', "--layers 1 $layout --device cpu --numerics fast"))[1]);
    my ($bad, $out, $error) = train(there($checked), "--layers 1 $layout --device cuda --numerics fast");
    ok(abs(loss($out) - $want) < 3e-3, "fast: the loss of $layout") or diag("$want, not\n$out$error");
    like($out, qr/^fast     products by cuBLASLt in $kind, .*^fast     the first batch differs from exact numerics by [\d.e-]+ of the loss, \d\.\de-0[3-9] of the largest gradient$/ms,
         '  by cuBLASLt, and not far from exact numerics');
    unlike("$out$error", qr/stand-in: .*not|ran on the host/, '  and nothing is left behind');
}
my $fast = '--model nano --layers 1 --precision bf16 --device cuda --numerics fast';
(undef, $out) = train("$there DT_CUBLAS_LIBRARY=/nowhere.so", $fast);
like($out, qr/^fast     products by fp32 chains.*\n +cuBLASLt \(libcublasLt\) cannot be loaded/m, 'without cuBLASLt the exact tiles multiply, and it says why');
is(hash($out), hash((train('', '--model nano --layers 1 --precision bf16 --device cpu'))[1]), '  with the bits of exact numerics');
(undef, $out) = train("$there STAND_IN_NO_KERNEL=1", $fast);
like($out, qr/differs from exact numerics by (?:\d\.\de-0[5-9]|0\.0e\+00) of the loss, \d\.\de-0[3-9]/, 'where cuBLASLt has no kernel, the exact tiles multiply');

# ---- ranks with a GPU each: NCCL, whose stand-in moves bytes between processes ----

my $nccl = "$tmp/nccl.so";
($bad, undef, $err) = run(100, "$cc -std=gnu11 -O1 -Wall -Wextra -Werror -fPIC -shared $headers $root/tests/nccl_stand_in.c -o $nccl -ldl");
ok(!$bad, 'the stand-in for NCCL is compiled') or BAIL_OUT($err);
my $many = "$there DT_NCCL_LIBRARY=$nccl STAND_IN_GPUS=4 STAND_IN_NCCL_SAY=1";
my $ep = '--model llama-nano --experts 4 --ranks 2 --ep 2';
my @between = (['--ranks 2', 8], ['--ranks 2 --zero 3 --overlap on', 15], ['--ranks 2 --zero 1 --ema 0.9', 8], ['--ranks 4 --tp 2 --tensor-shards 2', 8], ['--ranks 2 --context-shards 2 --cp 2', 15], [$ep, 4],
     ['--ranks 4 --zero 2 --zero-group 2 --data-shards 4 --overlap on', 8], ['--ranks 3 --data-shards 4 --overlap off', 8], ['--ranks 4 --pp 2 --layers 2 --pipeline zero-bubble', 8]);
my @stages = map { my ($pp, $units, @kinds) = @$_; map { "--steps 1 --warmup 0 --ranks $pp --pp $pp $units --pipeline $_ --layers " . ($_ eq 'interleaved' ? 2 : 1) * $pp } @kinds }
     map({ [$_, '--batch 8 --micro-batch 2', qw(gpipe 1f1b interleaved zero-bubble)] } 2, 4), [3, '--batch 12 --micro-batch 4', 'interleaved'];
my @slices = ('--ranks 2 --cp 2 --context-shards 2', '--ranks 4 --cp 4 --context-shards 4', '--ranks 4 --cp 2 --context-shards 2 --tp 2 --tensor-shards 2', '--ranks 4 --cp 2 --context-shards 4 --overlap on',
     map "--ranks 4 --pp 2 --layers 2 $_", '--cp 2 --context-shards 2', '--tp 2 --tensor-shards 2 --pipeline zero-bubble', '--zero 1 --overlap on', '--sample-length 8 --recompute full --offload');
sub sent { return join ' ', slurp("$tmp/$_[0]") =~ /"sent_bytes":\d+/g }
for (drawn(1, @between), map([$_, 6], drawn(1, @stages), drawn(1, @slices))) {
    my ($layout, $least) = @$_;
    my $want = hash((train('', "--model nano --layers 1 $layout --device cpu --metrics cpu.jsonl"))[1]);
    my ($bad, $out, $error) = train($many, "--model nano --layers 1 $layout --device cuda --metrics gpu.jsonl");
    is(hash($out), $want, "by NCCL: $layout") or diag($error);
    like($out, qr/computes; GPUs exchange by NCCL$/m, '  as the start says');
    is(sent('gpu.jsonl'), sent('cpu.jsonl'), '  with as many bytes');
    my ($groups) = $error =~ /nccl stand-in: (\d+) groups/;
    cmp_ok($groups || 0, '>=', $least, "  in $least groups of calls or more");
    unlike("$out$error", qr/stand-in: .*not/, '  and nothing is left behind');
}
for (drawn(1, ['--pp 2 --layers 2', 8], ['--cp 2 --context-shards 2', 12])) { # of both ranks together
    my ($layout, $more) = @$_;
    my @counts = map { my $said = (train("$many STAND_IN_SAY=1", "--model nano --layers 1 --ranks 2 $layout --steps 1 --warmup 0 --micro-batch $_ --device cuda"))[2];
                       [sum($said =~ /(\d+) waits/g), sum($said =~ /(\d+) groups/g)] } 4, 2;
    is($counts[1][0], $counts[0][0], "$layout: the host waits as often for 4 units as for 2");
    is($counts[1][1] - $counts[0][1], $more, "  whose messages are $more more groups");
}
($status, $out, $error) = train($many, '--model nano --layers 1 --ranks 2 --numerics fast --device cuda');
like($out, qr/every other sum but those of NCCL is exact/, 'fast: NCCL adds');
ok(abs(loss($out) - loss((train('', '--model nano --layers 1 --ranks 2 --device cpu'))[1])) < 1e-3, '  near to exact numerics') or diag("$out$error");
for (["$many STAND_IN_GPUS=1" => qr/through the host: rank \d\s+has\s+no\s+GPU\s+of\s+its\s+own/], ["$many DT_NCCL_LIBRARY=/nowhere.so" => qr/through the host: NCCL\s+\(libnccl\)\s+cannot\s+be\s+loaded/]) {
    my ($bad, $out) = train($_->[0], '--model nano --layers 1 --ranks 2 --steps 1 --device cuda');
    like($out, $_->[1], '  else through the host');
}
for (drawn(2, ['--ranks 2', 1 + int rand 10], ['--ranks 2 --pp 2 --layers 2', 3 + int rand 8], ['--ranks 2 --cp 2 --context-shards 2', 1 + int rand 20])) {
    my ($layout, $group) = @$_;
    ($status, undef, $error) = train("$many STAND_IN_NCCL_FAIL=$group", "--model nano --layers 1 $layout --device cuda");
    ok($status && $status != 124 && $error =~ /NCCL failed: the stand-in was told to fail \(NCCL_DEBUG=INFO says more\)/, "NCCL fails, $layout: a sentence") or diag($error);
    is(scalar(() = $error =~ /nccl stand-in: \d+ groups/g), 2, '  and both ranks end by themselves');
}
for my $layout (drawn(1, '--ranks 2 --zero 1 --overlap on', '--ranks 2 --pp 2 --layers 2', '--ranks 2 --cp 2 --context-shards 2')) {
    ($status, $out, $error) = run(60, "$many STAND_IN_SAY=1 ./train $common --model nano --layers 1 --steps 9999 $layout --timeout 20 --device cuda >killed 2>&1 & p=\$!; until grep -q '^step ' killed; do sleep 0.1; done; kill -9 \$(ps -o pid= --ppid \$p | tail -1); wait \$p");
    like(slurp("$tmp/killed"), qr/^dtrain: rank \d \(pid \d+\) was killed by signal 9/m, "a rank that is killed ends the others, $layout");
    like(slurp("$tmp/killed"), qr/cuda stand-in: .* left: 0 allocations/, '  which release what they have');
    ok($status && $status != 124, '  in time');
}

# A failure at a call: a sentence, no hang, nothing left.
my $short = '--model nano --layers 1 --steps 1 --warmup 0 --recompute full --offload --device cuda';
my (undef, $fine, $said) = train("$there STAND_IN_SAY=1", $short);
my ($calls) = $said =~ /(\d+) calls/;
ok($calls && $calls > 100, 'the calls of a step are counted: ' . ($calls || 'none'));
my ($waits, $more) = map { /(\d+) waits/ } $said, (train("$there STAND_IN_SAY=1", "$short --micro-batch 2"))[2];
is($more, $waits, 'the host waits as often for 4 units as for 2');
my ($fast_calls) = (train("$there STAND_IN_SAY=1", "$short --numerics fast"))[2] =~ /(\d+) calls/;
for my $n (full() ? (1 .. $calls, map -$_, $calls .. $fast_calls) : (drawn(10, 1 .. $calls || 1), drawn(10, map -$_, $calls || 1 .. $fast_calls || 1))) { # below 0: of fast numerics
    my ($bad, $out, $error) = train("$there STAND_IN_FAIL=" . abs $n, $n < 0 ? "$short --numerics fast" : $short);
    my $right = $bad ? $bad != 124 && $error =~ /GPU|CUDA|driver|NVRTC|memory|cuBLASLt/
                     : $n < 0 ? abs(loss($out) - loss($fine)) < 3e-3 : hash($out) eq hash($fine); # what fails at the end changes nothing
    my ($left) = "$out$error" =~ /left: (.*)/;
    $right &&= !$left || $left !~ /[1-9]/; # programs that end on errors release what they have, too
    ok($right, "call $n fails: " . ($bad ? $error =~ s/\n.*//sr : 'after the hash')) or diag("status $bad\n$out$error");
}
done_testing();
