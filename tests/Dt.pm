# Shared by the .t files: where things are, running a program with a time limit, building a trainer, the recipes whose
# hashes are written down, killing a rank.
package Dt;
use strict;
use warnings;
use Cwd qw(abs_path);
use Digest::SHA qw(sha256_hex);
use File::Basename qw(dirname);
use File::Temp qw(tempdir);
use List::Util qw(min shuffle);
use POSIX qw(:sys_wait_h);
use Test::More ();
use Time::HiRes qw(sleep time);
use Exporter qw(import);
our @EXPORT = qw($root $tmp $build run run_in slurp spew have seeded drawn sanitized full isas implementation linked_with built sanitizers_missing fuzz trainer corpus %recipe golden hash_of kill_one
                 mpi_missing mpi_flags mpi_program mpirun);

our $root = abs_path(dirname(__FILE__) . '/..');
our $tmp = tempdir('dtrain-test-XXXXXX', TMPDIR => 1, CLEANUP => 1);
our $build = $ENV{DT_TEST_BUILD} || 'build/tests';
$build = "$root/$build" unless $build =~ m{^/};

sub full { return $ENV{DT_FULL} ? 1 : 0 }
sub sanitized { return $ENV{DT_SANITIZE} ? 1 : 0 }

# Draws as DT_SEED says; else the same with the same header, and another sample with each change of it.
sub seeded {
    my $seed = $ENV{DT_SEED} || hex substr sha256_hex(slurp("$root/dtrain.h")), 0, 8;
    srand $seed;
    Test::More::diag("DT_SEED=$seed");
}

