#!/usr/bin/env perl
# Instruction sets that this processor may lack (R5, R15): the trainer is built for aarch64 and run under qemu-user, with
# NEON and without, and with ranks of both architectures in one job; and x86-64 without fused multiply-add. All
# reach the hash of golden/hash.txt. With DT_FULL=1 also the tests of kernels, numerics and optimizers run on aarch64.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $warnings = '-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror';
my %want = golden();
my $data = corpus(20000);
my $options = "--data $data --model nano --warmup 2 --validation 0 --sample-length 0 --quiet --timeout 100";
my $recipe = full() ? 'base' : 'adam'; # a third as long

sub same {
    my ($what, $name, $command, $layout) = @_;
    my ($status, $out, $err) = run(600, "$command $options $recipe{$name} $layout");
    my $hash = $out =~ /^sha256 ([0-9a-f]{64})$/m ? $1 : "none (status $status)";
    is($hash, $want{$name}, "$name: $what") or diag($err);
}
sub build {
    my ($what, $command) = @_;
    my ($status, undef, $err) = run(600, $command);
    $err =~ s/^.*(?:in function `dt__[.\w]+'|Using 'dlopen' in statically linked applications).*\n//mg; # the linker, of -static
    return ok(!$status && $err eq '', $what) || (diag("$command\n" . substr($err, 0, 2000)), 0)[1];
}
sub refused { my ($what, $pattern, $command) = @_; my ($status, $out, $err) = run(600, $command); ok($status && "$out$err" =~ $pattern, $what) or diag("$command\n$out$err") }

# ---- x86-64 without fused multiply-add: two sums and round to odd ----

my $cc = $ENV{CC} || 'cc';
SKIP: {
    skip 'fma in software: this is no x86-64', 1 unless slurp('/proc/cpuinfo') =~ /^flags/m;
    my $soft = trainer(); # unless its flags allow the instruction
    my ($status, $macros) = run(60, "$cc " . ($ENV{DT_TEST_CFLAGS} || '') . ' -dM -E -x c /dev/null');
    if ($status || $macros =~ /__FMA__/) {
        build('x86-64 with -mno-fma', "$cc -std=gnu11 -O2 -mno-fma -I$root $root/examples/06_train.c -o soft -lm -lpthread") or skip 'no program', 1;
        $soft = './soft';
    }
    same('x86-64, portable kernels, fma in software', $recipe, "DT_ISA=portable $soft", '--ranks 1');
}

# ---- big-endian ----

refused('a big-endian target is refused in one sentence', qr/#error "dtrain\.h: this is a big-endian target/,
    "echo '#include \"dtrain.h\"' >big.c; " . "$cc -DDTRAIN_IMPLEMENTATION -U__BYTE_ORDER__ -D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__ -I$root -fsyntax-only big.c");

# ---- aarch64 ----

my ($cross, $qemu) = ('aarch64-linux-gnu-gcc', 'qemu-aarch64');
my $apt = 'apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user';
spew("$tmp/empty.c", "#include <stdio.h>\nint main(void) { return puts(\"fine\") < 0; }\n");

SKIP: {
    skip "aarch64: $apt", 1 unless have($cross) && have($qemu);
    skip 'aarch64: the sanitized build is tested alone', 1 if sanitized();
    skip "aarch64: the cross compiler or the emulator does not work here: $apt", 1
        if (run(60, "$cross -static empty.c -o empty && $qemu ./empty"))[0];
    my $level = full() ? '-O2' : '-O0'; # the kernels' own is the same
    build("$cross: no warning", "$cross -std=gnu11 $level -static $warnings -I$root $root/examples/06_train.c -o arm -lm -lpthread") or skip 'no program', 1;
    build("$cross -std=c11 -DDT_NO_THREADS -DDT_STATIC: no warning", "$cross -std=c11 $warnings -DDT_NO_THREADS -DDT_STATIC -I$root -fsyntax-only $root/examples/06_train.c");
    build('aarch64-linux-gnu-g++ -std=c++17: no warning', "echo '#include \"dtrain.h\"' >all.cpp; aarch64-linux-gnu-g++ -std=c++17 $warnings -DDTRAIN_IMPLEMENTATION -DDT_DEBUG -I$root -c all.cpp -o all.o")
        if have('aarch64-linux-gnu-g++');
    same('aarch64, NEON', $recipe, "$qemu ./arm", '--ranks 1 --threads 1');
    same('aarch64, portable, 3 ranks as threads', 'dropout', "DT_ISA=portable $qemu ./arm", '--ranks 3 --launch threads --threads 1');
    same('aarch64, NEON, 2 threads', 'dropout', "$qemu ./arm", '--ranks 1 --threads 2') if full();
    refused('an instruction set of another architecture', qr/DT_ISA=avx2 is not an instruction set of this build: neon, portable/, "DT_ISA=avx2 $qemu ./arm $options");

    # The emulator cannot start a program of its own kind. So a native supervisor starts ranks that become the emulator:
    # ./start ARM NATIVE OPTION..; even ranks become NATIVE instead, unless it is "-".
    spew("$tmp/start.c", <<'C');
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
int main(int argc, char **argv)
{
    if (argc < 3 || dt_launch(&argc, &argv)) return dt_fail("start");
    fcntl(dt__environment_int("DT_MEMFD", -1), F_SETFD, 0);
    if (strcmp(argv[2], "-") && dt__environment_int("RANK", 0) % 2 == 0) execv(argv[2], argv + 2);
    argv[2] = argv[1];
    argv[1] = (char *)"qemu-aarch64";
    execvp(argv[1], argv + 1);
    return 127;
}
C
    linked_with('open', 'start.c', 'start');
    same('aarch64, NEON, 2 ranks as processes', 'base', './start ./arm -', '--ranks 2 --threads 1') if full();
    same('one job of 3 ranks as processes: native, aarch64, native', $recipe, './start ./arm ' . trainer(), '--ranks 3 --threads 1');
    symlink "$root/tests/golden", "$tmp/golden";
    for my $name (full() ? qw(kernels numerics optim) : ()) {
        build("test_$name for aarch64: no warning", "$cross -std=gnu11 -O2 -static $warnings -I$root/tests $root/tests/test_$name.c -o $name -lm -lpthread") or next;
        my ($status, $out, $err) = run(3600, "DT_FULL= $qemu ./$name");
        ok(!$status && $out =~ /^1\.\.\d+/m && $out !~ /^not ok/m, "test_$name under $qemu") or diag("status $status\n$out$err");
    }
}

done_testing();
