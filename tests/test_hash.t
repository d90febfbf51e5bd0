#!/usr/bin/env perl
# One hash (R1, R2, R3, R4, R15): a recipe gives the same SHA-256 of weights and optimizer state on every layout: ranks,
# processes or threads, threads per rank, bucket sizes; with every instruction set, compiler and level of optimisation; and
# it is the one that is written down in golden/hash.txt. DT_UPDATE=1 writes that file anew.
# A sample by default, everything with DT_FULL=1 (./build.sh test --full), each recipe once or twice in slow sanitized
# builds, which look for faults in the program, not in the bits.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use Test::More;

my $only_threads = ($ENV{DT_SANITIZE} || '') =~ /thread/; # TSan cannot see what processes share
my ($isas, $lacking) = isas();

my $golden = "$root/tests/golden/hash.txt";
my %want = golden();

sub same { my ($name, $what, @how) = @_; is(hash_of(@how), $want{$name}, "$name: $what") }

sub update {
    my $text = "# SHA-256 of weights and optimizer state after the recipes of tests/test_hash.t.\n";
    $text .= "$_ " . hash_of($_, '--ranks 1 --threads 1') . "\n" for sort keys %recipe;
    spew($golden, $text);
    %want = golden();
}

# Layouts as [words, options]. Three ranks on eight shards, and five, are uneven.
sub layouts {
    my @kinds = $only_threads ? 'threads' : qw(processes threads);
    my @all = (['1 rank, 1 thread', '--ranks 1 --threads 1'], ['1 rank, 2 threads', '--ranks 1 --threads 2']);
    for my $ranks (2, 3, 4, 5, 8) {
        for my $kind (@kinds) {
            for my $threads (1, 2) {
                my $sampled = $ranks == 3 || ($threads == 1 && $ranks != 5 && $kind eq $kinds[0]);
                next unless full() || $sampled;
                push @all, ["$ranks $kind, $threads thread" . ($threads > 1 ? 's' : ''), "--ranks $ranks --launch $kind --threads $threads"];
            }
        }
    }
    return @all;
}

update() if $ENV{DT_UPDATE};
seeded();
is(scalar(grep { $want{$_} } keys %recipe), scalar(keys %recipe), 'golden/hash.txt has every recipe');

my @layouts = layouts();
same('base', $_->[0], 'base', $_->[1]) for @layouts;
my $several = $only_threads ? '--ranks 3 --launch threads' : '--ranks 3';
same('base', "buckets of $_ bytes", 'base', "$several --threads 1 --bucket $_") for 1, 5000, 100000;
for my $name (qw(llama dropout shard each experts switch dropless tensor tensor_llama tensor_experts context context_llama context_experts context_switch)) {
    my @some = grep { $_->[0] =~ /^(1 rank, 2|3 .*, 1|8 )/ } @layouts;
    @some = full() ? @layouts : sanitized() ? () : $some[rand @some];
    push @some, ['small buckets', "$several --threads 1 --bucket 5000"];
    same($name, $_->[0], $name, $_->[1]) for drawn(1, @some);
}
is(scalar(keys %{{ map { $_ => 1 } values %want }}), scalar(keys %recipe), 'every recipe has a hash of its own: another recipe is another result');

# ---- optimizers ----

my %slowly = map { $_ => 1 } drawn(1, qw(adam sgd lion)); # of the library without fused multiply-add, which adds in software
for my $name (qw(adam sgd lion)) {
    my @some = full() ? @layouts : sanitized() ? () : drawn(3, grep { $_->[0] =~ /^(1 rank|[23] .*, 1)/ } @layouts);
    same($name, $_->[0], $name, $_->[1]) for @some;
    same($name, "$_ kernels", $name, $several, "DT_ISA=$_") for sanitized() ? $isas->[-1] : grep { $_ ne 'portable' || $slowly{$name} } @$isas;
}

# ---- instruction sets ----

for my $isa (@$isas) {
    my @some = full() ? @layouts : sanitized() ? $layouts[1] : ($layouts[1], ['3 ranks', "$several --threads 1"]);
    my $slow = $isa eq 'portable';
    same('base', "$isa, $_->[0]", 'base', $_->[1], "DT_ISA=$isa") for $slow ? drawn(1, @some) : @some;
    same($_, "$isa", $_, $several, "DT_ISA=$isa") for sanitized() ? () : drawn($slow ? 1 : 3, qw(llama dropout shard each experts switch dropless tensor tensor_llama tensor_experts));
}
SKIP: { skip "$_: this processor lacks it", 1 for @$lacking }

# ---- compilers and their options ----

# Builds the trainer; `fast` links it with an object made by -Ofast, whose start code flushes denormals for the process.
sub build_with {
    my ($cc, $flags, $fast) = @_;
    my $source = "$root/examples/06_train.c";
    my $command = $fast
        ? "$cc -std=gnu11 $flags -I$root -c $source -o other.o && $cc -Ofast -c fast.c -o fast.o && $cc -Ofast other.o fast.o -o other -lm -lpthread"
        : "$cc -std=gnu11 $flags -I$root $source -o other -lm -lpthread";
    my ($status, undef, $err) = run(600, $command);
    diag($err) if $status;
    return !$status;
}
spew("$tmp/fast.c", "float dt_test_fast(float x);\nfloat dt_test_fast(float x) { return x * 0.5f; }\n");
spew("$tmp/flush.c", "int main(void) { volatile float x = 1e-38f; x = x * 0.01f; return x == 0.0f; }\n");

sub flushes { my $cc = shift; return (run(60, "$cc -Ofast flush.c -o flush && ./flush"))[0] == 1 }

my @builds = ( # [compiler, flags, linked with -Ofast, in the sample]
    ['gcc', '-O0 -march=native -DDT_DEBUG', 1, 1],
    ['clang', '-O0 -march=native -DDT_DEBUG', 0, 1],
    (map { ['gcc', $_, 0, 0] } '-O0', '-O0 -march=native', '-O1', '-O3', '-O3 -march=native', '-O2 -flto', '-O2 -DDT_DEBUG', '-Os'),
    (map { ['clang', $_, 0, 0] } '-O1', '-O2', '-O3 -march=native', '-O2 -flto'),
    ['gcc', '-O2', 1, 0],
    ['clang', '-O2', 1, 0],
);
my $drawn = int rand 2;
for my $build (@builds) {
    my ($cc, $flags, $fast, $sampled) = @$build;
    next unless full() || ($sampled && !$drawn--);
    my $what = "$cc $flags" . ($fast ? ', linked with -Ofast' : '');
  SKIP: {
        skip "$what: the sanitized build is tested alone", 1 if sanitized();
        skip "$cc is not installed", 1 unless have($cc);
        skip "$what: this compiler cannot", 1 unless build_with($cc, $flags, $fast);
        note(flushes($cc) ? 'denormals are flushed by the start code' : 'this compiler leaves denormals alone') if $fast;
        same('base', $what, 'base', $several . ' --threads 2', '', "$tmp/other");
        same('base', "$what, $_", 'base', '--ranks 1', "DT_ISA=$_", "$tmp/other") for full() ? @$isas : 'portable';
    }
}

done_testing();
