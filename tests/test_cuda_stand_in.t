#!/usr/bin/env perl
# What stands in for a GPU finds what it is there to find: the emulation of CUDA's execution model (cuda_emulation.h) and
# the driver with NVRTC (cuda_stand_in.cpp), with kernels by the conventions of the device text and a client in C. Where
# NVRTC is installed, it compiles the same kernels. No GPU is used here.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

plan skip_all => 'no C++ compiler here (apt-get install g++)' unless have('g++');
delete @ENV{grep { /^STAND_IN_|^DT_(CUDA|NVRTC)_LIBRARY$/ } keys %ENV};
mkdir $_ for "$root/build", $build;

my $text = "$tmp/check.cu";
spew($text, <<'END');
#ifndef DT__KERNEL
#define DT__KERNEL(name, type, ...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const type a)
#endif
#ifndef DT__SHARED
#define DT__SHARED(type, name, n) __shared__ __align__(16) type name[n]
extern __shared__ __align__(16) float dt__dynamic[];
#define DT__DYNAMIC(type, name, n) type *const name = (type *)(dt__dynamic + dynamic); dynamic += (n)
#endif
typedef struct check_args { float *out; const float *in; long long n; int what; } check_args;

/* out = in, each 256 reversed: to shared memory, to dynamic shared memory, out. what 1, 2: without a barrier. */
DT__KERNEL(check_tile, check_args, 256, 2)
{
    int dynamic = 0;
    DT__SHARED(float, s, 256);
    DT__DYNAMIC(float, d, 256);
    const int t = (int)threadIdx.x, at = (int)blockIdx.x * 256;
    s[t] = a.in[at + t];
    if (a.what != 1) __syncthreads();
    d[t] = s[255 - t];
    if (a.what != 2) __syncthreads();
    const float x = d[t ^ 64];
    __syncthreads();
    d[t ^ 64] = x;
    a.out[at + t] = d[t ^ 64] == x ? s[255 - t] : -1.0f;
}
/* Lanes give their number to their neighbor through global memory. what 1: no __syncwarp. */
DT__KERNEL(check_warp, check_args, 256)
{
    const int t = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    a.out[t] = 0.0f;
    __syncwarp();
    a.out[t] = a.in[t] + 1.0f;
    if (a.what != 1) __syncwarp();
    const float x = a.out[t ^ 1];
    __syncwarp();
    a.out[t] = x;
}
/* Shuffles of floats, ints and 64 bits, ballots. */
DT__KERNEL(check_lanes, check_args, 256)
{
    const int t = (int)(blockIdx.x * blockDim.x + threadIdx.x), lane = t & 31;
    float x = a.in[t];
    const unsigned odd = __ballot_sync(0xffffffffu, __float_as_int(x) && (int)x % 2);
    const double other = __longlong_as_double(__shfl_xor_sync(0xffffffffu, __double_as_longlong((double)x), 5));
    const int number = __shfl_xor_sync(0xffffffffu, lane, 9);
    for (int w = 16; w; w /= 2) x = x + __shfl_xor_sync(0xffffffffu, x, w);
    a.out[t] = lane % 4 == 0 ? x : lane % 4 == 1 ? (float)__popc(odd) : lane % 4 == 2 ? (float)other : (float)number;
}
DT__KERNEL(check_add, check_args, 128)
{
    const int t = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    a.out[t] = a.out[t] + a.in[t];
}
/* What a kernel may do wrong, by number. */
DT__KERNEL(check_wrong, check_args, 256)
{
    int dynamic = 0;
    DT__SHARED(float, s, 256);
    const int t = (int)threadIdx.x, at = (int)blockIdx.x * 256 + t;
    s[t] = 0.0f;
    if (a.what == 1 && t == 255) s[t + 1] = 1.0f;
    if (a.what == 2) { DT__DYNAMIC(float, d, 300); d[t] = 1.0f; }
    if (a.what == 3 && t == 0) a.out[a.n] = 1.0f;
    if (a.what == 4 && t == 0) a.out[a.n * 100] = 1.0f;
    if (a.what == 5 && t % 64 == 3) a.out[7] = (float)at;
    if (a.what == 6 && t < 16) __syncthreads();
    if (a.what == 6 && t >= 16 && t < 32) __syncwarp();
    if (a.what == 7 && t % 32 == 30) return;
    if (a.what == 7) a.out[at] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
    if (a.what == 8) a.out[at] = *(const float *)((const char *)a.in + 2);
    if (a.what == 9) { const float x = a.in[a.n - 1] + a.out[at]; a.out[at] = x; }
    if (a.what == 10 && t == 9) a.out[blockIdx.x ^ 1] = a.in[7];
    if (a.what == 10 && t == 200) a.out[blockIdx.x] = a.in[7];
    if (a.what == 11 && t < 32) a.out[blockIdx.x] = (float)t;
    if (a.what == 12 && t % 2) __shfl_xor_sync(0x55555555u, 1.0f, 2);
    if (a.what == 13 && t % 2) __shfl_xor_sync(0xffffffffu, 1.0f, 2);
    if (a.what == 13 && t % 2 == 0) __syncwarp();
    if (a.what == 14) a.out[at] = a.in[t];
    if (a.what == 15 && t < 32) { const float x = a.in[3]; a.out[0] = x; }
    /* right: lanes that write the same value, threads that write parts of a word */
    if (a.what == 20 && t < 32) { const float x = a.in[3]; a.out[blockIdx.x] = x; a.out[blockIdx.x + 8] = a.out[blockIdx.x] + x; }
    if (a.what == 21) { ((unsigned short *)a.out)[at] = (unsigned short)t; }
    if (a.what == 22) { ((unsigned char *)a.out)[at] = (unsigned char)t; }
}
END

