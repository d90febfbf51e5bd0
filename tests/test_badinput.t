#!/usr/bin/env perl
# Bad input, every kind, on 1 rank and on 2: the right exit status, one sentence that says what, where and how to mend it,
# no hang, and nothing left behind: no file, no process, no shared memory.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $program = trainer();
my $text = corpus(20000);
my $small = '--model nano --steps 2 --batch 8 --sequence 32 --sample-length 0 --eval-batches 1 --threads 1';
my $threads = ($ENV{DT_SANITIZE} || '') =~ /thread/ ? '--launch threads' : '';
my $root_user = $> == 0;
$ENV{DT_TEST_MARK} = "badinput-$$";

# ---- the inputs ----

my $bytes = join '', map { chr((($_ * 2654435761) >> 13) & 255) } 1 .. 8000;
sub tokens { my ($magic, $promised, @ids) = @_; return pack('l<256', $magic, 1, $promised, (0) x 253) . pack('S<*', @ids) }
spew("$tmp/empty.txt", '');
spew("$tmp/short.txt", 'nine byte');
spew("$tmp/binary.dat", $bytes);
spew("$tmp/binary.bin", $bytes);
spew("$tmp/bad.safetensors", pack('q<', 8) . '{x     }');
spew("$tmp/good.bin", tokens(20240520, 3000, map { $_ * 7 % 50 } 1 .. 3000));
spew("$tmp/torn.bin", tokens(20240520, 3000, 1 .. 100));
spew("$tmp/magic.bin", tokens(12345, 3000, map { $_ * 7 % 50 } 1 .. 3000));
spew("$tmp/head.bin", substr(tokens(20240520, 3000), 0, 500));
spew("$tmp/locked.txt", 'x' x 5000);
chmod 0, "$tmp/locked.txt";
mkdir "$tmp/$_" for qw(tree folder.txt readonly);
chmod 0555, "$tmp/readonly";

# ---- the check ----

# Processes that carry this test's mark in their environment.
sub left_processes {
    return grep { m{/(\d+)/} && $1 != $$ && slurp($_) =~ /DT_TEST_MARK=badinput-$$\0/ } glob '/proc/[0-9]*/environ';
}
sub shared_memory { return join ' ', sort glob '/dev/shm/*dtrain*' }

# What the user reads: without the supervisor's own line about the rank that ended.
sub sentences { return grep { !/^dtrain: rank \d+ (\(pid \d+\) )?ended with status/ } split /\n/, shift }

sub check {
    my ($name, $options, $want, $pattern, $ranks) = @_;
    my $before = shared_memory();
    my ($status, $out, $err) = run_in("$tmp/tree", 60, "$program $options" . ($ranks > 1 ? " --ranks $ranks $threads" : ''));
    my @said = $want == 2 ? split(/\n/, $err) : sentences($err); # a wrong option is told once
    my @left = ((map { "file $_" } glob "$tmp/tree/*"), map { "process $_" } left_processes());
    push @left, 'shared memory' if shared_memory() ne $before;
    my $fine = $status == $want && ($want ? @said == 1 && $said[0] =~ $pattern : !@said) && !@left;
    ok($fine, "$name, $ranks rank" . ($ranks > 1 ? 's' : ''))
        or diag("status $status, expected $want like $pattern; left: @left\n$err", $want ? '' : $out);
}

# ---- the cases: name, options behind the small recipe, exit status, sentence ----

