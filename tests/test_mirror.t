#!/usr/bin/env perl
# Tensors on a device (tests/mirror.h): host code reads after a download and writes before an upload, everywhere. Suites
# pass on the mirror, a drawn quarter of them or, with DT_FULL=1, all; hash_of() of Dt.pm draws as many of the layouts of
# other suites. Then the contract is broken on purpose, and the place is named.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use List::Util qw(shuffle);
use Test::More;

plan skip_all => 'sanitizers have a SIGSEGV handler of their own' if sanitized();
seeded();

# ---- what the host runs is counted and named ----

my $one_hash = built('library', 'examples/32_one_hash.c', '32_one_hash');
my @layouts = ('--ranks 1', '--ranks 4 --tp 2 --cp 2', '--ranks 4 --pp 2 --zero 3', '--ranks 2 --compile on --threads 2');
for my $layout (full() ? @layouts : (@layouts[0, 1 + int rand 3])) {
    my ($status, $out, $err) = run(300, 'DT_MIRROR_SAY=1 DT_MIRROR=' . (1 + int rand 1000) . " $one_hash --quiet $layout");
    like($out, qr/^ok: the hash that everyone gets$/m, "32_one_hash has its hash on the mirror: $layout") or diag($err);
    my ($device, $host, $ops) = $err =~ /^mirror: (\d+) calls on the device, (\d+) on the host:(.*)/m;
    cmp_ok($device || 0, '>', 1000, "  the device ran $device calls");
    like("$host:" . ($ops || ''), qr/^\d+:( \w+ \d+)+$/, "  and the host $host:$ops"); # a drawn eighth of the ops
}

# ---- suites ----

my @suites = map { "test_$_" } qw(ops ops_more golden_ops nn loop modes context generate llama collect parameters kept);
@suites = full() ? (@suites, 'test_checkpoints.t', 'test_use.t', 'test_precision.t') : (shuffle @suites)[0 .. @suites / 4 - 1];
for my $suite (@suites) {
    local $ENV{DT_MIRROR} = 1 + int rand 1000;
    my $command = $suite =~ /\.t$/ ? "perl $root/tests/$suite" : built('open', "tests/$suite.c", $suite);
    my ($status, $out, $err) = run_in($root, 900, $command);
    my @failed = $out =~ /^(not ok .*)/mg;
    ok($status == 0 && !@failed && $out =~ /^ok 1/m, "$suite passes with DT_MIRROR=$ENV{DT_MIRROR}") or diag(join("\n", "status $status", @failed), "\n$err");
}

# ---- broken on purpose, in a copy of the header: BREAK=n ----

my @breaks = ( # what, the line that `if (..)` is put before or in place of; ranks; what comes of it
    ['nothing', '', '', '--ranks 1', 'ok'],
    ['a weight is read at its address', '    e->norm = __builtin_sqrtf(squares) / (float)e->powers.scale;', 'if (broken(1)) squares += e->params[0];', '--ranks 1', 'fault'],
    ['initial weights are not uploaded', '        dt__upload(e->k, weights, count);', 'if (!broken(2))', '--ranks 1', 'hash'],
    ['a partial sum is not downloaded', '    for (int j = 0; j < counts[c->rank]; j++) dt__comm_in(', 'if (!broken(3))', '--ranks 2', 'hash'],
    ['what was received is not uploaded', '    dt_result r = dt_recv(c, dt__comm_in(k, mem, 0), count, from);', 'if (broken(4)) return dt_recv(c, dt__comm_in(k, mem, 0), count, from);', '--ranks 2 --pp 2', 'hash'],
);
my $header = slurp("$root/dtrain.h");
for my $break (@breaks) {
    my ($what, $old, $new) = @$break;
    next if !$old;
    is((() = $header =~ /\Q$old\E/g), 1, "$what: the line is there");
    $header =~ s/(?=\Q$old\E)/    $new\n/;
}
my $line = $header =~ /broken\(1\)/ ? 1 + ($` =~ tr/\n//) : 0;
mkdir "$tmp/broken";
spew("$tmp/broken/dtrain.h", $header);
spew("$tmp/broken/broken.h", "#include <stdlib.h>\nstatic inline int broken(int n) { return atoi(getenv(\"BREAK\")) == n; }\n");
my ($failed, undef, $why) = run(300, ($ENV{CC} || 'cc') . " -std=gnu11 -O0 -g1 -DDT_DEBUG -I$tmp/broken -I$root/tests -include mirror.h -include broken.h $root/examples/32_one_hash.c -o broken_hash -lm -lpthread -ldl");
is($failed, 0, 'the broken header compiles') or diag($why);
for my $n (0 .. $#breaks) {
    my ($what, undef, undef, $layout, $end) = @{$breaks[$n]};
    for my $mirror ('', 'DT_MIRROR=1') { # on the host there is nothing to forget
        my ($status, $out, $err) = run(300, "BREAK=$n $mirror ./broken_hash --quiet --steps 2 $layout");
        my ($hash) = $out =~ /^sha256 +(\w+)/m;
        our $right;
        $right = $hash if !$n && !$mirror;
        if (!$mirror || $end eq 'ok') { is($hash, $right, "broken $n ($what)" . ($mirror ? ' on the mirror' : '') . ': the hash') if $n != 1 }
        elsif ($end eq 'hash') { ok(!defined $hash || $hash ne $right, "broken $n ($what): not the hash on the mirror") }
        else {
            isnt($status, 0, "broken $n ($what): the mirror stops it") or diag($out);
            like($err, qr/^mirror: host code uses the address of a tensor.*\n.*dt__engine_update at \S*dtrain\.h:$line\b/m, "  and names the function and line $line") if have('addr2line');
        }
    }
}

done_testing();