my $client = "$build/cuda_calls";
my %library = (fast => "$build/cuda_stand_in_fast.so", checked => "$build/cuda_stand_in_checked.so");
my $flags = "-std=c++17 -O1 -ffp-contract=off -Wall -Wextra -Wshadow -Werror -fPIC -DDT__TEXT='\"$text\"' $root/tests/cuda_stand_in.cpp";
for (["gcc -std=gnu11 -O1 -Wall -Wextra -Werror $root/tests/cuda_calls.c -o $client -ldl -lpthread", 'the client'],
     ["g++ $flags -shared -o $library{fast}", 'the stand-in'],
     ["g++ $flags -fsanitize=thread -c -o $tmp/checked.o && g++ -shared $tmp/checked.o -o $library{checked}", 'the checked stand-in'],
     ["g++ $flags -DSTAND_IN_NO_HEADERS -fsyntax-only", "without CUDA's headers"]) {
    my ($bad, undef, $err) = run(600, $_->[0]);
    ok(!$bad, "$_->[1] compiles") or BAIL_OUT($err);
}

my $nothing_left = 'left: 0 allocations (0 bytes), 0 modules, 0 streams, 0 events, 0 registrations, 0 contexts, 0 programs, 0 jobs';
sub calls {
    my ($which, $scenario, $environment) = @_;
    my $l = $library{$which};
    my ($status, $out, $err) = run(60, "DT_CUDA_LIBRARY=$l DT_NVRTC_LIBRARY=$l STAND_IN_SAY=1 " . ($environment || '') . " $client $text $scenario");
    return ($status, $out, $err);
}
my ($status, $out, $err);

# ---- the real NVRTC compiles the same text ----

SKIP: {
    my ($nvrtc) = grep { -e } glob '/usr/local/cuda/lib64/libnvrtc.so /usr/local/cuda*/lib64/libnvrtc.so.1? /usr/lib/x86_64-linux-gnu/libnvrtc.so*';
    skip 'NVRTC is not installed', 1 unless $nvrtc;
    ($status, $out) = run(100, "DT_CUDA_LIBRARY=$library{fast} DT_NVRTC_LIBRARY=$nvrtc $client $text compile --gpu-architecture=sm_90a");
    is($out, "compiled\n", 'NVRTC compiles the kernels');
}

# ---- what is right ----

my $right = "tile: 0 differ\nwarp: 0 differ\nlanes: 0 differ\ncopies: 0 differ\n";
for my $which (qw(fast checked)) {
    for my $seed (1 .. 3) {
        ($status, $out, $err) = calls($which, 'run', "STAND_IN_SEED=$seed");
        is($out, $right, "$which: all calls, order $seed");
        like($err, qr/^cuda stand-in: \d+ calls, 4 launches, 5 waits; \Q$nothing_left\E$/, '  and nothing is left');
    }
    ($status, $out, $err) = calls($which, 'threads');
    is($out, "threads: fine\n", "$which: four threads of a program");
    for my $what (0, 20 .. 22) {
        ($status, $out, $err) = calls($which, "kernel check_wrong $what");
        is($out, "ended\n", "$which: kernel $what is right") or diag($err);
    }
}

# ---- what kernels do wrong ----

