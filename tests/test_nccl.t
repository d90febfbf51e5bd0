#!/usr/bin/env perl
# NCCL. With the library: it loads, and its numbers are those that examples/dt_nccl.h declares; without a GPU a
# sentence says what is missing. All else runs with a stand-in for NCCL and the driver (nccl_stand_in.c): every collective
# and size, ranks that leave, die or do not take part, and what NCCL or the GPU reports. No GPU is used here.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $cc = $ENV{CC} || 'cc';
my $flags = $ENV{DT_TEST_CFLAGS} || '-O1 -DDT_DEBUG';
my ($program, $stand_in) = ("$build/nccl_calls", "$build/nccl_stand_in.so");
mkdir $_ for "$root/build", $build;
delete @ENV{qw(DT_NCCL_LIBRARY DT_CUDA_LIBRARY STAND_IN_GPUS STAND_IN_NO_DEVICE)};
linked_with('open', "$root/tests/nccl_calls.c", $program);
{
    my ($bad, undef, $err) = run(600, "$cc -std=gnu11 $flags -I$root $root/tests/nccl_stand_in.c -o $stand_in -fPIC -shared -lpthread -ldl");
    BAIL_OUT("nccl_stand_in.c does not compile: $err") if $bad;
}
sub calls {
    my ($scenario, $options, $environment) = @_;
    my ($status, $out, $err) = run(60, ($environment || '') . " $program $scenario $options");
    return ($status, join('', sort split /^/, $out), $err);
}

# ---- the library itself ----

my (undef, $loaded) = calls('load', '');
SKIP: {
    skip 'NCCL is not installed (libnccl2)', 2 if $loaded =~ /NCCL cannot be loaded/;
    like($loaded, qr/^(the same magic|no header to compare with): (fine$|NCCL is here, but the driver )/, "NCCL is loaded: $loaded");
    my ($status, $said) = calls('every', '');
    skip 'a GPU is here', 1 if $said !~ /the driver of a GPU is not|the GPU failed|no GPU/;
    like($said, qr/^rank 0: DT_E_SYSTEM: (NCCL is here, but the driver of a GPU is not \(.*\)\. Install it, or call dt_all_reduce, which works on the CPU's memory\.|the GPU failed in NCCL's opening: .*|NCCL and a driver are here, but no GPU.*)$/m,
        'without a GPU a sentence says so');
}
like((calls('load', '', 'DT_NCCL_LIBRARY=/nowhere/libnccl.so'))[1], qr/: NCCL cannot be loaded \(.*\)\. Install libnccl2, or name its file in DT_NCCL_LIBRARY\.$/, 'NCCL is missing');
like((calls('load', '', 'DT_NCCL_LIBRARY=libm.so.6'))[1], qr/: NCCL has no ncclGetUniqueId here\. Install NCCL 2\.14 or newer\.$/, 'a library that is not NCCL');

# ---- the stand-in ----

my $both = "DT_NCCL_LIBRARY=$stand_in DT_CUDA_LIBRARY=$stand_in";
sub threads { my ($scenario, $ranks, $environment) = @_; return calls($scenario, "--ranks $ranks --launch threads --timeout 1", "DT_TIMEOUT=1 $both " . ($environment || '')) }
for my $ranks (1, 2, 3, 8) {
    my ($status, $out, $err) = threads('every', $ranks);
    my @want = map { ("rank $_: 36 calls, 0 wrong\n", "rank $_: DT_OK: fine\n", "rank $_: 0 open, 0 contexts\n") } 0 .. $ranks - 1;
    is($out, join('', sort @want), "$ranks ranks: all-reduce, reduce-scatter, all-gather") or diag("status $status\n$err");
}
sub each_rank {
    my ($name, $scenario, $ranks, $environment, @says) = @_;
    my ($status, $out, $err) = threads($scenario, $ranks, $environment);
    like($out, qr/^rank $_: $says[$_ < $#says ? $_ : $#says]$/m, "$name, rank $_") or diag("status $status\n$err") for 0 .. $ranks - 1;
    like($out, qr/^rank 0: 0 open, 0 contexts$/m, '  nothing is left open') if $scenario ne 'leaves';
    unlike($out, qr/stay failed/, '  and it stays failed');
}
each_rank('a rank that does not take part', 'late', 3, '', (qr/DT_E_PEER: (NCCL's all-reduce #1 has not ended after 1 s: a rank does not take part, or a GPU is stuck\. .*|rank \d failed: NCCL's all-reduce #1 has not ended .* while this rank \(\d\) was in dt_comm_alive)/) x 2,
    qr/DT_E_PEER: rank [01] failed: NCCL's all-reduce #1 has not ended .* while this rank \(2\) was in dt_comm_alive/);
each_rank('a rank that leaves', 'leaves', 3, '', (qr/DT_E_PEER: (rank [01] failed: )?NCCL's all-reduce #1 ended early: rank 2 left \(dt_comm_close, or the end of its program\).*/) x 2, qr/DT_OK: fine/);
each_rank('NCCL lost a peer', 'remote', 2, '', qr/DT_E_PEER: (NCCL's all-reduce #1 failed: remote process exited: the stand-in was told to fail \(NCCL_DEBUG=INFO says more\)|rank [01] failed: NCCL's all.*|.*interrupted.*)/);
each_rank('NCCL failed', 'nccl', 2, '', qr/(DT_E_SYSTEM: NCCL's all-reduce #1 failed: unhandled error|DT_E_PEER: rank [01] failed: NCCL's).*/);
each_rank('a GPU failed', 'gpu', 2, '', qr/(DT_E_SYSTEM: the GPU failed in NCCL's all-reduce #1: an illegal memory access \(700\)|DT_E_PEER: rank [01] failed: the GPU failed .*)/);
each_rank('no buffer', 'null', 2, '', qr/DT_E_USAGE: dt_nccl_collect: call 0 on 8 floats, in \(nil\), .*/);
each_rank('a negative count', 'negative', 2, '', qr/DT_E_USAGE: dt_nccl_collect: call 0 on -1 floats, .*/);
each_rank('no such call', 'call', 2, '', qr/DT_E_USAGE: dt_nccl_collect: call 9 on 8 floats, .*/);
each_rank('no such GPU on one rank', 'number', 3, '', qr/DT_E_USAGE: GPU 5: the GPUs here are 0\.\.1\. Choose one of them, or -1\./);
each_rank('no GPU', 'every', 2, 'STAND_IN_GPUS=0', qr/DT_E_SYSTEM: NCCL and a driver are here, but no GPU\. Look at CUDA_VISIBLE_DEVICES\./);
each_rank('a driver without a device', 'every', 2, 'STAND_IN_NO_DEVICE=1', qr/DT_E_SYSTEM: the GPU failed in NCCL's opening: no CUDA-capable device is detected \(100\)/);

# Processes do not share the stand-in's memory: they wait for each other in its opening, until one dies or time is over.
my ($status, $out, $err) = calls('killed', '--ranks 2', $both);
like("$out$err", qr/^rank 0: DT_E_PEER: rank 1 was killed by signal 9 \(Killed\) while/m, 'a rank that is killed');
($status, $out, $err) = calls('every', '--ranks 2 --timeout 1', "DT_TIMEOUT=1 $both");
like($out, qr/^rank \d: DT_E_PEER: NCCL's opening has not ended after 1 s/m, 'ranks that do not find each other');
like($out, qr/^rank $_: DT_E_PEER: /m, "  rank $_ ends") for 0, 1;
done_testing();
