#!/usr/bin/env perl
# The header compiles without a warning as C and C++, with gcc and clang, with every switch; it is found however it is
# included; and a build that would compute something else, or could not work, is refused in one sentence.
# A sample of the matrix, drawn as DT_SEED says, by default, all of it with DT_FULL=1 (./build.sh test --full). What must only
# be found, or is refused by #error, is preprocessed; programs that run are linked to the tests' implementation.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use List::Util qw(shuffle);
use Test::More;

plan skip_all => 'compiles by itself, without sanitizers' if sanitized();

my $warnings = '-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror';
my @c = qw(gcc clang);
my @cxx = qw(g++ clang++);
my %found = map { $_ => have($_) } @c, @cxx, 'nvcc';
my ($any) = grep { $found{$_} } @c;

my $implement = "#define DTRAIN_IMPLEMENTATION\n#include \"dtrain.h\"\n";
my $main = "int main(void) { return dt_version()[0] == '0' ? 0 : 1; }\n";
spew("$tmp/all.c", $implement . $main);
spew("$tmp/all.cpp", $implement . $main);
spew("$tmp/declare.c", "#include \"dtrain.h\"\n$main");
spew("$tmp/declare.cpp", "#include \"dtrain.h\"\n$main");
spew("$tmp/with_declare.$_", join '', map({ "#include \"$_\"\n" } 'dtrain.h', map { "examples/$_.h" } qw(rules doctor timeline trial)), $main) for qw(c cpp);
spew("$tmp/memory.h", "#include <stdlib.h>\n");

sub compiles {
    my ($name, $command) = @_;
    my ($status, $out, $err) = run(600, $command);
    ok($status == 0 && $err eq '', $name) or diag("$command\n" . substr($err, 0, 2000));
}
sub refuses {
    my ($name, $pattern, $command) = @_;
    my ($status, $out, $err) = run(600, $command);
    ok($status != 0 && "$out$err" =~ $pattern, $name) or diag("$command\nstatus $status\n" . substr($err, 0, 2000));
}

# ---- the matrix: compiler x standard x switches ----

my %switches = (
    'no switch' => '',
    'DT_STATIC' => '-DDT_STATIC',
    'DT_MALLOC and DT_FREE' => '-D"DT_MALLOC(n)=malloc(n)" -D"DT_FREE(p)=free(p)"',
    'DT_ASSERT' => '-include assert.h -D_GNU_SOURCE -D"DT_ASSERT(x)=assert(x)"',
    'DT_NO_THREADS' => '-DDT_NO_THREADS',
    'DT_DEBUG' => '-DDT_DEBUG',
    'DT_CUDA' => '-DDT_CUDA',
    'DT_COMM_ONLY' => '-DDT_COMM_ONLY',
    'DT_COMPILER' => '-DDT_COMPILER',
);
$switches{'DT_MPI'} = '-DDT_MPI ' . mpi_flags('compile') unless mpi_missing();
$switches{'DT_OFI'} = '-DDT_OFI' unless (run(60, "echo '#include <rdma/fabric.h>' | $any -E -"))[0];
$switches{'all switches'} = join ' ', map { $switches{$_} } grep { $_ ne 'DT_COMM_ONLY' } keys %switches; # which leaves out what the others add to

# Of the switches, which seldom meet, one, and those that leave something out.
seeded();
my %drawn = map { $_ => 1 } 'all switches', 'DT_NO_THREADS', 'DT_COMM_ONLY', (shuffle sort keys %switches)[0];

sub in_sample {
    my ($compiler, $standard, $switch) = @_;
    return 1 if full() || ($compiler eq 'gcc' && $standard eq 'c11' && $drawn{$switch});
    return $switch eq 'all switches' if $standard =~ /^c(11|\+\+17)$/;
    return $switch eq 'no switch' && ($compiler eq 'gcc') == ($standard eq 'gnu17');
}
for my $compiler (@c, @cxx) {
    my $plus = $compiler =~ /\+\+/;
    for my $standard ($plus ? ('c++17') : qw(c11 c17 gnu17)) {
        for my $switch (sort keys %switches) {
            next unless in_sample($compiler, $standard, $switch);
          SKIP: {
                skip "$compiler is not installed", 1 unless $found{$compiler};
                my $file = $plus ? 'all.cpp' : 'all.c';
                compiles("$compiler -std=$standard, $switch", "$compiler -std=$standard $warnings $switches{$switch} -I$root -fsyntax-only $file");
            }
        }
    }
}
# Some warnings come only when code is generated; C test programs are built so by build.sh.
my @plus = full() ? @cxx : (shuffle grep { $found{$_} } @cxx)[0] // @cxx;
for my $level (full() ? qw(-O0 -O1 -O2 -O3) : '-O0') {
    for my $compiler (@plus) {
      SKIP: {
            skip "$compiler is not installed", 1 unless $found{$compiler};
            my $debug = full() ? '' : '-DDT_DEBUG'; # without its own optimisation, in half the time
            compiles("$compiler -std=c++17 $level, an object file", "$compiler -std=c++17 $level $debug $warnings -I$root -c all.cpp -o all.o");
        }
    }
}
for my $compiler (@c, @cxx) {
    my ($file, $standard) = $compiler =~ /\+\+/ ? ('declare.cpp', 'c++17') : ('declare.c', 'c11');
  SKIP: {
        skip "$compiler is not installed", 1 unless $found{$compiler};
        compiles("$compiler: the declarations alone, in ISO $standard", "$compiler -std=$standard $warnings -I$root -fsyntax-only $file");
        compiles("  and the companion headers after them", "$compiler -std=" . $standard =~ s/c11/gnu11/r . " $warnings -I$root -fsyntax-only with_$file");
    }
}
SKIP: {
    skip 'nvcc is not installed', 1 unless $found{nvcc};
    my $flags = join ',', grep { !/pedantic/ } split ' ', $warnings;
    $flags .= ',-fsyntax-only' unless full();
    compiles('nvcc -x cu', "nvcc -x cu -DDT_DEBUG -O0 -I$root -Xcompiler $flags -c all.c -o nvcc.o");
}

