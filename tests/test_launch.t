# Where and how a program starts: the locale, closed descriptors, signals that are blocked, ignored or handled, launchers
# around it, files that are inputs and outputs. Each in the builds that this machine can make.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use JSON::PP;
use Test::More;
use Time::HiRes qw(sleep time);
use POSIX qw(:sys_wait_h setpgid);

my $cc = $ENV{CC} || 'cc';
my $flags = $ENV{DT_TEST_CFLAGS} || '-O0 -DDT_DEBUG';
mkdir $_ for "$root/build", $build;

# tests/launched.c with these switches.
sub launched {
    my ($name, $switches) = @_;
    my ($program, $source) = ("$build/launched_$name", "$root/tests/launched.c");
    return $program if -x $program && -M $program < -M "$root/dtrain.h" && -M $program < -M $source;
    my ($status, undef, $err) = run(900, "$cc -std=gnu11 $flags -I$root $source -o $program $switches -lm -lpthread");
    return $status ? (diag($err), undef)[1] : $program;
}
my $plain = built('library', 'tests/launched.c', 'launched_plain');
my $comm = launched('comm', '-DDT_COMM_ONLY') or BAIL_OUT('launched.c does not compile with DT_COMM_ONLY');
my $mpi = mpi_missing() ? '' : mpi_flags('compile') . mpi_flags('link');
my $fabric = run(60, "echo '#include <rdma/fabric.h>' | $cc -E - >/dev/null") ? '' : '-DDT_OFI -lfabric';
my $engines = $mpi || $fabric ? built('engines', 'tests/launched.c', 'launched_engines') : undef;

spew("$tmp/text", join ' ', map { ($_ * 7919) % 1000 } 1 .. 4000);
my $train = "--data $tmp/text --batch 8 --sequence 16";
my $places = 0;
sub place { return "$tmp/place" . $places++ }
sub steps_in { my $dir = shift; my @steps = sort { $a <=> $b } map { /step-(\d{9})$/ ? $1 + 0 : () } glob "$dir/step-*"; return @steps }

# Starts a shell command in a process group of its own; `prepare` runs in the child first.
sub start {
    my ($command, $prepare) = @_;
    my $out = "$tmp/started." . $places++;
    my $pid = fork();
    if (!$pid) {
        setpgrp;
        $SIG{$_} = 'DEFAULT' for qw(INT QUIT HUP TERM); # a job in the background of a shell ignores some
        open STDIN, '<', '/dev/null';
        open STDOUT, '>', $out;
        open STDERR, '>&', \*STDOUT;
        $prepare->() if $prepare;
        exec '/bin/sh', '-c', $command;
    }
    return {pid => $pid, out => $out};
}
sub until_true {
    my ($seconds, $test) = @_;
    my $end = time + $seconds;
    while (time < $end) { return 1 if $test->(); sleep 0.02 }
    return 0;
}
# The exit status as a shell gives it; "late" after so many seconds.
sub ended {
    my ($job, $seconds) = @_;
    my $status = 'late';
    until_true($seconds, sub { waitpid($job->{pid}, WNOHANG) == $job->{pid} && ($status = WIFSIGNALED($?) ? 128 + WTERMSIG($?) : WEXITSTATUS($?), 1)[1] });
    if ($status eq 'late') { kill 'KILL', -$job->{pid}; waitpid $job->{pid}, 0 }
    return $status;
}