my $data = "--data $text";
my @cases = (
    ['no data option', '', 2, qr/no data: --data FILE/],
    ['no such file', '--data nowhere.txt', 1, qr/nowhere\.txt.*check the name/],
    ['empty file', "--data $tmp/empty.txt", 1, qr/empty\.txt/],
    ['file shorter than a sequence', "--data $tmp/short.txt", 1, qr/short\.txt: .*cuts 9 tokens .*needs 33: use a longer/],
    ['a folder instead of a file', "--data $tmp/folder.txt", 1, qr/folder\.txt/],
    ['binary file is data like any other', "--data $tmp/binary.dat --quiet", 0, qr//],
    ['token shard', "--data $tmp/good.bin --quiet", 0, qr//],
    ['truncated token shard', "--data $tmp/torn.bin", 1, qr/torn\.bin/],
    ["nanoGPT's ids without a header", "--data $tmp/binary.bin", 1, qr/nanoGPT's train\.bin has none\): put 256 int32 before its uint16 ids/],
    ['a header of safetensors that is no JSON', "$data --model nano --weights $tmp/bad.safetensors", 1, qr/bad\.safetensors, line 1, byte 9 of the file/],
    ['a vocabulary without bound', "$data --model nano --vocabulary 4611686018427387904", 2, qr/--vocabulary .*choose a whole number in/],
    ['token shard cut inside its header', "--data $tmp/head.bin", 1, qr/head\.bin/],
    ['wrong magic number', "--data $tmp/magic.bin", 1, qr/magic\.bin/],
    ['vocabulary too small', "--data $tmp/good.bin --vocabulary 20", 2, qr/ids up to 49.*raise --vocabulary/],
    ['batch not divisible by shards', "$data --batch 12", 2, qr/batch 12 does not divide into 8 data shards/],
    ['micro-batch does not divide', "$data --batch 16 --micro-batch 5", 2, qr/micro-batch 5 does not divide batch 16/],
    ['more active experts than there are', "$data --experts 2 --active 3", 2, qr/--active 3 of --experts 2: a token has 1 to --experts of them/],
    ['negative experts', "$data --experts -1", 2, qr/--experts -1: choose a whole number in \[0,65536\]/],
    ['a negative capacity', "$data --experts 4 --capacity -1", 2, qr/--capacity -1: choose a number in \[0,1e6\]/],
    ['heads do not divide width', "$data --heads 5", 2, qr/5 heads do not divide width 64: --heads one of 1, 2, 4/],
    ['key heads do not divide heads', "$data --model llama-nano --kv-heads 3", 2, qr/3 KV heads do not divide 4 heads: --kv-heads one of 1, 2, 4/],
    ['odd head width', "$data --model llama-nano --width 36", 2, qr/a head of width 9 .width 36, 4 heads. cannot be rotated in pairs: make it even/],
    ['negative hidden', "$data --model llama-nano --hidden -1", 2, qr/--hidden -1: choose a whole number in \[0,1000000\]/],
    ['rotary base below 1', "$data --model llama-nano --rope-base 0.5", 2, qr/--rope-base 0\.5: choose a number not below 1/],
    ['dropout in a Llama', "$data --model llama-nano --dropout 0.1", 2, qr/--dropout: the Llama family has none/],
    ['options of Llama for a GPT-2', "$data --kv-heads 2", 2, qr/--kv-heads, --hidden, .* are for the Llama family: --model llama-nano/],
    ['negative temperature', "$data --temperature -1", 2, qr/--temperature -1: choose a number in \[0,1e30\]/],
    ['top-p above 1', "$data --top-p 2", 2, qr/--top-p 2: choose a number in \[0,1\]/],
    ['unknown model', "$data --model huge", 2, qr/no size 'huge'.*tiny/],
    ['shards no power of two', "$data --batch 12 --data-shards 3", 2, qr/--data-shards 3: choose a power of two in \[1,1024\]/],
    ['tensor shards no power of two', "$data --tensor-shards 3", 2, qr/--tensor-shards 3: choose a power of two/],
    ['heads in tensor shards', "$data --model nano --tensor-shards 4", 2, qr/2 heads do not divide into 4 tensor shards: --tensor-shards one of 1, 2/],
    ['rows in tensor shards', "$data --model nano --batch 8 --sequence 33 --tensor-shards 2", 2, qr/33 rows of a unit of work, which do not divide into 2 slices/],
    ['no layers', "$data --layers 0", 2, qr/0 layers/],
    ['the doctor after two steps', "$data --doctor", 2, qr/--doctor looks at 3 steps after the first: --steps 2 is below 4/],
    ['negative steps', "$data --steps -1", 2, qr/--steps -1: choose a whole number not below 1/],
    ['dropout above 1', "$data --dropout 1.5", 2, qr/--dropout 1\.5: choose a number in \[0,1\)/],
    ['loss not finite', "$data --learning-rate 1e30 --warmup 0 --steps 20 --clip 0 --quiet", 1, qr/not finite: lower --learning-rate/],
    ['memory cannot suffice', "$data --layers 40 --width 32768 --heads 64", 1, qr/the plan needs up to [\d.]+ GB.*are free: use a smaller/],
    ['disk full for metrics', "$data --quiet --metrics /dev/full", 1, qr{/dev/full \(No space left}],
    ['metrics in a folder that is not there', "$data --quiet --metrics none/m.jsonl", 1, qr{none/m\.jsonl \(No such file}],
    ['metrics where nothing can be written', "$data --quiet --metrics /proc/m.jsonl", 1, qr{/proc/m\.jsonl \(}],
    ['disk full for the timeline', "$data --quiet --timeline /dev/full", 1, qr{cannot write /dev/full: No space left}],
    ['timeline in a folder that is not there', "$data --quiet --timeline none/t.json", 1, qr{cannot write none/t\.json: No such file}],
    ['unknown option', "$data --learningrate 1", 2, qr/unknown option --learningrate: did you mean --learning-rate\?/],
    ['unknown option of the launcher', "$data --rank 2", 2, qr/unknown option --rank: did you mean --ranks\?/],
    ['not a whole number', "$data --batch eight", 2, qr/--batch eight: choose a whole number in \[1,1000000\]/],
    ['not a number', "$data --learning-rate fast", 2, qr/--learning-rate fast: choose a number not below 0/],
    ['not one of the words', "$data --schedule square", 2, qr/--schedule square: choose one of constant,cosine,linear,wsd/],
    ['unknown optimizer', "$data --optimizer adamax", 2, qr/--optimizer adamax: choose one of adamw,adam,sgd,lion\b/],
    ['momentum without SGD', "$data --momentum 0.9", 2, qr/--momentum and --nesterov belong to --optimizer sgd/],
    ['Nesterov without momentum', "$data --optimizer sgd --nesterov", 2, qr/--nesterov looks ahead.*set --momentum/],
    ['average that never moves', "$data --ema 1", 2, qr/--ema 1: choose a number in \[0,1\)/],
    ['evaluating an average that is not there', "$data --evaluate-ema", 2, qr/--evaluate-ema: there is no average.*set --ema/],
    ['an option that is gone', "$data --wire int8", 2, qr/unknown option --wire: did you mean --\S+\? --help all lists all/],
    ['another', "$data --mirror-rate 5", 2, qr/unknown option --mirror-rate: did you mean --\S+\? --help all lists all/],
    ['an option of one letter', "$data -n 5", 2, qr/unknown option -n: options begin with --, did you mean/],
    ['a letter as an option', "$data -n", 2, qr/unknown option -n: options begin with --, did you mean/],
    ['several words', 'one.txt two.txt', 2, qr/what is 'two\.txt'\? One word may name the data/],
    ['tensor parallel on too few ranks', "$data --tp 4 --tensor-shards 1", 2, qr/--tp 4 does not divide [12] (rank|ranks)\. Set --tp to (1, or raise --ranks|one of 1, 2)\./],
    ['no steps', "$data --steps 0", 2, qr/--steps 0: choose a whole number not below 1/],
    ['far too wide', "$data --width 1000000", 2, qr/width/],
    ['no ranks in a tensor group', "$data --tp 0", 2, qr/--tp 0/],
    ['a rate that is no number', "$data --learning-rate nan", 2, qr/--learning-rate nan: choose a number not below 0/],
    ['a word instead of a file', 'nowhere.txt', 1, qr/nowhere\.txt.*check the name/],
);
for my $case (@cases) {
    my ($name, $options, $status, $pattern) = @$case;
    check($name, "$small $options", $status, $pattern, $_) for 1, 2;
}

# Alone: the options that end the program or count ranks.
check('0 ranks', "$small $data --ranks 0", 2, qr/--ranks 0: choose a whole number in \[1,1024\]/, 1);
check('-1 ranks', "$small $data --ranks -1", 2, qr/--ranks -1: choose a whole number in \[1,1024\]/, 1);
check('10000 ranks', "$small $data --ranks 10000", 2, qr/--ranks 10000: choose a whole number in \[1,1024\]/, 1);
check('abc ranks', "$small $data --ranks abc", 2, qr/--ranks abc: choose a whole number in \[1,1024\]/, 1);
check('more ranks than shards', "$small $data --data-shards 2", 2, qr/4 data-parallel ranks cannot share 2 data shards: use up to 2, or raise --data-shards/, 4);
check('value missing', "$small --data", 2, qr/--data needs a value: --data FILE/, 1);
check('value of --ranks missing', "$small $data --ranks", 2, qr/--ranks needs a value/, 1);
for my $restarts ('-1', 'many', '1000001') {
    check("$restarts restarts", "$small $data --max-restarts $restarts", 2, qr/--max-restarts $restarts: choose a whole number in \[0,1000000\]/, 1);
}
check('value of --max-restarts missing', "$small $data --max-restarts", 2, qr/--max-restarts needs a value/, 1);
for my $range ('4', '4:2', '0:2', '2:x', '1:9999', '1-2') {
    check("elastic $range", "$small $data --max-restarts 1 --elastic $range", 2, qr/--elastic $range: it is MIN:MAX/, 1);
}
check('elastic without restarts', "$small $data --elastic 1:2", 2, qr/--elastic 1:2: .*set --max-restarts/, 1);
check('ranks outside of elastic', "$small $data --max-restarts 1 --elastic 1:2 --ranks 3", 2, qr/--ranks 3 is not within --elastic 1:2/, 1);
check('restarts of threads', "$small $data --max-restarts 1 --launch threads", 2, qr/threads cannot be started again; use --launch processes/, 1);
check('wrong data with restarts', "$small --data nowhere.txt --max-restarts 3", 1, qr/nowhere\.txt.*check the name/, 2) if !$threads;
{
    local $ENV{DT_BACKOFF} = 'soon';
    check('a back-off that is not a number', "$small $data", 2, qr/DT_BACKOFF=soon: it is a number of seconds from 0 to/, 1);
}
check('unknown kind of launch', "$small $data --ranks 2 --launch rockets", 2, qr/--launch rockets: choose one of processes,threads/, 1);
check('generating into a folder that is not there', '--generate none/text.txt 1000', 1, qr{none/text\.txt}, 1);
check('generating no bytes', '--generate text.txt none', 2, qr/'none' is not a number of bytes/, 1);
check('generating 1e3 bytes', '--generate text.txt 1e3', 2, qr/'1e3' is not a number of bytes/, 1);
symlink '/dev/null', "$tmp/device";
check('generating in the place of a device', "--generate $tmp/device 1000", 1, qr/device: File exists/, 1);
check("a plan of rank $_", "$data --dry-run $_", 2, qr/--dry-run $_: it is RANK:RANKS/, 1) for qw(5:4 0:4x 0:99999999999 -1:2);

SKIP: {
    skip 'unreadable files: root reads them all the same', 2 if $root_user;
    check('unreadable file', "$small --data $tmp/locked.txt", 1, qr/locked\.txt.*Permission denied/, $_) for 1, 2;
}
SKIP: {
    skip 'read-only folder: root writes all the same', 2 if $root_user;
    check('metrics in a read-only folder', "$small $data --quiet --metrics $tmp/readonly/m.jsonl", 1, qr/Permission denied/, $_) for 1, 2;
}

# Too little memory is seen before it is taken: under a limit, the sentence is the plan's and not the allocator's.
SKIP: {
    my ($kilobytes) = slurp('/proc/meminfo') =~ /^MemAvailable:\s*(\d+)/m;
    skip '1558M: there is enough memory here', 1 if !$kilobytes || $kilobytes > 40e6;
    skip '1558M under a limit: sanitizers need address space', 1 if sanitized();
    my ($status, undef, $err) = run(60, "ulimit -v 2000000; $program $data --model 1558M --sequence 1024 --batch 8 --validation 0 --threads 1");
    ok($status == 1 && $err =~ /the plan needs up to [\d.]+ GB/, '1558M is refused before its memory is taken') or diag($err);
}

# --help fits on a screen; --help all has every row of the tables and of the companion headers, once, under headings.
my @option = slurp("$root/dtrain.h") =~ /^    DT__(?:FLAG\()?(?:RECIPE|LAYOUT|LAUNCH)(?:, |\()"([\w-]+)"/mg;
push @option, map { slurp("$root/examples/$_.h") =~ /dt_probe_option \w+ = \{\s*"([\w-]+)"/g } qw(rules doctor timeline trial dry_run advice);
cmp_ok(scalar @option, '>', 90, 'the header has ' . @option . ' options');
for my $all ('', ' all', '=all') {
    my ($status, $out, $err) = run(60, "$program --help$all");
    my @listed = $out =~ /^  --([\w-]+)/mg;
    my $lines = () = $out =~ /\n/g;
    my @wide = grep { length > 118 } split /\n/, $out;
    ok($status == 0 && $err eq '' && !@wide, "--help$all: $lines lines, none wider than 118 columns") or diag($out, $err);
    if ($all) {
        is(join(' ', sort @listed), join(' ', sort @option), '  every option once');
        is(join(', ', $out =~ /^((?:Recipe|Layout|Launcher): .*)/mg), 'Recipe: data, Recipe: model, Recipe: steps and batch, Recipe: learning rate, '
            . 'Recipe: optimizer, Recipe: precision, Layout: threads and axes of ranks, Layout: memory, Layout: network, '
            . 'Layout: observation, Layout: checkpoints, Launcher: processes', '  by heading');
    } else {
        cmp_ok($lines, '<=', 40, '  one screen');
        my %one = map { $_ => 1 } @option;
        is(join(' ', grep { !$one{$_} } @listed), '', '  of options that there are');
        is(join(' ', grep { my $o = $_; !grep { $o eq $_ } @listed } qw(data model steps batch learning-rate threads checkpoint ranks)), '',
            '  with the most common ones');
    }
}
check("--help $_", "--help $_", 2, qr/^options: --help \Q$_\E: only the word all may follow\. Use --help, or --help all$/, 1) for qw(xyz al book.txt);
check('--help of ranks', '--help xyz', 2, qr/^options: --help xyz: only the word all may follow/, 2);

for my $ranks (1, 2) {
    my ($status, $out, $err) = run(60, "$program --help --ranks $ranks");
    my $lists = () = $out =~ /^  --ranks N/mg;
    ok($status == 0 && $err eq '' && $lists == 1, "--help, --ranks $ranks: lists the options once") or diag($out, $err);
}

# A request to stop without a place for checkpoints: the sentence says that nothing was saved.
SKIP: {
    skip 'a request to stop: signals go to processes', 1 if $threads;
    my ($status, undef, $err) = run(60, "$program $small $data --steps 1000000 --quiet --ranks 2 --metrics $tmp/stop.jsonl & p=\$!; "
        . "until [ -s $tmp/stop.jsonl ]; do sleep 0.05; done; kill -TERM \$p; wait \$p");
    ok($status == 143 && $err =~ /^training: stopped in step \d+ and not saved: without --checkpoint/m, 'a stop without --checkpoint says what is lost')
        or diag("status $status\n$err");
}

chmod 0755, "$tmp/readonly";
ok(-c "/dev/full", "the device that was full is still there");
done_testing();