# ---- how it is included ----

mkdir "$tmp/$_" for 'sub', 'vendor', 'vendor/dtrain', 'a folder';
my $header = slurp("$root/dtrain.h");
spew("$tmp/vendor/dtrain/dtrain.h", $header);
spew("$tmp/a folder/dtrain.h", $header);
spew("$tmp/renamed.h", $header);
spew("$tmp/vendored.c", "#define DTRAIN_IMPLEMENTATION\n#include \"vendor/dtrain/dtrain.h\"\n$main");
spew("$tmp/renamed.c", "#define DTRAIN_IMPLEMENTATION\n#define DT_HEADER \"renamed.h\"\n#include \"renamed.h\"\n$main");
spew("$tmp/sub/all.c", $implement . $main);
my $check = "$any -std=gnu11 " . (full() ? '-Wall -Wextra -Werror -fsyntax-only' : '-E -o found.i');
compiles('absolute -I', "$check -I$root all.c");
compiles('relative -I', "cd sub && $check -I../vendor/dtrain all.c");
compiles('a folder of the project', "$check vendored.c");
compiles('a folder with a space in its name', "$check '-Ia folder' all.c");
compiles('renamed, with DT_HEADER', "$check renamed.c");

# ---- two files of one program ----

my $quick = '-std=gnu11 -O0 -DDT_DEBUG -Wall -Wextra -Werror';
my ($library) = implementation('library') =~ /(\S+\.o)/; # a file that implements
my $links = "$library -lm -lpthread -ldl";
spew("$tmp/one.c", "#include \"dtrain.h\"\nint other(void);\nint main(void) { return other() || dt_version()[0] != '0'; }\n");
spew("$tmp/two.c", "#include \"dtrain.h\"\nint other(void);\nint other(void) { return dt_recipe_default().steps > 0 ? 0 : 1; }\n");
spew("$tmp/two.cpp", "#include \"dtrain.h\"\nextern \"C\" int other(void) { return dt_recipe_default().steps > 0 ? 0 : 1; }\n");
(my $newer = $header) =~ s/#define DT_VERSION "[^"]*"/#define DT_VERSION "9.9.9"/;
$newer =~ s/#define DT__LINK_VERSION \w+/#define DT__LINK_VERSION dt__version_9_9_9/;
mkdir "$tmp/newer";
spew("$tmp/newer/dtrain.h", $newer);
compiles('files that use and one that implements: one program', "$any $quick -I$root one.c two.c -o both $links && ./both");
SKIP: {
    my ($cxx) = grep { $found{$_} } @cxx;
    skip 'no C++ compiler', 1 unless $cxx;
    compiles('a C++ file that uses what a C file implements', "$any $quick -I$root -c one.c -o one.o && $cxx -std=c++17 -I$root -c two.cpp -o two.o && $cxx one.o two.o -o mixed $links && ./mixed");
}
refuses('a file of another version does not link, and the version is named', qr/dt__version_9_9_9/, "$any $quick -I$root -c one.c -o one.o && $any $quick -Inewer one.o two.c -o other $links");
SKIP: {
    skip 'DT_STATIC in two files: only with --full', 1 unless full();
    spew("$tmp/three.c", "${implement}int other(void);\nint main(void) { return other(); }\n");
    spew("$tmp/four.c", "${implement}int other(void);\nint other(void) { return dt_recipe_default().steps > 0 ? 0 : 1; }\n");
    compiles('DT_STATIC: two implementations in one program', "$any $quick -DDT_STATIC -I$root three.c four.c -o static -lm -lpthread && ./static");
}

# ---- the communicator alone ----

