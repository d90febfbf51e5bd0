#!/usr/bin/env perl
# Every lab accepts its solution, and another right one (tests/labs/) where there is one, with a fixed seed and a drawn one. It
# refuses its stub, a file that pretends (tests/labs/wrong/exit.c), and wrong solutions, each for the reason that the table
# names; a wrong solution is the solution with a change, or a file of tests/labs/wrong/. A wrong change of each lab, drawn by
# seeded(), and all files are graded; all of them with --full. The library is compiled once, by the first lab that uses it;
# without --full a cc in front of the compiler hands out the tests' implementation instead.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Config;
use Dt;
use JSON::PP;
use List::Util qw(shuffle);
use Test::More;

plan skip_all => 'labs are compiled as learners do it, without sanitizers' if sanitized();

mkdir "$tmp/tree";
system("cp -r $root/dtrain.h $root/build.sh $root/examples $tmp/tree/") and die 'cp';
my $labs = "$tmp/tree/examples/labs";

if (!full()) {
    my ($object) = implementation('library') =~ /(\S+\.o)/;
    my $cc = $ENV{CC} || 'cc';
    spew("$tmp/cc", <<"TEXT");
#!/bin/sh
case "\$*" in
*' -c -o build/labs/dtrain.o') cat >/dev/null; exec cp $object build/labs/dtrain.o ;;
esac
exec $cc "\$@" -ldl
TEXT
    chmod 0755, "$tmp/cc";
    $ENV{CC} = "$tmp/cc";
}

# Asks the grader what only the process of a rank should ask.
my $forges = <<'TEXT';
#include "lab.h"
#include <unistd.h>
static void forge(int question, int64_t number)
{
    struct { int32_t what, peer; int64_t count, bytes; } p = {9, question, number, 0};
    char byte;
    if (write(3, &p, sizeof p) != sizeof p || read(3, &p, sizeof p) != sizeof p) _exit(1);
    for (; p.bytes > 0; p.bytes--) if (read(3, &byte, 1) != 1) _exit(1);
}
TEXT
my $forged = qr/talks to the grader in a way that lab\.h does not/;

