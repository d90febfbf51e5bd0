# Shared by the .t files: where things are, running a program with a time limit, building a trainer.
package Dt;
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp qw(tempdir);
use POSIX qw(:sys_wait_h);
use Exporter qw(import);
our @EXPORT = qw($root $tmp $build run run_in slurp spew have sanitized full isas trainer corpus);

our $root = abs_path(dirname(__FILE__) . '/..');
our $tmp = tempdir('dtrain-test-XXXXXX', TMPDIR => 1, CLEANUP => 1);
our $build = $ENV{DT_TEST_BUILD} || 'build/tests';
$build = "$root/$build" unless $build =~ m{^/};

sub full { return $ENV{DT_FULL} ? 1 : 0 }
sub sanitized { return $ENV{DT_SANITIZE} ? 1 : 0 }

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
        alarm $seconds;
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

# The trainer program of examples/10_train.c, as `./build.sh test` built it; built here when a test runs alone.
sub trainer {
    my $program = "$build/10_train";
    return $program if -x $program && -M $program < -M "$root/dtrain.h" && -M $program < -M "$root/examples/10_train.c";
    my $cc = $ENV{CC} || 'cc';
    my $flags = $ENV{DT_TEST_CFLAGS} || '';
    mkdir $_ for "$root/build", $build;
    my ($status, undef, $err) = run(600, "$cc -std=gnu11 -O2 $flags -I$root $root/examples/10_train.c -o $program -lm -lpthread");
    die "cannot build the trainer: $err" if $status;
    return $program;
}

# A generated text of so many bytes, the same ones on every machine.
sub corpus {
    my $bytes = shift;
    my $file = "$tmp/corpus.$bytes.txt";
    my ($status, undef, $err) = -e $file ? (0) : run(60, trainer() . " --generate $file $bytes");
    die "cannot generate a text: $err" if $status;
    return $file;
}

1;