# So many of the cases, as seeded() draws, in their order; all of them with --full.
sub drawn {
    my ($count, @cases) = @_;
    return @cases if full();
    my @which = sort { $a <=> $b } (shuffle 0 .. $#cases)[0 .. min($count, scalar @cases) - 1];
    return @cases[@which];
}

sub slurp { my $file = shift; open my $f, '<:raw', $file or return ''; local $/; my $text = <$f>; return defined $text ? $text : '' }
sub spew { my ($file, $text) = @_; open my $f, '>:raw', $file or die "$file: $!"; print $f $text; close $f or die "$file: $!" }
sub have { my $tool = shift; return !system("command -v $tool >/dev/null 2>&1") }

# Runs a shell command in `folder`; returns (exit status, standard output, standard error). A status above 128 is a signal,
# 124 a run longer than `seconds`; then the whole process group is killed.
my $runs = 0;
sub run_in {
    my ($folder, $seconds, $command) = @_;
    my ($out, $err) = map { "$tmp/.$_." . $runs } qw(out err);
    $runs++;
    my $pid = fork();
    die "fork: $!" unless defined $pid;
    if (!$pid) {
        setpgrp;
        open STDIN, '<', '/dev/null';
        open STDOUT, '>', $out;
        open STDERR, '>', $err;
        chdir $folder or die "chdir $folder: $!\n";
        exec '/bin/sh', '-c', $command;
        exit 127;
    }
    my $status;
    eval {
        local $SIG{ALRM} = sub { die "late\n" };
        alarm $seconds * ($ENV{DT_SANITIZE} ? 5 : 1); # sanitized programs are that much slower
        waitpid $pid, 0;
        $status = WIFSIGNALED($?) ? 128 + WTERMSIG($?) : WEXITSTATUS($?);
        alarm 0;
    };
    if (!defined $status) {
        kill 'KILL', -$pid;
        waitpid $pid, 0;
        $status = 124;
    }
    my @result = ($status, slurp($out), slurp($err));
    unlink $out, $err;
    return @result;
}
sub run { return run_in($tmp, @_) }

# The instruction sets that this processor has, and those that it lacks.
sub isas {
    my ($arm, $flags) = slurp('/proc/cpuinfo') =~ /^(?:flags|(Features))\s*:(.*)$/m;
    my %flag = map { $_ => 1 } split ' ', $flags || '';
    return (['portable', 'neon'], []) if $arm;
    my %has = (portable => 1, avx2 => $flag{avx2} && $flag{fma}, avx512 => !(grep { !$flag{$_} } qw(avx512f avx512dq avx512bw avx512vl)));
    return ([grep { $has{$_} } qw(portable avx2 avx512)], [grep { !$has{$_} } qw(portable avx2 avx512)]);
}

# What the compiler needs to use an implementation: flags and an object.
sub implementation {
    my $name = shift;
    my $uses = `'$root/build.sh' object $name`;
    Test::More::BAIL_OUT("the implementation '$name' does not compile") if $?;
    return $uses =~ s/\s+$//r;
}

# Builds a program from a source with an implementation that `./build.sh test` compiled (its names: build.sh); it is
# compiled here when a test runs alone.
sub linked_with {
    my ($implementation, $source, $program, $flags) = @_;
    my $uses = implementation($implementation);
    my ($status, undef, $err) = run(600, ($ENV{CC} || 'cc') . " -std=gnu11 -O1 " . ($flags || '') . " $source -o $program $uses -I$root -I$root/tests -I$root/examples -lm -lpthread");
    Test::More::BAIL_OUT("$source does not compile: $err") if $status;
    return $program;
}

# A program of `./build.sh test`; built here when a test runs alone.
sub built {
    my ($implementation, $source, $program) = ($_[0], "$root/$_[1]", "$build/$_[2]");
    return $program if -x $program && -M $program < -M "$root/dtrain.h" && -M $program < -M $source;
    return linked_with($implementation, $source, $program);
}
sub trainer { return built('library', 'examples/06_train.c', '06_train') }

# Why nothing can run under MPI here, or nothing.
sub mpi_missing {
    my ($tool) = grep { !have($_) } qw(mpicc mpirun);
    return $tool ? "$tool is not installed (apt-get install openmpi-bin libopenmpi-dev)" : '';
}

# Why the implementation 'checked' cannot be had, or nothing.
sub sanitizers_missing {
    return 'the usual build does it' if sanitized();
    my ($no, undef, $err) = run(60, "echo 'int main(void) { return 0; }' | " . ($ENV{CC} || 'cc') . ' -x c - -o none -fsanitize=address,undefined');
    return $no ? "no sanitizers here: $err" : '';
}

# Runs tests/fuzz_NAME.c for so many seconds under the sanitizers that find what it looks for. A sanitized build, which
# would be another one, leaves it out.
sub fuzz {
    my ($name, $seconds) = @_;
  SKIP: {
        my $missing = sanitizers_missing();
        Test::More::skip("fuzzing: $missing", 1) if $missing;
        my $program = linked_with('checked', "$root/tests/fuzz_$name.c", "$tmp/fuzz_$name");
        my ($bad, $said, $error) = run($seconds + 120, "$program $seconds");
        Test::More::ok($bad == 0 && $said =~ /nothing found/, "fuzzing: $said") or Test::More::diag($error);
    }
}

# What mpicc adds, with mpi.h as a system header, whose warnings are not ours: to `compile`, or to `link`.
sub mpi_flags {
    my $step = shift;
    my (undef, $flags) = run(60, "mpicc --showme:$step");
    $flags =~ s/(?:^|(?<=\s))-I/-isystem /g;
    return $flags =~ s/\s+/ /gr;
}

sub mpi_program { return built('engines', "tests/mpi_$_[0].c", "mpi_$_[0]") }

# Runs a command on so many ranks as run() does; 0: without mpirun. What sanitizers find in Open MPI does not count; what
# it keeps till the end is told from leaks of ours by the whole stack, which takes a slow walk.
sub mpirun {
    my ($seconds, $ranks, $command) = @_;
    local $ENV{LSAN_OPTIONS} = "suppressions=$root/tests/mpi.supp:print_suppressions=0";
    local $ENV{ASAN_OPTIONS} = join ':', grep { $_ } $ENV{ASAN_OPTIONS}, 'fast_unwind_on_malloc=0';
    local $ENV{TSAN_OPTIONS} = 'ignore_noninstrumented_modules=1:detect_deadlocks=0';
    return run($seconds, $ranks ? "mpirun --allow-run-as-root --oversubscribe -np $ranks $command" : $command);
}

# A generated text of so many bytes, the same ones on every machine.
sub corpus {
    my $bytes = shift;
    my $file = "$tmp/corpus.$bytes.txt";
    my ($status, undef, $err) = -e $file ? (0) : run(60, trainer() . " --generate $file $bytes");
    die "cannot generate a text: $err" if $status;
    return $file;
}

# The recipes of golden/hash.txt, at most 1 GFLOP each: 0.7 MFLOP per token, 0.8 of llama.
our %recipe = (
    base => '--batch 8 --sequence 32 --steps 5',
    llama => '--model llama-nano --batch 8 --sequence 32 --steps 3',
    dropout => '--batch 8 --sequence 32 --steps 3 --dropout 0.1',
    shard => '--batch 16 --micro-batch 8 --sequence 16 --steps 4 --accumulation shard',
    each => '--batch 16 --micro-batch 8 --sequence 16 --steps 4 --accumulation each',
    adam => '--batch 8 --sequence 16 --steps 3 --optimizer adam --clip-value 0.01',
    sgd => '--batch 8 --sequence 16 --steps 3 --optimizer sgd --learning-rate 0.3 --momentum 0.9 --nesterov --ema 0.9',
    lion => '--batch 8 --sequence 16 --steps 3 --optimizer lion --learning-rate 3e-4 --beta2 0.99',
    experts => '--batch 16 --micro-batch 8 --sequence 16 --steps 3 --accumulation shard --experts 4 --capacity 1.1',
    switch => '--batch 16 --micro-batch 8 --sequence 16 --steps 3 --accumulation each --experts 5 --active 1',
    dropless => '--batch 16 --micro-batch 8 --sequence 16 --steps 3 --accumulation shard --experts 8 --active 3 --width 32 --ema 0.5',
    tensor => '--heads 4 --tensor-shards 4 --batch 16 --micro-batch 8 --sequence 16 --steps 3 --dropout 0.1',
    tensor_llama => '--model llama-nano --tensor-shards 2 --batch 16 --micro-batch 8 --sequence 16 --steps 3 --ema 0.5',
    tensor_experts => '--heads 4 --tensor-shards 2 --batch 16 --micro-batch 8 --sequence 16 --steps 3 --accumulation each --experts 4 --capacity 1.1 --vocabulary 257',
    context => '--heads 4 --context-shards 4 --tensor-shards 2 --batch 16 --micro-batch 8 --sequence 24 --steps 3 --dropout 0.1',
    context_llama => '--model llama-nano --context-shards 4 --batch 16 --micro-batch 8 --sequence 32 --steps 3 --accumulation each',
    context_experts => '--heads 4 --context-shards 4 --tensor-shards 2 --batch 16 --micro-batch 8 --sequence 16 --steps 3 --accumulation shard --experts 4 --capacity 1.1',
    context_switch => '--model llama-nano --context-shards 2 --batch 16 --micro-batch 8 --sequence 16 --steps 3 --accumulation each --experts 8 --active 1 --balance 0.1',
    bf16 => '--precision bf16 --batch 8 --sequence 32 --steps 4 --dropout 0.1',
    bf16_tensor => '--precision bf16 --heads 4 --tensor-shards 4 --batch 16 --micro-batch 8 --sequence 16 --steps 3 --accumulation each',
    bf16_context => '--precision bf16 --model llama-nano --context-shards 4 --tensor-shards 2 --batch 16 --micro-batch 8 --sequence 32 --steps 3',
    bf16_experts => '--precision bf16 --heads 4 --tensor-shards 2 --batch 16 --micro-batch 8 --sequence 16 --steps 3 --experts 4 --capacity 1.1',
    fp16 => '--precision fp16 --batch 8 --sequence 16 --steps 6 --experts 4 --balance 300 --capacity 1.1 --learning-rate 0.01 --dropout 0.1',
    deep => '--layers 8 --width 32 --batch 16 --micro-batch 8 --sequence 8 --steps 3 --accumulation each',
);

# The hashes that are written down, by recipe.
sub golden { return map { split } grep { /^\w+ [0-9a-f]{64}$/ } split /\n/, slurp("$root/tests/golden/hash.txt") }

# The hash of a recipe with this layout; environment in front of the command; another program than the trainer. A drawn
# quarter of all calls but slow ones, and with DT_FULL=1 every one, runs once more on the mirror (mirror.h) and must give
# the same.
sub hash_of {
    my ($name, $layout, $environment, $binary) = @_;
    my $hash = hash_by(@_);
    return $hash if sanitized() || $binary || $hash =~ /^none/ || (!full() && (rand 4 >= 1 || ($environment || '') =~ /portable/));
    my $mirror = 'DT_MIRROR=' . (1 + int rand 1000);
    my $other = hash_by($name, $layout, ($environment || '') . " $mirror");
    return $hash eq $other ? $hash : "$hash, and with $mirror $other";
}
sub hash_by {
    my ($name, $layout, $environment, $binary) = @_;
    my $common = '--data ' . corpus(20000) . ' --model nano --warmup 2 --validation 0 --sample-length 0 --quiet';
    my ($status, $out, $err) = run(300, ($environment || '') . ' ' . ($binary || trainer()) . " $common $recipe{$name} $layout");
    Test::More::diag("status $status\n$err") if $status;
    return $out =~ /^sha256 ([0-9a-f]{64})$/m ? $1 : "none (status $status)";
}

sub ranks_of {
    my $supervisor = shift;
    my @found;
    for my $status (glob '/proc/[0-9]*/stat') {
        my ($pid, $parent) = slurp($status) =~ /^(\d+) \(.*\) \S (\d+)/ or next;
        push @found, $pid if $parent == $supervisor;
    }
    return sort { $a <=> $b } @found;
}

# Starts a trainer that would run for ever, sends the signal to one of its ranks after so many seconds ('STOP all': to all
# of them, so that only the supervisor can notice), and waits for its end: a failure that names the rank, in time, with no process left. Tests it.
sub kill_one {
    my ($signal, $after, $ranks, $options) = @_;
    my $all = $signal =~ s/ all//;
    my $timeout = $signal eq 'STOP' ? '--timeout 1' : ''; # the dead are seen at once
    my $command = trainer() . ' --data ' . corpus(60000) . " --model nano --steps 1000000 --sample-length 0 --ranks $ranks $timeout $options";
    my $pid = fork;
    die "fork: $!" unless defined $pid;
    if (!$pid) {
        open STDOUT, '>', '/dev/null';
        open STDERR, '>', "$tmp/err";
        exec split ' ', $command;
    }
    my @child;
    for (1 .. 200) {
        @child = ranks_of($pid);
        last if @child == $ranks;
        sleep 0.02;
    }
    sleep $after;
    my $victim = $child[$all ? 0 : int rand @child];
    my $began = time;
    kill $signal, $all ? @child : $victim;
    local $SIG{ALRM} = sub { kill 'KILL', $pid };
    alarm 60;
    waitpid $pid, 0;
    my ($status, $seconds, $err) = ($?, time - $began, slurp("$tmp/err"));
    alarm 0;
    Test::More::ok($status != 0 && $seconds < 20 && $err =~ /rank \d+ \(pid $victim\)/, "$signal " . ($all ? 'all' : 'one') . " of $ranks ranks $options: the run fails and names it")
        or Test::More::diag("status $status, $seconds s: $err");
    sleep 0.05;
    Test::More::is(scalar(grep { kill 0, $_ } @child), 0, '  and no process is left');
}

1;