# ---- the locale ---------------------------------------------------------------------------------
my $localedef = !have('localedef') || run(120, "mkdir -p $tmp/locale && localedef -i de_DE -f UTF-8 $tmp/locale/de_DE.UTF-8") ? 0 : 1;
SKIP: {
    skip 'localedef makes no de_DE.UTF-8 here: apt-get install locales', 1 if !-d "$tmp/locale/de_DE.UTF-8";
    local $ENV{LOCPATH} = "$tmp/locale";
    local $ENV{LC_ALL} = 'de_DE.UTF-8';
    my %seen;
    for my $when ('never', 'before', 'after') {
        local $ENV{SETLOCALE} = $when;
        my $dir = place();
        my @run = run(120, "DT_TIMEOUT=60.5 $plain $train --steps 3 --ranks 2 --learning-rate 2.5e-3 --warmup 1 --validation 0.25 --eval-every 2 " .
                      "--compile on --checkpoint $dir --checkpoint-every 1 --metrics $dir.m --timeline $dir.t");
        is($run[0], 0, "a trainer, setlocale $when") or diag($run[2]);
        unlike($run[1], qr/\d,\d/, '  prints no decimal comma');
        my @lines = split /\n/, slurp("$dir.m");
        my @values = map { my $m = eval { decode_json($_) } || {}; join ' ', map { $m->{$_} // '' } qw(step loss norm learning_rate validation) } @lines[1 .. $#lines];
        my $files = join "\n", map { my $name = $_; $name =~ s{.*/}{}; "$name " . Digest::SHA::sha256_hex(slurp($_)) } sort glob "$dir/step-*/*.safetensors";
        my $manifest = eval { decode_json(slurp((glob "$dir/step-*/manifest.json")[-1])) } || {};
        my $code = join ' ', map { s{.*/}{}r } sort glob "$dir.cache/dtrain/*.so";
        ok(eval { decode_json(slurp("$dir.t")) }, '  its timeline is JSON');
        $seen{$when} = join "\n", @values, $files, JSON::PP->new->canonical->encode($manifest->{recipe} || {}), $code, $run[1] =~ /^(sha256 .*)$/m;
        my @again = run(60, "$plain $train --steps 3 --ranks 1 --learning-rate 2.5e-3 --warmup 1 --validation 0.25 --checkpoint $dir --resume only");
        is($again[0], 0, '  and its checkpoint resumes') or diag($again[2]);
        my @help = run(60, "$plain --help all");
        $seen{"help $when"} = $help[1];
    }
    is($seen{$_}, $seen{never}, "  metrics, checkpoints, code and hash, setlocale $_, are those of the C locale") for qw(before after);
    is($seen{"help $_"}, $seen{'help never'}, "  --help, setlocale $_") for qw(before);
    local $ENV{SETLOCALE} = 'before';
    my @run = run(60, "$plain $train --steps 3 --learning-rate 2,5");
    like($run[2], qr/--learning-rate 2,5: choose a number/, '  a decimal comma is no number');
}

# ---- descriptors --------------------------------------------------------------------------------
for my $closed ('>&-', '<&-', '2>&-', '<&- >&-', '>&- 2>&-', '<&- >&- 2>&-') {
    is((run(60, "$comm --ranks 2 200 $closed"))[0], 0, "all-reduces with $closed");
    my $dir = place();
    my @run = run(60, "$plain $train --steps 2 --ranks 2 --checkpoint $dir --metrics $dir.m --timeline $dir.t $closed");
    is($run[0], 0, "a trainer with $closed") or diag($run[2]);
    is(join(' ', steps_in($dir)), '2', '  keeps its checkpoint');
    is((run(60, "$plain $train --steps 2 --ranks 1 --checkpoint $dir --resume only"))[0], 0, '  whole') if !$run[0];
}

# ---- signals ------------------------------------------------------------------------------------
# Starts a trainer, waits for a checkpoint, sends the signal, and returns its status and whether it resumes.
sub stopped {
    my ($command, $sig, $prepare, $to) = @_;
    my $dir = place();
    my $job = start("exec $command $train --steps 100000 --eval-every 0 --checkpoint $dir --checkpoint-every 2 --keep 1", $prepare);
    until_true(60, sub { scalar(my @there = steps_in($dir)) }) or diag(substr slurp($job->{out}), -2000);
    kill $_, ($to ? $to->($job) : $job->{pid}) for split / /, $sig;
    my $status = ended($job, 60);
    $job->{text} = slurp($job->{out});
    my ($step) = reverse steps_in($dir);
    return ($status, $step, $job, $dir);
}
my %builds = ('plain' => $plain, 'plain --ranks 2' => "$plain --ranks 2");
if ($engines) {
    $builds{'with engines'} = $engines;
    $builds{'with engines --ranks 2'} = "$engines --ranks 2";
}
for my $build (sort keys %builds) {
    for my $sig (qw(TERM INT HUP)) {
        my ($status, $step, $job) = stopped($builds{$build}, $sig);
        is($status, 75, "SIG$sig, $build: ends with 75") or diag(substr $job->{text}, -2000);
    }
    my ($status) = stopped($builds{$build}, 'TERM', sub { POSIX::sigprocmask(POSIX::SIG_BLOCK(), POSIX::SigSet->new(1, 2, 15)) });
    is($status, 75, "  SIGTERM where signals were blocked at the start");
    my ($late, $step, $job) = stopped($builds{$build}, 'INT HUP TERM', sub { $SIG{INT} = $SIG{QUIT} = $SIG{HUP} = 'IGNORE' });
    is($late, 75, '  SIGINT and SIGHUP that were ignored at the start (nohup, &) do not count');
    unlike($job->{text}, qr/stopped by signal [12]\b/, '  and are not named') if $build =~ /ranks/;
    ($status) = stopped($builds{$build}, 'TERM', sub { $SIG{CHLD} = 'IGNORE' });
    is($status, 75, '  SIGTERM where SIGCHLD is ignored');
    local $ENV{HANDLER} = 'own';
    ($status) = stopped($builds{$build}, 'TERM');
    is($status, $build =~ /ranks/ ? 75 : 55, "  a handler of the program's own stays") if $build !~ /ranks/;
}
{
    my @run = run(60, "sh -c 'kill -TERM \$\$' ; $comm --ranks 2 1000");
    my $job = start("exec $comm --ranks 2 1000000000");
    until_true(20, sub { -s $job->{out} });
    kill 'TERM', $job->{pid};
    is(ended($job, 30), 143, 'SIGTERM to a communicator without checkpoints: 143');
    if ($engines) {
        $job = start("exec $engines $train --steps 1000000 --eval-every 0");
        until_true(20, sub { slurp($job->{out}) =~ /^step/m });
        kill 'TERM', $job->{pid};
        is(ended($job, 30), 143, 'SIGTERM to a trainer without checkpoints that is linked with libfabric: 143');
        unlike(slurp($job->{out}), qr/backtrace|infinipath/i, '  no library says so');
    }
}

{
    my $dir = place();
    my $busy = start("exec $plain $train --steps 100000 --eval-every 0 --quiet --checkpoint $dir --checkpoint-every 2 " .
                     "--mirror '$dir.mirror touch $dir.begun; sleep 2; : \$DT_TO'");
    ok(until_true(60, sub { -e "$dir.begun" }), "a mirror's command runs");
    kill 'INT', $busy->{pid};
    is(ended($busy, 60), 75, '  Ctrl-C meanwhile ends the job');
    mkdir "$tmp/it's_a_mirror";
    my @odd = run(60, "$plain $train --steps 2 --quiet --checkpoint \"$tmp/it's\" --mirror \"$tmp/it's_a_mirror mkdir -p \\\"\\\$DT_FROM\\\"; cp -r \\\"\\\$DT_FROM\\\"/. \\\"\\\$DT_TO\\\"\"");
    is($odd[2], '', "places whose names have a '");
    is(join(' ', steps_in("$tmp/it's_a_mirror")), '2', '  are mirrored');
}

# ---- cores --------------------------------------------------------------------------------------
{
    my $few = "$plain $train --steps 1 --eval-batches 0 --sample-length 0";
    my $threads = sub { my @run = run(60, $_[0]); return join ' ', $run[1] =~ /^layout .* x (\d+) thread/m, $run[1] =~ /^ +(\d+ threads share .*)/m, $run[2] =~ /(.+)/ };
    my $cores = (run(10, 'nproc'))[1] + 0;
    is($threads->("$few --ranks 1"), $cores, "a rank alone uses the $cores cores");
    is($threads->("$few --threads @{[$cores + 1]}"), $cores + 1 . " @{[$cores + 1]} threads share $cores cores: lower --threads", 'more threads than cores: says which option');
    is($threads->("$few --ranks @{[2 * $cores]} --batch @{[8 * $cores]}"), "1 @{[2 * $cores]} threads share $cores cores: use fewer ranks", 'more ranks than cores');
    SKIP: {
        skip 'no taskset', 2 if !have('taskset') || $cores < 2;
        is($threads->("taskset -c 0 $few"), 1, 'one core of the affinity mask');
        is($threads->("taskset -c 0,1 $few --ranks 2 --bind none"), 1, 'two ranks share two cores');
    }
    for (['2', 'echo "150000 100000" >/sys/fs/cgroup/cpu.max', 1], ['2, no limit', 'echo "max 100000" >/sys/fs/cgroup/cpu.max', $cores],
         ['1', 'mkdir /sys/fs/cgroup/cpu; echo 100000 >/sys/fs/cgroup/cpu/cpu.cfs_quota_us; echo 100000 >/sys/fs/cgroup/cpu/cpu.cfs_period_us', 1]) {
        my $space = "unshare -m sh -c 'mount -t tmpfs none /sys/fs/cgroup && $_->[1] && exec";
        SKIP: {
            skip 'no mount namespace here', 1 if (run(10, "$space true'"))[0];
            is($threads->("$space $few'"), $_->[2], "the quota of a control group, version $_->[0]");
        }
    }
    SKIP: {
        skip mpi_missing() || 'no cores', 2 if !$mpi || !$engines || $cores < 2;
        my $under = sub { my @run = mpirun(100, "2 $_[0]", "$engines $train --steps 1 --eval-batches 0 --sample-length 0"); return join ' ', $run[1] =~ /^layout .* x (\d+) thread/m, $run[1] =~ /(\d+ threads share .*)/ };
        is($under->('--bind-to core'), 1, 'mpirun --bind-to core: a thread each');
        is($under->('--bind-to none'), $cores / 2, 'mpirun --bind-to none: a part of the cores each');
    }
}

# ---- options ------------------------------------------------------------------------------------
for (['-h', 0, qr/^Usage: \S+ \[OPTION\].*^Trains a GPT-2 or a Llama/ms], ['--ranks 2 -h', 0, qr/\A(?!.*Usage.*Usage).*^Usage/ms], ['--version', 0, qr/\Adtrain\.h \d+\.\d+\.\d+$/m],
     ['-steps 5', 2, qr/unknown option -steps: options begin with --, did you mean --steps\?/], ['--ranks 2 -quiet', 2, qr/did you mean --quiet\?/]) {
    my @run = run(60, "$plain $train $_->[0]");
    ok($run[0] == $_->[1] && "$run[1]$run[2]" =~ $_->[2], "options: $_->[0]") or diag("$run[0] $run[1] $run[2]");
}
like((run(60, "OWN=1 $plain $train --help all"))[1], qr/^Trains the program's model\.(?!.*--(model|layers|data|tokenizer) ).*^  --learning-rate/ms, 'the help of a program with a model and a source of its own');
like((run(60, "$comm --help"))[1], qr/^Launcher: .*^  --ranks N.*^  --elastic/ms, 'the help of a program with a communicator');
is((run(60, "$plain $train --quiet --steps 1 -- --steps word"))[0], 0, 'what follows -- is the program\'s');

# ---- files that are inputs and outputs ------------------------------------------------------------
{
    my $dir = place();
    mkdir $dir;
    spew("$dir/$_", join ' ', map { $_ * 31 % 977 } 1 .. 3000) for qw(book more);
    spew("$dir/notes", "what I must not forget\n");
    symlink "$dir/book", "$dir/link";
    link "$dir/more", "$dir/hard";
    my $kept = join '', map { slurp("$dir/$_") } qw(book more notes);
    my $here = "--data $dir/book,$dir/more --batch 8 --sequence 16 --steps 2 --quiet";
    for (["--metrics $dir/book", "--metrics $dir/book is a file of --data"], ["--timeline $dir/link", "--timeline $dir/link is a file of --data"],
         ["--metrics $dir/hard --ranks 2", "--metrics $dir/hard is a file of --data"], ["--timeline $dir/../@{[$dir =~ m{([^/]+)$}]}/more", 'is a file of --data'],
         ["--metrics $dir/notes", "$dir/notes exists and is not a file of --metrics"], ["--timeline $dir/notes", "$dir/notes exists and is not a file of --timeline"],
         ["--metrics $dir/m --timeline $dir/m", "--timeline $dir/m is the file of --metrics as well"], ["--metrics $dir/m --timeline $dir/./m", "$dir/./m exists"],
         ["--checkpoint $dir/c --mirror $dir/c", "--mirror $dir/c is the place of --checkpoint"]) {
        my @run = run(60, "$plain $here $_->[0]");
        ok($run[0] == 2 && index($run[2], $_->[1]) >= 0, $_->[1]) or diag("$run[0] $run[2]");
    }
    is(join('', map { slurp("$dir/$_") } qw(book more notes)), $kept, 'and every file is as it was');
    my @run = run(60, "$plain $here --steps 3 --metrics $dir/own --timeline $dir/trace --checkpoint $dir/c --checkpoint-every 2");
    my $lines = () = slurp("$dir/own") =~ /^/mg;
    @run = run(60, "$plain $here --steps 3 --metrics $dir/own --timeline $dir/trace --checkpoint $dir/c --resume-step 2");
    is(() = slurp("$dir/own") =~ /^/mg, $lines + 2, 'a resumed run appends to its metrics') or diag($run[2]);
    @run = run(60, "$plain $here --metrics $dir/own --timeline $dir/trace" =~ s/ --quiet//r);
    like($run[1], qr{^metrics  \Q$dir\E/own of an earlier run is replaced$}m, 'a new run replaces those of another, and says so');
    is(() = slurp("$dir/own") =~ /^/mg, 3, '  its steps alone are there');
    is(join(' ', grep { /tmp/ } map { s{.*/}{}r } glob "$dir/*"), '', '  no draft stays');
    my $job = start("exec $plain $here --steps 100000 --metrics $dir/both");
    until_true(30, sub { slurp("$dir/both") =~ /"step":1,/ });
    @run = run(60, "$plain $here --metrics $dir/both");
    kill 'KILL', $job->{pid};
    ended($job, 10);
    like($run[2], qr/another job writes --metrics/, 'two jobs do not share a file of metrics');
    my @bad = grep { !eval { decode_json($_) } } split /\n/, slurp("$dir/both");
    is(scalar @bad, 0, '  whose lines are whole');
}

done_testing();