sub finds {
    my ($which, $kernel, $what, $says, $environment) = @_;
    ($status, $out, $err) = calls($which, "kernel $kernel $what", $environment);
    like($err, $says, "$which: $kernel $what");
}
my $race = qr/4 bytes at 0x.* \(code 0x\w+\): a race with the (read|write) by thread \d+( and others)? of this block$/m;
finds('checked', 'check_tile', $_, $race) for 1, 2;
finds('checked', 'check_warp', 1, qr/: a race (in|with) /);
finds('checked', 'check_wrong', 1, qr/thread 255: writes 4 bytes at 0x\w+, s \+ 1024 bytes of 1024 \(code 0x\w+\): outside arrays and allocations$/m);
finds('checked', 'check_wrong', $_, qr/thread 0: writes 4 bytes at 0x\w+, byte \d+ of 16384 that cuMemAlloc gave \(code 0x\w+\): outside arrays and allocations$/m) for 3, 4;
finds('checked', 'check_wrong', 5, $race);
finds('checked', 'check_wrong', 8, qr/: not aligned$/m);
finds('checked', 'check_wrong', 9, qr/: nothing has written them$/m);
finds('checked', 'check_wrong', 10, qr/: a race with the write by thread \d+( and others)? of (another|this) block$/m);
finds('checked', 'check_wrong', 11, qr/: a race in a warp: a new value where there was an access by thread \d+( and others)? of this block$/m);
finds('checked', 'check_wrong', '14 host', qr/: no memory of the device$/m);
finds('checked', 'check_wrong', 15, qr/: a race with the write by thread \d+( and others)? of another block$/m);
for my $which (qw(fast checked)) {
    finds($which, 'check_wrong', 2, qr/: d ends after 1200 bytes of dynamic shared memory; the launch says 1024$/m);
    finds($which, 'check_wrong', 6, qr/: deadlock: 16 threads wait at __syncthreads, 16 elsewhere$/m);
    finds($which, 'check_wrong', 7, qr/: a shuffle reads lane 30, which does not take part$/m);
    finds($which, 'check_wrong', 12, qr/: the mask 55555555 of a warp's function leaves out lanes that run/);
    finds($which, 'check_wrong', 13, qr/: lanes of a warp wait at different functions/);
}
finds('fast', 'check_wrong', 3, qr/an allocation of 16384 bytes at 0x\w+: byte 16384 was written/);
finds('fast', 'check_wrong', 4, qr/: touches 0x\w+, which is not device memory in use/);

# ---- streams, memory, contexts ----

my %sums;
$sums{(calls('fast', 'streams 0', "STAND_IN_SEED=$_"))[1]}++ for 1 .. 12;
cmp_ok(scalar keys %sums, '>', 2, 'without events, work of two streams runs in many orders');
like((calls('checked', 'streams 0', "STAND_IN_SEED=$_ STAND_IN_UNWRITTEN=1"))[2], qr/: a race with the (read|write) by thread \d+( and others)? of other work, which no event or wait puts before$/m, "  and a checked build finds each: seed $_") for 1 .. 6;
is((calls('checked', 'streams 1', "STAND_IN_SEED=$_"))[1], "sum 798486\n", "  with events it finds none: seed $_") for 1 .. 3;
is((calls('fast', 'streams 1', "STAND_IN_SEED=$_"))[1], "sum 798486\n", "with events in one: seed $_") for 1 .. 6;
is((calls('fast', 'host'))[1], "device memory faults\n", 'the host cannot read device memory');
is((calls('fast', 'fresh'))[1], "7f7f7f7f\n", 'fresh memory is not zeros');
is((calls('fast', 'pinned'))[1], "again: 712\npageable: 4\nregistered: 99\nbefore: 99\nafter: 4\n", 'pageable bytes are taken at the call, registered ones later');
is((calls('checked', 'memory', 'STAND_IN_MEMORY=100000'))[1], "all of it: 2\nleft: 0 of 100000\n", 'memory ends');
is((calls('fast', 'contexts', 'STAND_IN_GPUS=2'))[1], "same context: 1, no third device: 101\n", 'two devices');
like((calls('fast', 'run', 'STAND_IN_NO_DEVICE=1'))[1], qr/^cuInit: no CUDA-capable device is detected \(100\)$/, 'no device');
is((calls('fast', 'run', 'STAND_IN_ARCH=8.0'))[1], $right, 'another architecture');
like((calls('fast', 'leak'))[2], qr/left: 3 allocations \(49152 bytes\), 1 modules, 2 streams, 1 events, 0 registrations, 1 contexts, 0 programs, 0 jobs$/, 'leaks are counted');
like((calls('fast', "'other text'"))[1], qr/^NVRTC: error 6: cuda\.cu\(1\): error: not the text that the stand-in was built from.*\nhere it is: another$/, 'another text');

# ---- misuse ----

for ([q('no context'), qr/cuMemAlloc without a current context/], ['shared', qr/check_tile: 60000 bytes of dynamic shared memory; 49152 are allowed/],
     ['block', qr/a block of 512 x 1 x 1 threads; it is made for 256/], ['beyond', qr/cuMemcpyDtoHAsync: 16384 bytes from byte 4 of an allocation of 16384/],
     ['freed', qr/cuMemcpyHtoDAsync: no allocation at/], ['unloaded', qr/is not of a loaded module/],
     ['argument', qr/check_add: an argument of 24 bytes; the kernel's has 32/], ['forked', qr/cuStreamQuery in a process that was forked after cuInit/],
     ['contexts 1', qr/a stream of another context than the current one/]) {
    ($status, $out, $err) = calls('fast', $_->[0], 'STAND_IN_GPUS=2');
    like($err, qr/^cuda stand-in: .*$_->[1]/, "misuse: $_->[0]");
}
is((calls('fast', 'shared 1'))[1], "too much: 1\nended\n", 'with cuFuncSetAttribute');

# ---- failures ----

(undef, undef, $err) = calls('fast', 'run');
my ($count) = $err =~ /(\d+) calls/;
my ($told, $left, $silent) = (0, '', '');
for my $n (1 .. $count) {
    ($status, $out, $err) = calls('fast', 'run', "STAND_IN_FAIL=$n");
    $told += $out =~ /^(NVRTC: error \d+|\w+: .* \(\d+\)$)/m;
    $left .= " $n" if $err !~ /\Q$nothing_left\E/ || $status;
    $silent .= " $n" if $out !~ /^(NVRTC: error|\w+: .* \(\d+\)$)|\Q$right\E/m;
}
is("$left$silent", '', "each of $count calls fails: an error, and nothing is left");
cmp_ok($told, '>', $count - 12, '  all but those that release something');
is((calls('fast', 'stays', "STAND_IN_FAIL=27"))[1], "wait 700, launch 700, free 700\n", 'an error of the device lasts');
is((calls('fast', 'stays', "STAND_IN_FAIL=27 STAND_IN_ERROR=214"))[1], "wait 214, launch 214, free 214\n", '  whichever it is');

# The kernels of the course (examples/kernels.h) and the two programs that launch them, on the checked stand-in. What the
# emulation wants in place of two of CUDA's words is put there.
{
    my ($kernels, $emulated, $library) = map { "$tmp/course.$_" } qw(cu emulated so);
    for (qw(100_roofline 102_copy_and_compute)) {
        my ($bad, undef, $err) = run(60, "gcc -std=gnu11 -O1 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror $root/examples/$_.c -o $tmp/$_ -lm -lpthread -ldl");
        ok(!$bad, "$_ compiles without a warning") or BAIL_OUT($err);
    }
    run(10, "$tmp/100_roofline --kernels >$kernels");
    my $text = slurp($kernels);
    is($text =~ s/extern "C" __global__ void (\w+)\(const arguments a\)/DT__KERNEL($1, arguments, 256)/g, 5, 'kernels of the course');
    is($text =~ s/__shared__ float (\w+)\[(\d+)\];/DT__SHARED(float, $1, $2);/g, 2, '  with two arrays in shared memory');
    spew($emulated, $text);
    my ($bad, undef, $err) = run(120, "g++ -std=c++17 -O1 -ffp-contract=off -w -fPIC -fsanitize=thread -DDT__TEXT='\"$emulated\"' -DDT__GIVEN='\"$kernels\"' $root/tests/cuda_stand_in.cpp -c -o $tmp/course.o && g++ -shared $tmp/course.o -o $library");
    ok(!$bad, '  compile for the emulation') or BAIL_OUT($err);
    for ('100_roofline 64', '102_copy_and_compute 4') {
        my ($status, $out, $err) = run(60, "DT_CUDA_LIBRARY=$library DT_NVRTC_LIBRARY=$library STAND_IN_FUSED=1 STAND_IN_SAY=1 $tmp/$_");
        ok(!$status && $out =~ /^stand-in GPU 0.*^ok: /ms && $err =~ /\Q$nothing_left\E/, "$_: right results on the emulated GPU, nothing left") or diag("$out\n$err");
        ($status, $out, $err) = run(60, "DT_CUDA_LIBRARY=$library DT_NVRTC_LIBRARY=$library STAND_IN_FUSED=1 STAND_IN_FAIL=40 $tmp/$_");
        ok($status == 1 && $err =~ / failed: .* \(\d+\)/, '  a failing call is an error with a sentence') or diag("$out\n$err");
        ($status, $out) = run(60, "DT_CUDA_LIBRARY=/nowhere.so $tmp/$_");
        ok(!$status && $out =~ /no GPU, so .*: NVIDIA's driver \(libcuda\) cannot be loaded.*^ok: /ms, '  without a driver it says so, and goes on') or diag($out);
    }
}
done_testing();
