#!/usr/bin/env perl
# Registers, spilled bytes and static shared memory of kernels whose speed counts, for each architecture and module of the
# device's text: NVRTC makes the assembler's text, ptxas counts. test_cuda.t --full compares registers.tsv with this.
#     tests/registers.pl >tests/registers.tsv
use strict;
use warnings;
use FindBin;
use File::Temp qw(tempdir);

my $root = "$FindBin::Bin/..";
my $to = tempdir(CLEANUP => 1);
sub run { my $command = shift; my $said = `$command 2>&1`; $? ? die "$command\n$said" : return $said }
my ($nvrtc) = grep { -e } $ENV{DT_NVRTC_LIBRARY} || (), glob('/usr/local/cuda*/lib*/libnvrtc.so');
my ($ptxas) = grep { -x } glob('/usr/local/cuda*/bin/ptxas');
die "NVRTC or ptxas is not installed (CUDA Toolkit)\n" unless $nvrtc && $ptxas;
my ($version) = run("$ptxas --version") =~ /(V\d+\.\d+\.\d+)/;
my $cc = $ENV{CC} || 'cc';
run("$cc -std=gnu11 -O1 $root/tests/cuda_compile.c -o $to/compile -ldl");
run("$cc -std=gnu11 -O0 -DDT_DEBUG -w -I$root $root/tests/cuda_text.c -o $to/text -lm -lpthread -ldl");
open my $header, '<', "$root/dtrain.h" or die;
my ($options) = join('', <$header>) =~ /const char \*options\[\] = \{code->flags, (.*?)\};/s; # of dt__cuda_compile
$options =~ s/[",\n]+/ /g;

print "# ptxas $version. tests/registers.pl >tests/registers.tsv writes this file.\n";
print "# architecture, module (dt__gpu_module), kernel, registers, spilled bytes, bytes of static shared memory\n";
for my $arch (qw(80 90a 100)) {
    for my $module (0 .. 9) {
        run("$to/text " . ($module < 2 ? 2 : 1) . " $module >$to/text.cu");
        my $said = run("$to/compile $nvrtc $to/text.cu $to/text.ptx --gpu-architecture=compute_$arch $options");
        print STDERR $said unless $said eq "compiled without a warning\n";
        for (split /Compiling entry function /, run("$ptxas -v -arch=sm_$arch $to/text.ptx -o $to/text.cubin")) {
            next unless /^'dt__(gemm|attention|flash|\w*column|\w*embed_grad|\w*entropy|map|some_row|verb|recast)/;
            my ($kernel, $spilled, $registers, $shared) = /^'(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers(?:.*?(\d+) bytes smem)?/s;
            print join("\t", "sm_$arch", $module, $kernel, $registers, $spilled, $shared || 0), "\n";
        }
    }
}
