#!/usr/bin/env perl
# Messages between processes that mpirun started: the fabric over MPI, alone and when a rank dies.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;
use Time::HiRes qw(time);

plan skip_all => mpi_missing() if mpi_missing();
my $program = mpi_program('messages');

# The lines of a program that prints TAP are this test's lines.
sub passes {
    my ($ranks, $what, $options) = @_;
    my ($status, $out, $err) = mpirun(240, $ranks, ($options || '') . " $program $what");
    my @line = $out =~ /^((?:not )?ok \d+ - .*)$/mg;
    ok(/^ok/, s/^(?:not )?ok \d+ - (.*)$/$what on $ranks: $1/r) for @line;
    is($status, 0, "$what on $ranks: mpirun ends well");
    ok($out =~ /^1\.\.(\d+)$/m && $1 == @line, '  and every test was run');
    diag($err) if $err ne '' || $status;
}

passes($_, 'all') for 1 .. 5;
passes(2, 'mine');
passes(2, 'left', '-x DT_NODES=2');
passes(2, 'abandoned');
passes(3, 'all', '--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo'); # as between machines
SKIP: {
    skip 'a message of 2^31 + 4 bytes: only with --full', 1 unless full();
    passes(2, 'huge');
}

my ($status, $out) = run(60, "$program expected");
is($out, "0\n", 'without mpirun no other process is expected');
is((run(60, "PMI_RANK=1 PMI_SIZE=3 $program expected"))[1], "3\n", 'PMI 2 tells how many there are');
is((run(60, "PMIX_RANK=1 SLURM_STEP_NUM_TASKS=4 $program expected"))[1], "4\n", 'with PMIx, srun does');
is((run(60, "PMIX_RANK=0 $program expected"))[1], "1\n", 'PMIx alone tells only that it was started');
{
    local @ENV{qw(OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM PMI_RANK PMI_SIZE)} = (1, 1, 1, 3);
    like((mpirun(60, 0, "$program all"))[1], qr/3 processes were started, but MPI sees one: .* srun --mpi=pmix/,
        'a launcher that MPI cannot talk to is seen');
}

# Debian's Open MPI cannot go on without a rank: mpirun ends the job.
my $began = time;
($status, $out, my $err) = mpirun(60, 3, "$program killed");
cmp_ok(time - $began, '<', sanitized() ? 30 : 10, sprintf 'a killed rank: the job is over after %.1f s', time - $began);
is($status, 137, 'mpirun gives the status of the signal');
like($err, qr/rank 1 .*exited on signal 9 \(Killed\)/, 'and names the rank');
unlike($err, qr/gave up/, 'no other rank came to its end');
SKIP: {
    skip 'a frozen rank takes 12 s: only with --full', 2 unless full();
    $began = time;
    ($status, $out, $err) = mpirun(60, 3, "$program frozen");
    cmp_ok(time - $began, '<', 30, 'a rank that does not come to the end is not waited for for ever');
    ok($status != 0 && $err =~ /rank 0 gave up/ && $err =~ /rank 2 gave up/, 'and the job has failed')
        or diag("status $status\n$err");
}

done_testing();