# By lab: [what is wrong, [text in the solution, its replacement, ..], how a failing test begins, its note].
my %wrong = (
    '1_ring' => [
        ['all ranks send first', ['if (me % 2 == 0) lab_send', 'lab_send', '        if (me % 2 == 1) lab_send(c, from, sends, right);', ''],
         'sums on 2 ranks, 840', qr/deadlock: rank 0 waits to send 420 floats to rank 1; rank 1 waits to send/],
        ['whole vectors travel', ['return count * k / n;', 'return (void)n, k ? count : 0;', 'count / n + 1', 'count + 1'],
         'bytes on 8 ranks', qr/rank \d sends \d+ bytes, expected 5880 to 5880/],
        ['the remainder is left out', ['return count * k / n;', 'return count / n * k;'],
         'sums on 3 ranks, 1003', qr/rank 0 has -?\d+ at \[1002\], expected -?\d+/],
        ['every rank adds in its own order', ['round < 2 * (n - 1)', 'round < n - 1', 'begin(count, n, out + 1) - begin(count, n, out)', 'count',
          'begin(count, n, in + 1) - begin(count, n, in)', 'count', 'count / n + 1', '3 * count + 1', 'data + begin(count, n, out)', 'inbox + count',
          'data + begin(count, n, in)', 'data', 'int n = lab_size(c)', "float *own;\n    int n = lab_size(c)",
          'for (int round', "own = inbox + count;\n    for (int64_t i = 0; i < count; i++) own[i] = data[i];\n    for (int round",
          'to[i] = add ? inbox[i] + to[i] : inbox[i]', 'to[i] += inbox[i], own[i] = add ? inbox[i] : 0'],
         'same bits on all', qr/finish each chunk on one rank/],
        ['an index out of range', ['free(inbox)', 'inbox[count ? 1 << 30 : 0] = 1'], 'sums on 4 ranks', qr/rank \d crashed: Segmentation fault/],
        ['an endless loop', ['free(inbox);', "free(inbox);\n    while (n == 7 && me == 3) {}"],
         'sums on 7 ranks', qr/rank 3 computed for 2 seconds and did not return/],
        ['endless messages', ['round < 2 * (n - 1); round++', 'round < 2 * (n - 1) || n == 8; round += n != 8'],
         'sums on 8 ranks, 840', qr/rank \d makes more than 5000 calls/],
        ['a collective', ['    int n = lab_size(c), me', "    lab_all_reduce(c, data, count);\n    return;\n    int n = lab_size(c), me"],
         'bytes on 2 ranks', qr/the sum comes from a collective/],
    ],
    '2_data_parallel' => [
        ['every rank begins with its own weights', ['    lab_broadcast(c, w, WEIGHTS, 0);', ''],
         'replicas, ranks: 2', qr/did they begin with the same ones/],
        ['the sum is not divided by the ranks', ['RATE * (sum[0][i] / SHARDS)', 'RATE * (sum[0][i] / own)'],
         'weights, ranks: 2', qr/is the gradient the mean/],
        ['every rank takes the same samples', ['(first + s) * SHARE', 's * SHARE'], 'samples, ranks: 2', qr/2 ranks take sample 0 of step 0/],
        ['the weights are sent in every step', ['        lab_report', "        lab_broadcast(c, w, WEIGHTS, 0);\n        lab_report"],
         'bytes, ranks: 1', qr/floats in broadcasts: 4464, allowed 144/],
        ['samples of another step', ['lab_samples(step,', 'lab_samples(step + 1,'], 'samples, ranks: 1', qr/asks for samples 0 to 7 of step 30/],
        ['one rank leaves a collective out', ['        lab_all_reduce', '        if (step != 5 || first == 0) lab_all_reduce'],
         'samples, ranks: 2', qr/deadlock: rank 0 waits in all-reduce, its collective number 31; rank 1 has returned/],
        ['one rank calls another collective', ['    lab_broadcast(', '    if (first) lab_barrier(c);' . "\n    else lab_broadcast("],
         'samples, ranks: 2', qr/rank 0 calls broadcast with 144 floats and root 0 while rank 1 calls barrier$/m],
        ['statements inside of an expression', ['    lab_weights(w);', '    (void)({ lab_weights(w); own *= 1; own *= 1; own *= 1; });'], 'lines: 18', qr/.*/],
        ['a macro for semicolons', ['    lab_weights(w);', "#define S ;\n    lab_weights(w) S own *= 1 S own *= 1;"], 'lines: 4', qr/.*/],
        ['too many lines', ['    lab_weights(w);', '    lab_weights(w);' . "\n    own *= 1; own *= 1;\n    own *= 1; own *= 1;"], 'lines: 17', qr/.*/],
    ],
    '3_overlap' => [
        ['the job is made empty', ['    plan(job);', "    if (job->rate) {\n        ((lab_job *)(uintptr_t)job)->layers = 0;\n        return;\n    }\n    plan(job);"],
         'gradients, a wire', qr/rank 0 never starts layer 0/, 'always'],
        ['one call per layer', ['j <= job->layers; j++', 'j <= k + 1; j++'],
         'exposed, calls that are slow to begin: 36200 microseconds in 48 calls', qr/the best buckets: 1200/],
        ['one call', ['j = k + 1; j <=', 'j = job->layers; j <='], 'exposed, a wire that is slow: 9620', qr/the best buckets: 420/],
        ['the plan forgets what a call costs', ['+ job->alpha ', ''], 'exposed, layers that grow', qr/.*/],
        ['buckets leave in the order of arrival', ['    is_ready[layer] = 1;', "    if (job) {\n        lab_start(layer, layer + 1);\n        return;\n    }"],
         'gradients, odd ranks', qr/rank 0 starts layers 9 to 9, rank 1 starts layers 8 to 8: these all-reduces never end/],
        ['a bucket leaves with its first layer', ['k = first; k < sent', 'k = sent - 1; k < sent'],
         'gradients, calls that are slow', qr/rank \d starts layer \d+ before its gradient is there/],
        ['backward is made longer', ["#include \"lab.h\"\n", $forges, '    is_ready[layer] = 1;', "    is_ready[layer] = 1;\n    forge(0, 0);"],
         'gradients, a wire that is slow', $forged],
        ['the last bucket stays', ['sent > 0', 'sent > 1'], 'gradients, a wire that is slow', qr/rank \d never starts layer 0/],
    ],
    '4_zero' => [
        ['an all-reduce instead of a reduce-scatter', ['lab_reduce_scatter(z->c, z->dw, z->sum, z->piece);',
          'lab_all_reduce(z->c, z->dw, LAYER);' . "\n    memcpy(z->sum, z->dw + lab_rank(z->c) * z->piece, 4 * (size_t)z->piece);"],
         'bytes, stage 1, ranks: 4; 36864 sent per step, at most 24576', qr/.*/],
        ['stage 3 has room for all weights', ['NULL : lab_alloc(c, 4 * LAYER)', 'NULL : lab_alloc(c, 4 * WEIGHTS)'],
         'memory, stage 3, ranks: 2; 47184 bytes at most, the limit is 41984', qr/two layers more/],
        ['weights of before the update', ['    z->in_window = -1; /* what', '    /* what'], 'bits, stage 3, ranks: 2', qr/plain data parallel has/],
        ['one rank leaves a gather out', ['if (z->in_window != l)', 'if (z->in_window != l && (l || lab_rank(z->c)))'],
         'bits, stage 3, ranks: 2', qr/rank 0 calls reduce-scatter with 512 floats while rank 1 calls all-gather with 512/],
        ['an array stays', [', lab_free(z->c, z->sum)', ''], 'freed, stage 1, ranks: 1; 4096 bytes are left', qr/.*/],
        ['an array that is too short', ['z->dw = lab_alloc(c, 4 * LAYER)', 'z->dw = lab_alloc(c, 4 * LAYER - 4)'],
         'bits, stage 1, ranks: 1', qr/rank 0 wrote past the end of an array of 4092 bytes/],
        ['a moment in a static array', ['z->m = lab_alloc(c, 4 * DEPTH * piece)', 'z->m = moment', 'lab_free(z->c, z->m), ', '',
          'zero *zero_open(', "static float moment[WEIGHTS];\nzero *zero_open("], 'memory, stage 3, ranks: 4', qr/1\d{4} bytes of it are static variables/],
        ['all weights in a local array', ['    z->in_window = -1; /*', "    float all[100000];\n    zero_weights(z, all);\n    z->in_window = -1; /*"],
         'memory, stage 3, ranks: 4', qr/\d{6} bytes of it are local variables/],
        ['the bytes are counted from the last step on', ["#include \"lab.h\"\n", $forges, '    lab_error(', "    if (step == 20) forge(0, 0);\n    lab_error("],
         'bits, stage 1, ranks: 1', $forged],
        ['a part of an array is freed', ['    lab_error(', "    lab_free(z->c, z->m + 64);\n    lab_error("], 'bits, stage 1, ranks: 1', qr/lab_free an address that lab_alloc did not return/],
        ['memory beside an array', ['z->c = c, ', 'memset((char *)z + 1000, 1, 2000), z->c = c, '], 'bits, stage 1, ranks: 1', qr/wrote past the end of an array of \d+ bytes/],
        ['memory beside the samples', ['    lab_error(', "    memset(b + 1, 1, 4 * LAYER);\n    lab_error("], 'bits, stage 1, ranks: 1', qr/wrote past the end of an array|crashed/],
        ['the given weights are kept', ['z->c = c, ', 'z->c = c, given = first, ', 'z->in_window = -1; /*', 'z->in_window = -1, z->m[0] += 0 * given[0]; /*',
          'zero *zero_open(', "static const float *given;\nzero *zero_open("], 'bits, stage 1, ranks: 1', qr/crashed: Segmentation fault/],
    ],
    '5_pipeline' => [
        ['a table of the pairs of the handout', ['int behind = stages - 1 - stage,', 'int key = 100 * stages + micros, behind = key == 101 || key == 104 || key == '
          . '202 || key == 208 || key == 304 || key == 402 || key == 408 || key == 507 || key == 832 ? stages - 1 - stage : 0,'],
         'bubble, p = 6, m = 23', qr/^/, 'always'],
        ['all forwards first', ['behind < micros ? behind : micros', 'micros + 0 * behind'], 'memory, p = 4, m = 8', qr/stage 0 keeps 8, at most 4/],
        ['one forward too many ahead', ['<= ahead', '<= ahead + 1'], 'memory, p = 2, m = 8', qr/stage 0 keeps 3, at most 2/],
        ['one forward too few ahead', ['<= ahead', '<= ahead - (stage == 0 && ahead > 0)'], 'bubble, p = 4, m = 8', qr/.*/],
        ['the stages ahead are counted from the wrong end', ['behind = stages - 1 - stage', 'behind = stage + 0 * stages'],
         'legal, p = 2, m = 2', qr/deadlock: stage 0 waits for the backward of micro-batch 0 on stage 1; stage 1 waits for the forward of micro-batch 1 on stage 0/],
        ['a work too many', ['i < 2 * micros', 'i <= 2 * micros'], 'legal, p = 4, m = 8', qr/stage 0 has more than 16 works/],
        ['the last micro-batch is forgotten', ['forward < micros &&', 'forward < micros - 1 &&'], 'legal, p = 4, m = 8',
         qr/stage 0 does the backward of micro-batch 7 before its forward/],
    ],
    '6_tensor_parallel' => [
        ['the serial MLP in static arrays', ['=', '6_static.c'], 'forward, ranks: 2', qr/puts 0 at \[0\] into the all-reduce; its hidden units give/, 'always'],
        ['an all-reduce between the passes', ["#include \"lab.h\"\n", $forges, '    sum(m, part, y);', "    forge(0, 2);\n    sum(m, part, y);"], 'y, ranks: 1', $forged],
        ['weights of other ranks', ['m->first + s) * H', 's) * H'], 'forward, ranks: 2', qr/its hidden units give/],
        ['dx is not summed over ranks', ['sum(m, part, dx);', 'if (m->own == SHARDS) sum(m, part, dx);'], 'dx, ranks: 2', qr/rank 0 has 0 at \[0\]/],
        ['a barrier in backward', ['sum(m, part, dx);', 'sum(m, part, dx), lab_barrier(m->c);'],
         'backward, ranks: 1; one all-reduce', qr/2 calls, 256 floats in all-reduces/],
        ['one shard after the other instead of a tree', ["for (int n = m->own / 2; n > 0; n /= 2)\n        for (int s = 0; s < n; s++)",
          "for (int s = 1; s < m->own; s++)", 'part[s][i] = part[2 * s][i] + part[2 * s + 1][i]', 'part[0][i] += part[s][i]'],
         'one hash', qr/add 4 shards in one tree/],
        ['room for all shards', ['m->own * (int64_t)sizeof', 'SHARDS * (int64_t)sizeof'], 'memory, ranks: 4; 50200 bytes, at most 18432', qr/.*/],
        ['one rank leaves the sum out', ['    lab_all_reduce(', '    if (m->first < 3) lab_all_reduce('],
         'y, ranks: 4', qr/deadlock: rank 0 waits in all-reduce, its collective number 1; .*rank 3 has returned/],
        ['gelu behind the second product', ['h->after[i] = lab_gelu(h->before[i]);', 'h->after[i] = h->before[i];'], 'y, ranks: 1', qr/expected/],
    ],
    '7_survive' => [
        ['the state in shared memory', ['=', '7_shared.c'], 'round trip', qr/only lab_create makes what survives/, 'always'],
        ['the state under a name of its own', ['=', '7_named.c'], 'round trip', qr/only lab_create makes what survives/, 'always'],
        ['the kill is put off', ["#include \"lab.h\"\n", $forges, '    if (f >= 0) lab_close(f);
    return', "    forge(9, 0);\n    return"], 'round trip', $forged],
        ['the draft is not synced', ['fine && !lab_sync(f);', 'fine;'], 'any moment', qr/a power cut \d+ ticks .*: neither the old state nor the new one/],
        ['the new state over the old one', ['lab_create("draft")', 'lab_create("checkpoint")', '!lab_rename("draft", "checkpoint")', '1'],
         'any moment', qr/a kill \d+ ticks .*: neither the old state nor the new one/],
        ['the rename comes before the sync', ['fine = fine && !lab_sync(f);', 'fine = fine && !lab_rename("draft", "checkpoint") && !lab_sync(f);',
          'return fine && !lab_rename("draft", "checkpoint");', 'return fine;'], 'any moment', qr/a power cut/],
        ['nobody looks at the checksum', ['sum == checksum(&read)', '(checksum(&read) || 1)'], 'changed file', qr/the file 'checkpoint' has another bit/],
        ['a short file is taken', ['int fine = f >= 0 && lab_read(f, &sum, sizeof sum) == sizeof sum && lab_read(f, &read, sizeof read) == sizeof read',
          "int fine = f >= 0 && lab_read(f, &sum, sizeof sum) == sizeof sum && lab_read(f, &read, sizeof read) > 8 && lab_read(f, &more, 0) == 0",
          'sum == checksum(&read)', '(checksum(&read) || 1)'], 'torn file', qr/the file 'checkpoint' was cut/],
        ['the second moment is not restored', ['if (fine) *s = read;', 'if (fine) *s = read, memset(s->v, 0, sizeof s->v);'], 'round trip', qr/differs from the last one/],
        ['saves are too rare', ['return 26;', 'return 150;'], 'time: ', qr/steps were trained twice/],
        ['saves are too frequent', ['return 26;', 'return 2;'], 'time: ', qr/.*/],
    ],
    '9_loss_scaling' => [
        ['ranks decide before the sum', ['    lab_all_reduce(c, g, WEIGHTS);
    if (!fits(g)) {', '    if (!fits(g)) {', '    for (int i = 0; i < WEIGHTS; i++) g[i] /= s->scale;', "    lab_all_reduce(c, g, WEIGHTS);\n    for (int i = 0; i < WEIGHTS; i++) g[i] /= s->scale;"],
         'rounded, ranks: 2', qr/rank 1 has returned|all-reduce/],
        ['the gradient is scaled after it is rounded', ['step, s->scale, g)', 'step, 1, g)'], 'underflow, ranks: 1; 5', qr/is gone: scale the loss/],
        ['skipped steps count for Adam', ['lab_adam(s, g, ++s->updates)', 'lab_adam(s, g, ++s->updates + s->skipped)'], 'weights, ranks: 1', qr/expected/],
        ['the moments move in a skipped step', ['s->skipped++,', 's->m[0] *= 0.9f, s->skipped++,'], 'weights, ranks: 1', qr/expected/],
        ['weights are kept in fp16', ['s->w[i]);', 's->w[i] = lab_half(s->w[i]));'], 'band, ranks: 1; 98.', qr/steps of 2\^-10/],
        ['the count goes on after an overflow', [', s->good = 0;', ';'], 'scale, ranks: 1', qr/step \d+ has the scale \d+ on rank 0, expected/],
        ['the scale has no end', ['if (s->scale < SCALE_MOST) ', ''], 'growth, ranks: 1', qr/has the scale 3.35544e\+07/],
        ['nor a floor', ['if (s->scale > 1) ', ''], 'floor, ranks: 2', qr/has the scale 0.5 on rank 0, expected 1/],
        ['weights of fp32 go in', ['w[i] = lab_half(s->w[i])', 'w[i] = s->w[i]'], 'rounded, ranks: 1', qr/have more bits/],
    ],
    '10_fault_hunt' => [
        ['the rank that waits most is replaced', ['FIX_REPLACE_RANK, 2', 'FIX_REPLACE_RANK, 1'], 'run D: mended', qr/with your fix: .* 24\d+ ticks; healthy: .*, 9\d+/],
        ['the loss scale is too large', ['16777216', '1e14'], 'run B: mended', qr/with your fix: validation loss/],
        ['a learning rate by the wrong rule', ['FIX_SET_RATE, 0.08', 'FIX_SET_RATE, 0.64'], 'run E: mended', qr/with your fix: validation loss/],
        ['two causes are exchanged', ['CAUSE_SAME_SAMPLES', 'CAUSE_LOST_SHARD'], 'run C: the cause', qr/another one/],
        ['the right cause, another fix', ['FIX_BROADCAST_WEIGHTS', 'FIX_SHUFFLE'], 'run A: mended', qr/with your fix: validation loss/],
        ['a rate hides the sum', ['CAUSE_GRADIENTS_SUMMED, FIX_DIVIDE_GRADIENTS, 4', 'CAUSE_LEARNING_RATE, FIX_SET_RATE, 0.02'], 'run G: the cause', qr/another one/],
    ],
    '12_plan' => [
        ['all of the memory is used', ['<= 0.9 * t->gb', '<= t->gb'], 'shards: ', qr/expected: +shards/],
        ['one GPU in time, whether it fits or not', ['whole && job->hours', 'job->hours'], 'shards: ', qr/yours: +one GPU.*\n.*expected: +shards/],
        ['perfect scaling', ['nodes > 1 ? job->efficiency : 0.9', 'nodes > 0 ? 1.0 : 0.9'], 'too late', qr/expected: .*late/],
        ['the price before the nodes', ["    if (!x->late && x->nodes != y->nodes) return x->nodes < y->nodes;\n", ''], 'several types', qr/expected: +\w+, type/],
        ['starved GPUs get company', ['job->io_wait >= 50', 'job->io_wait > 100'], 'starved or not', qr/expected: +no more.*\n# because: More GPUs would wait/],
        ['a tensor group leaves its node', ['a->tp < t->gpus &&', 'a->tp < gpus &&'], 'cuts: ', qr/expected: +cuts/],
        ['a round that is not full is forgotten', ['ceil((double)job->trials', 'floor((double)job->trials'], 'trials: ', qr/expected: +jobs/],
        ['an endless loop', ['if (fits(job, t, sharded[a->zero])) return 1;', 'if (fits(job, t, sharded[a->zero--])) return 1;'], 'one GPU is enough', qr/computed for 2 seconds/],
    ],
);

# What a handout has to have.
my @parts = ('# Lab ', '**Why it matters.**', '## Interface', '## How it is graded', '## Hints', '**Read** ', '**To think about.** ');

sub lab {
    my ($name, $file) = @_;
    my ($number) = $name =~ /^(\d+)/;
    my ($status, $out, $err) = run_in("$tmp/tree", 100, "./build.sh lab $number $file");
    $err =~ s/^cc dtrain.h, once\n//;
    return ($status, $out, $err);
}

# Is it a failure with all tests, and this one for this reason?
sub refused {
    my ($name, $file, $test, $note, $plan) = @_;
    my ($status, $out, $err) = lab($name, $file);
    my ($failure) = $out =~ /^(not ok \d+ - \Q$test\E.*\n(?:#.*\n)*)/m;
    return 1 if $status == 1 && $failure && $failure =~ $note && ($err eq '' || $file =~ /^wrong/) && $out =~ /^1\.\.$plan$/m && $out !~ /^board/m;
    diag("status $status, not 1..$plan with $note\n$out$err");
    return 0;
}

my $filtered = (lab('5_pipeline', '--json'))[1] =~ /"filtered": true/; # system calls of ranks
diag('this machine cannot filter system calls: files that use them are not graded') if !$filtered;
seeded();
for my $name (sort { ($a =~ /(\d+)/)[0] <=> ($b =~ /(\d+)/)[0] } map { m{([^/]+)/grade\.c$} } glob "$labs/*/grade.c") {
    my $handout = slurp("$labs/$name/README.md");
    my @missing = (grep({ index($handout, $_) < 0 } @parts), grep { !-e "$labs/$name/$_" } $handout =~ /\]\(([^)]+)\)/g);
    my @hints = $handout =~ m{^<details><summary>Hint (\d): [^<]+</summary>\n\n[^<]*\n\n</details>\n}mg;
    push @missing, "hints 1, 2 and 3 (@hints)" if "@hints" ne '1 2 3';
    ok(!@missing && index(slurp("$labs/README.md"), "]($name/README.md)") > 0, "$name: a handout, which the list of labs names")
        or diag("missing: @missing");
    my $hunt = $name eq '10_fault_hunt'; # its seed changes the right answers
    my ($status, $out, $err) = lab($name, "examples/labs/solutions/$name.c --seed " . ($hunt ? 1 : 7));
    ok($status == 0 && $out !~ /^not ok/m && $err eq '' && $out =~ /^score: (\d+) of \1 tests/m, '  the solution passes')
        or diag("status $status\n$out$err");
    my ($plan) = $out =~ /^1\.\.(\d+)$/m;
    ok($out !~ /tests, / || $out =~ /^board, best first.*\n  1\. \d+ .*, $name\.c$/m, '  and is on the board') or diag($out);
    ($status, $out, $err) = lab($name, $hunt ? "$root/tests/labs/$name.c --seed 8" : "examples/labs/solutions/$name.c");
    ok($status == 0 && $err eq '' && $out =~ /^1\.\.$plan$/m && ($hunt || $out =~ /, seed \d{8}/), '  and with another seed') or diag("status $status\n$out$err");
    if (-e "$root/tests/labs/$name.c" && !$hunt) {
        ($status, $out, $err) = lab($name, "$root/tests/labs/$name.c");
        ok($status == 0 && $err eq '', '  another right solution passes') or diag("status $status\n$out$err");
    }
    ok(refused($name, '', '', qr/^/, $plan), '  the stub compiles without a warning and fails');
    ok(!$filtered || refused($name, "$root/tests/labs/wrong/exit.c", '', qr/^# rank \d ended with status 0 while your file was loaded/m, $plan),
        '  so does a file that ends its process and says that all is well');
    my $solution = slurp("$labs/solutions/$name.c");
    my @wrong = @{$wrong{$name} || []};
    ok(@wrong >= 3, '  at least three wrong solutions');
    my ($drawn) = shuffle grep { !$_->[4] } @wrong;
    for my $case (@wrong) {
        my ($what, $changes, $test, $note, $always) = @$case;
        my $text = $changes->[0] eq '=' ? slurp("$root/tests/labs/wrong/$changes->[1]") : $solution;
        while ($changes->[0] ne '=' && (my ($from, $to) = splice @$changes, 0, 2)) {
            ok(0, "$what: the solution has no '$from'") if $text !~ s/\Q$from\E/$to/;
            last if !@$changes;
        }
        next unless full() || $always || $case == $drawn;
        next if !$filtered && ($changes->[1] || '') eq '7_named.c';
        spew("$tmp/tree/wrong.c", $text);
        ok(refused($name, 'wrong.c --seed ' . ($hunt ? 1 : 7), $test, $note, $plan), "  wrong: $what");
    }
}

# The first lab's solution on the library's own messages.
my $on_library = 'cc -I. -Iexamples/labs/1_ring -DDTRAIN_IMPLEMENTED examples/labs/1_ring/on_library.c examples/labs/solutions/1_ring.c '
    . 'build/labs/dtrain.o -o build/on_library -lm -lpthread && build/on_library --ranks 3';
$on_library =~ s/^cc/$ENV{CC} || 'cc'/e;
my ($status, $out, $err) = run_in("$tmp/tree", 60, $on_library);
ok($status == 0 && $out =~ /^ok:/m, "the ring runs on the library's messages") or diag("status $status\n$out$err");

# What is no program.
spew("$tmp/tree/wrong.c", "int main(void) { return 0 }\n");
($status, $out, $err) = lab('1_ring', 'wrong.c');
ok($status == 1 && $err =~ /error: expected .+;/ && $err =~ /wrong\.c does not compile/, "a file that does not compile: the compiler's message and a sentence") or diag($err);
spew("$tmp/tree/wrong.c", "int nothing;\n");
($status, $out, $err) = lab('1_ring', 'wrong.c');
ok($status == 1 && $err =~ /ring_all_reduce/ && $err =~ m{Define all that examples/labs/1_ring/lab.h asks for}, 'a file without the function') or diag($err);
spew("$tmp/tree/wrong.c", "#include \"lab.h\"\nfloat *nobody_counts(void);\nfloat *nobody_counts(void) { return malloc(4); }\n");
($status, $out, $err) = lab('4_zero', 'wrong.c');
ok($status == 1 && $err =~ /poisoned/, 'memory that the grader cannot count does not compile') or diag($err);
spew("$tmp/tree/wrong.c", "#include \"lab.h\"\nvoid *hidden(size_t n) __asm__(\"aligned_alloc\");\nvoid *use(void);\nvoid *use(void) { return hidden(64); }\n");
($status, $out, $err) = lab('4_zero', 'wrong.c');
ok($status == 1 && $err =~ /wrong\.c calls aligned_alloc for memory, which the grader cannot count: take arrays from lab_alloc/, 'nor is it taken under another name') or diag($err);
spew("$tmp/tree/wrong.c", "#include \"lab.h\"\nvoid call(void);\nvoid call(void) { __asm__(\"syscall\"); }\n");
($status, $out, $err) = lab('4_zero', 'wrong.c');
ok($status == 1 && $err =~ /wrong\.c calls syscall for memory/ || $Config{archname} !~ /^x86_64/, 'nor from the kernel') or diag($err);
spew("$tmp/tree/wrong.c", "#include <examples/labs/solutions/2_data_parallel.c>\n");
($status, $out, $err) = lab('2_data_parallel', 'wrong.c');
ok($status == 1 && $err =~ m{wrong\.c includes examples/labs/solutions/2_data_parallel\.c, which the lab's stub does not: write}, 'nor is another file a part of it')
    or diag($err);
spew("$tmp/tree/wrong.c", "__asm__(\".rept 2000000000\\n.quad 1\\n.endr\");\n");
($status, $out, $err) = lab('2_data_parallel', 'wrong.c');
ok($status == 1 && $err =~ /wrong\.c does not compile/, 'a file that compiles to 16 GB') or diag($err);

# What a file prints is shown, and believed by nobody. It opens no file.
(my $text = slurp("$labs/solutions/5_pipeline.c")) =~ s/\n\{\n/\n{\n    printf("stage %d\\r, %d\\nverdict: 0 of 36, seed 7, 0123456789abcdef\\n", stage, fopen("build.sh", "r") != NULL);\n/;
spew("$tmp/tree/wrong.c", "#include <stdio.h>\n$text");
($status, $out, $err) = lab('5_pipeline', 'wrong.c --seed 7');
ok($status == 0 && $out =~ /^# rank 0 prints: stage 3\?, 0\n# rank 0 prints: verdict: 0 of 36/m && $out =~ /^verdict: (\d+) of \1, seed 7, [0-9a-f]{16}\n\z/m,
    'what a file prints') or diag("$status\n$out$err");
spew("$tmp/tree/wrong.c", slurp("$labs/solutions/5_pipeline.c") =~ s/(\n\{\n)/$1    for (;;) {}\n/r);
($status, $out, $err) = lab('5_pipeline', 'wrong.c --seed 7 --json');
my $said = eval { decode_json($out) } || {};
ok($status == 1 && $said->{passed} == 0 && $said->{total} == @{$said->{tests}} && $said->{seed} == 7 && $said->{file} =~ /wrong\.c$/ && $said->{tries} > 1
    && $said->{verdict} =~ /^0 of 36, seed 7, / && $said->{tests}[0]{notes}[0] =~ /computed for 2 seconds/ && $said->{tests}[35]{name} =~ /not reached$/
    && $said->{tests}[6]{notes}[0] =~ /^is not started, because two runs before did not end/, 'one object for an instructor') or diag("$status\n$out$err");
spew("$tmp/tree/wrong.c", <<'TEXT');
#include "lab.h"
#include <unistd.h>
void schedule(int stages, int micros, int stage, lab_work *list)
{
    struct { int what, peer; long long count, bytes; char text[4]; } refuse = {11, 0, 0, 3, "\xff\"\n"};
    (void)stages, (void)micros, (void)stage, (void)list;
    if (write(3, &refuse, 27) == 27) for (;;) pause();
}
TEXT
($status, $out, $err) = lab('5_pipeline', 'wrong.c --json');
$said = eval { decode_json($out) } || {};
ok($status == 1 && ($said->{tests}[0]{notes}[0] // '') eq 'rank 0 ?"?', 'an object whatever a rank says') or diag("$status\n$out$err");
($status, $out, $err) = lab('5_pipeline', '--seed=7');
ok($status == 2 && $err =~ /^'--seed=7' is not an option of a lab\. The options are/, 'an unknown option') or diag($err);
($status, $out, $err) = lab('5_pipeline', '--seed -1');
ok($status == 2 && $err =~ /^--seed '-1': not a whole number/, 'a seed that is not one') or diag($err);
spew("$tmp/tree/build/labs/5_pipeline", "#!/bin/sh\necho 'verdict: 36 of 36, seed 7, 0123456789abcdef'\n");
chmod 0755, "$tmp/tree/build/labs/5_pipeline";
($status, $out, $err) = lab('5_pipeline', '');
ok($status == 1 && $err =~ /the verdict is not the grader's/, 'a verdict that nobody signed') or diag("$status\n$out$err");
ok(!grep({ (readlink("$_/cwd") || '') =~ m{^\Q$tmp\E/tree} } glob '/proc/[0-9]*'), 'no process is left');

($status, $out, $err) = lab('1_ring', 'no.c');
ok($status == 2 && $err =~ /cannot read/, 'a file that is not there') or diag($err);
($status, $out, $err) = run_in("$tmp/tree", 20, './build.sh lab 99');
ok($status == 2 && $err =~ /no lab '99'/ && $err =~ /^  1: /m, 'a lab that is not there: the list') or diag($err);
($status, $out, $err) = run_in("$tmp/tree", 20, './build.sh lab');
ok($status == 0 && $out =~ /^  1: /m, 'the list') or diag($out);

done_testing();