spew("$tmp/comm.c", <<'C');
#define DTRAIN_IMPLEMENTATION
#define DT_COMM_ONLY
#include "dtrain.h"
int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    float x[3] = {0, 0, 0};
    if (!r) x[0] = (float)dt_comm_rank(c), x[1] = 1.0f, r = dt_all_reduce(c, x, 2, DT_SUM);
    if (!r) x[2] = (float)-dt_comm_rank(c), r = dt_all_reduce(c, x + 2, 1, DT_MIN);
    dt_comm_close(&c);
    return r ? dt_fail("comm") : x[0] == 3.0f && x[1] == 3.0f && x[2] == -2.0f ? 0 : 1;
}
C
compiles('DT_COMM_ONLY: a program that adds', "$any -std=gnu11 -O1 -Wall -Wextra -Werror -I$root comm.c -o comm -lm -lpthread && ./comm --ranks 3");
compiles('with DT_STATIC, too', "$any -std=gnu11 -DDT_STATIC -Wall -Wextra -Werror -I$root -fsyntax-only comm.c");
refuses('a program that trains does not link', qr/dt_trainer_open/, "printf '#define DTRAIN_IMPLEMENTATION\n#define DT_COMM_ONLY\n#include \"dtrain.h\"\nint main(void) { return dt_trainer_open(0, 0, 0); }\n' > train.c && $any -std=gnu11 -DDT_DEBUG -I$root train.c -o train -lm -lpthread");

# ---- the header's first comment ----

my ($tour) = $header =~ /^ \* A TOUR, [^\n]*\n(.*?)^ \* ONE TRAINING STEP/ms;
my $start = join '', map { s/^ \*     //r =~ s/(?<=\S) {4,}\S.*//r } grep { /^ \*     / } split /^/, $tour; # without words behind the code
spew("$tmp/start.c", $start);
my $alone = full() ? "$any $quick -I$root start.c -o start -lm -lpthread" : "$any $quick -I$root -E -o found.i start.c && $any $quick -DDTRAIN_IMPLEMENTED -I$root start.c -o start $links";
compiles('the tour', $alone);
spew("$tmp/book.txt", join ' ', map { "Word $_ of a book." } 1 .. 2000);
my @tours = map { (run_in($tmp, 300, "./start --data book.txt --quiet --eval-batches 0 --ranks $_"))[1] } 1, 2;
like($tours[1], qr/\A2 ranks\n91, slope 12\nsha256 \w{64}\n\z/, '  runs');
is($tours[0] =~ s/^1 /2 /r, $tours[1], '  and has one hash on one rank and on two');
spew("$tmp/uses.c", $start =~ s/^#define DTRAIN_IMPLEMENTATION.*//mr);
compiles('and without what the implementation includes', "$any $quick -I$root -c uses.c -o uses.o");

# ---- what is refused ----

my $refused = full() ? '-fsyntax-only' : '-E -o refused.i';
spew("$tmp/hidden.c", "#include <stdio.h>\n$implement$main");
refuses('POSIX hidden by an earlier header', qr/#error "?dtrain\.h: POSIX is hidden: include .* before any other header/, "$any -std=c11 -I$root $refused hidden.c");
cmp_ok(length((run_in($tmp, 100, "$any -std=c11 -I$root $refused hidden.c"))[2]), '<', 1000, '  and nothing after it');
compiles('the same with gnu11', "$any -std=gnu11 -I$root $refused hidden.c");
for my $flag (qw(-ffast-math -Ofast -ffinite-math-only)) {
    refuses($flag, qr/#error "?dtrain\.h: compile the implementation without -ffast-math/, "$any -std=gnu11 $flag -I$root $refused all.c");
}
compiles('a file that only uses may have -Ofast', "$any -std=gnu11 -Ofast -I$root -fsyntax-only two.c");

# ---- benchmarks, which no other test compiles: a third of them, drawn ----

my $uses = full() || !implementation('open') ? '' : "-I$root/build/open"; # the declarations alone, unless it reaches into kernels
my @sources = shuffle glob "$root/tests/bench_*.c";
for my $source (sort full() ? (@sources, glob "$root/tests/fuzz_*.c") : @sources[0 .. $#sources / 3]) {
    my ($name) = $source =~ m{([^/]+)$};
    my $how = slurp($source) =~ /dt__\w+_(?:avx2|avx512)\b/ ? '' : $uses;
    my $compiler = slurp($source) =~ /DT_MPI/ ? 'mpicc' : $any;
  SKIP: {
        skip "$compiler is not installed", 1 unless have($compiler);
        skip 'OpenBLAS is not installed', 1 if slurp($source) =~ /<cblas\.h>/ && (run(60, "echo '#include <cblas.h>' | $any -E -"))[0];
        compiles($name, "$compiler -std=gnu11 $warnings $how -I$root -I$root/tests -fsyntax-only $source");
    }
}

done_testing();
