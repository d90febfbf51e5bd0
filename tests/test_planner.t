#!/usr/bin/env perl
# The planner: every case of planner.tsv, and every warning code in one case and absent from another; what one job prints;
# wrong input; a catalogue of one's own; a case that is wrong is found; mutated options and case files under the sanitizers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my ($plan, $cases) = ("$tmp/plan", "$root/tests/planner.tsv");
my $flags = '-std=gnu11 -O1 -g -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror';
my $checks = sanitizers_missing() ? '' : '-fsanitize=address,undefined -fno-sanitize-recover=all';
my ($status, $out, $err) = run(120, ($ENV{CC} || 'cc') . " $flags $checks $root/examples/tools/plan.c -o $plan -lm");
is($status, 0, 'compiles without a warning') or BAIL_OUT($err);

# ---- cases ----

my @lines = grep { !/^#/ } split /\n/, slurp($cases);
my $count = @lines - 1;
($status, $out) = run(60, "$plan --cases $cases --check");
is((split /\n/, $out)[-1], "$count of $count", 'all cases') or diag($out);
is($status, 0, '  and status 0');
cmp_ok($count, '>=', 80, '  of which there are enough');
my ($codes) = slurp("$root/examples/tools/plan.h") =~ /^#define PLAN_WARNINGS(.*?)^#define/ms;
my @codes = $codes =~ /F\((W_\w+)/g;
is(scalar @codes, 42, 'warning codes');
my $text = join "\n", @lines;
is(join(' ', grep { $text !~ /\+$_\b/ } @codes), '', '  each appears in a case');
is(join(' ', grep { $text !~ /!$_\b/ } @codes), '', '  and is absent from another');

spew("$tmp/wrong.tsv", "id\tparams_b\tinstance\tfacts\tx_strategy\tx_warn\tx_num\n# a comment\na\t1.3\tp4d\t-\tdp\t*\t*\n" .
    "b\t7\tp4d\t-\t*\t!W_STATE_EXCEEDS_WEIGHTS\t*\nc\t7\tp4d\t-\t*\t*\tstates_gb=113+-0.5\nd\t7\tp4d\t-\tsharded_dp|tp\t+W_STATE_EXCEEDS_WEIGHTS\tstates_gb=112+-0.5\n" .
    "e\t7\tp4d\t-\t*\t*\tstates_gb=112+-0.5;weights_gb=15\n");
($status, $out) = run(60, "$plan --cases $tmp/wrong.tsv --check");
like($out, qr/\n1 of 5\n\z/, 'cases that expect something else are counted');
is($status, 1, '  with status 1');
($status, $out) = run(60, "$plan --cases $tmp/wrong.tsv");
is(scalar(() = $out =~ /^id=\w /mg), 5, 'without --check a line for each case');
like($out, qr/^id=d strategy=sharded_dp shard=zero2 .* nodes=1 instance=p4d .* warn=W_STATE_EXCEEDS_WEIGHTS num=states_gb=112;/m, '  of key=value');

# ---- one job ----

my $job = '--params-b 7 --optimizer adamw --precision amp_bf16 --layers 32 --hidden 4096 --heads 32 --seq-len 2048 --micro-batch 1 '
    . "--instance 'p4d|p5' --tokens-b 20 --deadline-h 24 --max-nodes 16";
($status, $out, $err) = run(60, "$plan $job");
is("$status$err", '0', 'one job');
like($out, qr/^$_/m, "  prints $_") for qw(plan why topology failures cost observe numbers rejected warnings assumed changes command);
like($out, qr{^command +\./build.sh run --layers 32 .*--ranks \d+ .*--zero \d}m, '  with options of our trainer');
my ($before, $after) = $out =~ /deadline_h 24 -> ([\d.]+) \(\+/ ? ($1 * 0.99, $1 * 1.01) : (0, 0);
my ($first) = $out =~ /^plan +(.*)/m;
my @said = map { (run(60, "$plan $job --deadline-h $_"))[1] =~ /^plan +(.*)/m } $before, $after;
is($said[0], $first, 'just before the number at which the answer changes it is the same');
isnt($said[1], $first, '  and just after it another one');
($status, $out) = run(60, "$plan $job --json");
my $json = eval { require JSON::PP; JSON::PP->new->decode($out) };
is_deeply([@$json{qw(strategy instance)}], ['sharded_dp', 'p5'], 'as JSON') or diag($out);

for ('--params-b 100000 --deadline-h 5', '--params-b 400 --deadline-h 0.001') { # nothing fits; all are late
    is((run(30, "$plan $_ --ref-hours 1e6 --mp-family partition --max-nodes 99991 --layers 97 --hidden 12288"))[0], 0, "a huge job takes no longer: $_");
}
for my $sweep (qw(scaling cost spot compiler)) {
    ($status, $out, $err) = run(60, "$plan --sweep $sweep --svg $tmp/x.svg --params-b 7 --instance p5 --deadline-h 30");
    my $svg = slurp("$tmp/x.svg");
    my @open = $svg =~ /<(\w+)\b(?:[^>]*[^\/>])?>/g;
    my @close = $svg =~ /<\/(\w+)>/g;
    ok($status == 0 && $svg =~ /^<svg .*<\/svg>\n\z/s && "@{[sort @open]}" eq "@{[sort @close]}" && "$out$svg" !~ /\bnan\b|\binf\b/, "sweep: $sweep") or diag("$out$err");
}
like((run(60, "$plan --sweep scaling --params-b 1.5 --seq-len 8192 --micro-batch 1 --instance p4d"))[1], qr/^ +64 +81\.04 +54\.34 +23\.59$/m, '  scaling has the numbers of 61_scaling');
like((run(60, "$plan --sweep compiler"))[1], qr/break-even T = c s \/ \(s - 1\)\n.*^compiled = not compiled: 90 minutes/ms, '  with its formula');

spew("$tmp/wide.tsv", "i\0d\0\t\0s\0p\0o\0t\0\n\0x\0\t\x001\0");
spew("$tmp/typed.tsv", "id\tparam_b\tspot\nx\t70\n");
like((run(60, "$plan --cases $tmp/typed.tsv"))[2], qr/column 'param_b' is not a field: it is left out\nplan: line 2 has 2 of 3 columns/, 'what a file of cases has wrong is said');
spew("$tmp/typed.tsv", "id\tfacts\tx_tp\nx\t" . 'spot=0;' x 100_000 . "\t" . '2|' x 100_000 . "1\n");
is((run(20, "$plan --cases $tmp/typed.tsv --check"))[1], "1 of 1\n", 'cells of many parts take no longer for it');
is((run(20, "ulimit -f 1; $plan --sweep scaling --svg $tmp/large.svg"))[0] . (-e "$tmp/large.svg" ? ' left' : ''), 1, 'half a plot is not left');
like((run(60, "$plan --sweep spot --tokens-b 20 --instance p9"))[1], qr/^  tokens_b is not used here$/m, 'and what a sweep does not use');
for (['a sweep', '--sweep all', qr/choose scaling, cost/], ['a price', '--sweep spot --instance p5e', qr/no price of p5e/], ['an unknown option', '--colour 7', qr/what is '--colour'.*--help/], ['nothing', '', qr/^\z/], ['no sweep', '--sweep', qr/--sweep needs a value/], ['no value', '--params-b', qr/--params-b needs a value/],
     ['a word', '--params-b many', qr/params_b: 'many' is not a number from/], ['no number', '--params-b nan', qr/params_b: 'nan'/],
     ['half a GPU', '--ref-gpus 0.5', qr/not a whole number/], ['a strategy', '--given-strategy mp', qr/not one of single\|job_parallel/],
     ['a file of cases', "--cases $tmp/absent", qr/cannot read/, 1], ['a folder of cases', "--cases $tmp", qr/cannot read/, 1], ['UTF-16', "--cases $tmp/wide.tsv", qr/cannot read .* as a text/, 1],
     ['a file without a case', '--cases /dev/null --check', qr/has no case/, 1], ['a full disk', '--params-b 7 --json >/dev/full', qr/cannot write the output/, 1], ['a catalogue', "--instances $tmp/absent", qr/cannot be read/]) {
    my ($name, $options, $pattern, $want) = @$_;
    ($status, undef, $err) = run(60, "$plan $options");
    ok($status == ($want || 2) && $err =~ $pattern, "refused: $name") or diag("status $status\n$err");
}
for (['7B', '--params-b 7B'], ['=', '--params-b=7'], ['7000M', '--facts params_b=7000M'], ['0.007T', '--params-b 0.007T']) {
    like((run(60, "$plan $_->[1]"))[1], qr/^numbers +states_gb +112$/m, "$_->[0] is 7 billion");
}
like((run(60, "$plan --params-b 1 --spot yes"))[1], qr/^plan +.*, Spot$/m, 'yes is 1');
for (['a missing input', '--deadline-h 5 --params-b 1', qr/ref_hours not given: the deadline cannot be judged/], ['nodes', '--cur-nodes 8 --max-nodes 4', qr/cur_nodes 8 exceeds max_nodes 4: cur_nodes counts/],
     ['sizes', '--params-b 70 --layers 24 --hidden 1024', qr/params_b 70 contradicts layers and hidden/],
     ['degrees', '--params-b 30 --given-tp 8 --given-pp 4 --cur-nodes 1 --instance p4d', qr/given_tp x given_pp is 32, and there are 8 GPUs/],
     ['a type', '--instance p9', qr/'p9' is not in the catalogue: it is left out/], ['a fact', "--facts 'colour=red'", qr/'colour' is not a fact/]) {
    my ($name, $options, $pattern) = @$_;
    ($status, $out, $err) = run(60, "$plan $options");
    ok($status == 0 && $out =~ $pattern, "decided and said: $name") or diag($out . $err);
}

# ---- a catalogue ----

($status, $out) = run(60, "$plan --list");
spew("$tmp/types.tsv", $out =~ s/^#.*\n//r);
like((run(60, "$plan --list"))[1], qr/^ml\.p5\.48xlarge\tH100\t8\t80\t/m, 'the catalogue');
is((run(60, "$plan --instances $tmp/types.tsv --cases $cases --check"))[0], 0, '  read back gives the same answers');
spew("$tmp/types.tsv", "instance\taccel\tcount\tgb_each\tefa\tefa_cards\tgpudirect_rdma\nml.old.large\tK\t8\t80\t0\t4\t1\n");
like((run(60, "$plan --instances $tmp/types.tsv --params-b 1 --cur-nodes 2 --efa 1"))[1], qr/W_EFA_UNAVAILABLE/, 'columns that nothing uses are left out');
spew("$tmp/types.tsv", "instance\tcount\tgb_each\nbig\t4\t2000\n");
like((run(60, "$plan --instances $tmp/types.tsv --params-b 70"))[1], qr/^plan +single on 1 x big/m, 'a catalogue of one type');
for ("nothing\n", "instance\tcount\n", "instance\tcount\tgb_each\nx\t-3\t80\n", "instance\tcount\tgb_each\nx\t8\n", "instance\tcount\tgb_each\n" . "x\t8\t80\n" x 65) {
    spew("$tmp/types.tsv", $_);
    is((run(60, "$plan --instances $tmp/types.tsv"))[0], 2, 'refused: ' . s/\n.*//sr);
}

# ---- the trainer's own layouts ----

for ("--params-b 0.124 --layers 12 --hidden 768 --heads 12 --instance p4d --cur-nodes 1 --ref-hours 9 --deadline-h 2", '--params-b 7 --layers 32 --hidden 4096 --cur-nodes 1 --instance p4d',
     '--params-b 70 --layers 80 --hidden 8192 --cur-nodes 3 --instance p4de --mp-family partition --global-batch 100', '--params-b 1.3 --layers 24 --hidden 2048 --micro-batch 4 --instance p4d --cur-nodes 1') {
    my ($command, $ranks) = (run(60, "$plan $_"))[1] =~ /^command +\.\/build\.sh run (.*--ranks (\d+).*)/m or fail("a command for $_"), next;
    $command =~ s/--ranks \d+/--dry-run 0:$ranks --vocabulary 256/;
    ($status, undef, $err) = run(60, trainer() . " $command");
    is($status, 0, "the trainer plans $command") or diag($err);
}

like((run(60, "$plan --params-b 70 --layers 80 --hidden 8192 --heads 64 --instance p5 --cur-nodes 64 --global-batch 1024"))[1], qr/^command .* --micro-batch 512 .* --zero 3 --accumulation each/m,
     'several micro-batches reduce their gradients each, or a rank keeps them all');

my $dry = trainer() . ' --model 124M --vocabulary 50304 --dry-run';
for (['one rank', "0:1 --checkpoint $tmp/c", []], ['a pipeline without need', '0:4 --pp 4', ['MP_UNNEEDED', 'BUBBLE', 'NO_CKPT']],
     ['a tensor group over nodes', "0:4 --tp 4 --tensor-shards 4 --checkpoint $tmp/c --facts procs_per_node=2", ['MP_UNNEEDED', 'TP_CROSS_NODE']],
     ['Spot', "0:2 --steps 1000 --checkpoint $tmp/c --checkpoint-every 100 --facts 'spot=1;ref_hours=10;ref_gpus=2'", ['CKPT_INTERVAL']],
     ['Spot, saved often', "0:2 --steps 1000 --checkpoint $tmp/c --checkpoint-every 20 --facts 'spot=1;ref_hours=10;ref_gpus=2'", []],
     ['a small batch', "0:2 --checkpoint $tmp/c --facts 'gpu_util_pct=40;cpu_util_pct=20;gpumem_p95=30;deadline_h=5'", ['BATCH_TOO_SMALL']]) {
    my ($name, $options, $want) = @$_;
    ($status, $out, $err) = run(60, "$dry $options");
    my @said = $out =~ /^advice   W_(\w+): /mg;
    is("$status @{[sort @said]}", "0 @{[sort @$want]}", "dry run: $name") or diag($err);
}
like((run(60, "$dry 0:1 --facts instance=none"))[2], qr/'none' is not in the catalogue/, 'dry run: an instance that is not known');

# ---- bytes that nobody wrote ----

seeded();
my @names = slurp("$root/examples/tools/plan.h") =~ /^    F\((\w+), '[irwt]'/mg;
my @values = ('-', '0', '1', '-1', '2', '7', '8', '64', '1e9', '1e308', 'nan', 'inf', '0.001', '99.9', '||', 'p4d|p5||x', '', 'x' x 300, "\xff\xfe", '%s%n', 'tp', 'pp+dp', 'ask', 'partition', 'rank0', 'smddp,smp', 'file');
sub one { return $_[int rand @_] }
sub mutated {
    my $line = shift;
    for (0 .. rand 4) {
        my $at = int rand(1 + length $line);
        my $kind = int rand 4;
        if ($kind == 0) { substr($line, $at, int rand 9) = one("\t", ';', '=', '|', '-', "\0", one(@values), one(@names) . '=' . one(@values)) }
        elsif ($kind == 1) { substr($line, $at, int rand 30) = '' }
        elsif ($kind == 2) { $line .= ';' . one(@names) . '=' . one(@values) }
        else { $line = join "\t", map { rand() < 0.9 ? $_ : one(@values) } split /\t/, $line, -1 }
    }
    return $line =~ s/\n/ /gr;
}
my $rounds = full() ? 40 : 2;
my ($bad, $fault) = (0, qr/Sanitizer|runtime error/); # whose status is 1, as that of a case that does not hold
for (1 .. $rounds) {
    my @wide = (join("\t", 'id', (map { one(@names) } 1 .. 40), 'x_warn', 'x_num', 'x_tp'), map { join "\t", 'w', map { one(@values) } 1 .. 43 } 1 .. 100);
    spew("$tmp/fuzz.tsv", join "\n", $lines[0], map { mutated(one(@lines)) } 1 .. 600);
    spew("$tmp/wide.tsv", join "\n", @wide);
    spew("$tmp/types.tsv", join "\n", map { rand() < 0.7 ? $_ : mutated($_) } split /\n/, slurp("$root/examples/tools/cost.h") =~ s/\\t/\t/gr);
    for ("--cases $tmp/fuzz.tsv", "--cases $tmp/fuzz.tsv --check", "--cases $tmp/wide.tsv --check", "--instances $tmp/types.tsv") {
        ($status, $out, $err) = run(60, "$plan $_");
        $bad++, diag("$_: status $status\n" . substr $err, -2000) if $status > 2 || $err =~ $fault;
    }
}
for (1 .. 12 * $rounds) {
    my @options = map { my $v = one(@values); $v =~ s/'//g; '--' . one(@names) . " '$v'" } 1 .. 1 + rand 8;
    ($status, $out, $err) = run(60, "$plan @options");
    $bad++, diag("@options: status $status\n" . substr $err, -2000) if $status > 2 || $err =~ $fault;
    ($status, $out, $err) = run(60, "$plan --json --facts '" . join(';', map { one(@names) . '=' . one(1, 2, 8, 64, 0.5, 'p4d|p3', 'ask', 'dp', 'tp+pp') } 1 .. 25) . "'");
    $bad++, diag("facts: status $status\n" . substr $err, -2000) if $status;
}
is($bad, 0, 'nothing crashes');

done_testing();
