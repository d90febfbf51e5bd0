#!/usr/bin/env perl
# The engine for libfabric: messages between processes over each provider that runs here, on the loopback interface and
# between two network namespaces with several interfaces, which the test makes and removes. What is not there is said. Two or
# three ranks, as seeded() draws; both with --full.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Dt;
use IO::Socket::INET;
use Test::More;

my $cc = $ENV{CC} || 'cc';
plan skip_all => 'libfabric is not installed (apt-get install libfabric-dev libfabric-bin)'
    if (run(60, "printf '#include <rdma/fabric.h>\\nint main(void) { return 0; }\\n' | $cc -x c - -o probe -lfabric"))[0];
my $program = linked_with('engines', "$root/tests/ofi_messages.c", "$build/ofi_messages");
# What libfabric itself keeps to the end of a process is not ours.
spew("$tmp/leaks", "leak:libfabric\nleak:libnl\nleak:libibverbs\nleak:librdmacm\nleak:libpsm\n");
$ENV{LSAN_OPTIONS} = "suppressions=$tmp/leaks:print_suppressions=0";
delete @ENV{grep { /^(DT_FABRIC|DT_RENDEZVOUS|DT_INTERFACE|RANK|WORLD_SIZE|LOCAL_|MASTER_|SM_|SLURM_|OMPI_|PMIX_)/ } keys %ENV};

sub port { return IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1')->sockport }

# Runs so many ranks, each with these variables and behind this command; returns their statuses and all that they said.
sub ranks {
    my ($count, $seconds, $environment, $scenario, $in) = @_;
    my $script = "export DT_RENDEZVOUS_TIMEOUT=30 MASTER_ADDR=127.0.0.1 MASTER_PORT=" . port() . " WORLD_SIZE=$count\n";
    for my $r (0 .. $count - 1) {
        my $own = ref $environment ? $environment->[$r] : $environment;
        my $before = $in ? $in->[$r] : '';
        $script .= "RANK=$r env $own $before $program $scenario >said.$r 2>&1 &\np$r=\$!\n";
    }
    $script .= "wait \$p$_; echo \$?\n" for 0 .. $count - 1;
    my ($status, $out) = run($seconds, $script);
    my $said = join '', map { slurp("$tmp/said.$_") } 0 .. $count - 1;
    unlink map { "$tmp/said.$_" } 0 .. $count - 1;
    return ($status == 124 ? 'late' : join(' ', split /\n/, $out), $said);
}
sub good {
    my ($name, $want, @how) = @_;
    my ($status, $said) = ranks(@how);
    ok($status eq $want && $said !~ /^rank \d+: /m, $name) or diag("status $status\n" . substr($said, 0, 3000));
    return $said;
}

seeded();

my $everything = 'sizes order tags any truncated registered threads cancelled';
for my $provider ('net', 'tcp;ofi_rxm', 'efa') {
    my $environment = "DT_FABRIC='$provider'";
    my ($status, $said) = ranks(1, 60, $environment, 'sizes');
  SKIP: {
        if ($status ne '0') {
            like($said, qr/^libfabric [\d.]+ has no provider \Q$provider\E here.*see what `fi_info -p "\Q$provider\E"` says/, "$provider is not here: a sentence");
            skip $said =~ s/\n.*//sr, 6;
        }
        good("$provider: $everything, $_ ranks", join(' ', (0) x $_), $_, 120, $environment, $everything) for drawn(1, 2, 3);
        good("$provider: 8 ranks", join(' ', (0) x 8), 8, 120, $environment, 'sizes any');
        good("$provider: a send that nobody takes is cancelled", '0 0', 2, 60, $environment, 'unsent');
        good("$provider: a send that a frozen rank has begun to take", '0 0', 2, 60, $environment, 'frozen');
        for my $n (drawn(1, 2, 3)) {
            good("$provider: one of $n is killed", join(' ', (0) x ($n - 1), 137), $n, 60, $environment, 'killed');
        }
        note(good("$provider: half round trips", '0 0', 2, 120, $environment, 'times')) if full(); # seconds, which are told
      SKIP: {
            skip 'more than 2^31 bytes: only with --full, and 5 GB of memory', 1 unless full() && slurp('/proc/meminfo') =~ /MemAvailable:\s+([5-9]|\d\d+)\d{6} /;
            good("$provider: more than 2^31 bytes", '0 0', 2, 300, $environment, 'large');
        }
    }
}

# ---- meeting ----

good('a job key', '0 0 0', 3, 60, 'DT_JOB_KEY=secret', 'sizes');
{
    my ($status, $said) = ranks(2, 60, ['DT_JOB_KEY=secret DT_RENDEZVOUS_TIMEOUT=4', 'DT_JOB_KEY=guess'], 'sizes');
    ok($status !~ /^0|0$/ && $said =~ /has another DT_JOB_KEY than rank 1/ && $said =~ /1 of 2 ranks were missing \(1\)/, 'a rank with another key stays outside') or diag("$status $said");
}
good('IPv6', '0 0', 2, 60, 'MASTER_ADDR=::1', 'sizes');
good('SageMaker: two hosts', '0 0', 2, 60, [map { "-u RANK -u WORLD_SIZE SM_HOSTS='[\"127.0.0.1\", \"b\"]' SM_CURRENT_HOST=$_ TRAINING_JOB_NAME=a" } '127.0.0.1', 'b'], 'sizes');
good('Slurm: two tasks', '0 0', 2, 60, [map { "-u RANK -u WORLD_SIZE -u MASTER_ADDR SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_PROCID=$_ SLURM_LOCALID=$_ SLURM_NODEID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=127.0.0.1" } 0, 1], 'sizes');
for (map { [$_, qr/DT_FABRIC=$_: it is net /] } 'sockets', 'shm') {
    my ($status, $said) = ranks(1, 60, "DT_FABRIC=$_->[0]", 'sizes');
    ok($status eq '2' && $said =~ $_->[1], "DT_FABRIC=$_->[0] is refused");
}
my ($status, $said) = ranks(2, 60, ["DT_FABRIC='tcp;ofi_rxm'", ''], 'sizes');
SKIP: {
    skip 'the default is tcp;ofi_rxm here, without net', 1 if (ranks(1, 60, 'DT_FABRIC=net', 'sizes'))[0] ne '0';
    ok($status eq '2 2' && $said =~ /rank 1 uses net, this one \(0\) tcp;ofi_rxm/, 'ranks with different providers are refused') or diag($said);
}

# ---- two hosts: namespaces, each with an interface that leads nowhere and one to the other ----

my $id = $$;
my @space = map { "dtofi$id$_" } 'a', 'b';
END { system("ip netns del $_ 2>/dev/null") for @space }
sub hosts {
    my @lines = ("ip netns add $space[0]", "ip netns add $space[1]", "ip link add dto$id netns $space[0] type veth peer name dto$id netns $space[1]");
    for my $i (0, 1) {
        push @lines, map { "ip -n $space[$i] $_" } 'link set lo up', 'link add aa0 type veth peer name aa1', 'link set aa1 up', "addr add 10.99.$i.1/24 dev aa0", 'link set aa0 up',
            "addr add 10.77.7." . ($i + 1) . "/24 dev dto$id", "link set dto$id up";
    }
    return (run(20, join ' && ', @lines))[0] == 0;
}
SKIP: {
    skip 'network namespaces are not permitted here (they need root)', 8 unless have('ip') && hosts();
    my @in = map { "ip netns exec $_" } @space;
    my $there = 'MASTER_ADDR=10.77.7.1';
    for my $provider ('tcp;ofi_rxm', 'net') {
        good("$provider: two hosts", '0 0', 2, 120, "DT_FABRIC='$provider' $there", $everything, \@in);
        good("$provider: one of two hosts loses its rank", '0 137', 2, 60, "DT_FABRIC='$provider' $there", 'killed', \@in);
    }
    good('two hosts, with DT_INTERFACE', '0 0', 2, 60, "MASTER_ADDR=10.77.7.1 MASTER_PORT=29511 DT_INTERFACE=dto$id", 'sizes', \@in);
    my @address = map { "10.77.7.$_" } 1, 2;
    my $alone = '-u RANK -u WORLD_SIZE -u MASTER_ADDR'; # as the launcher there leaves them
    my $all = '[' . join(', ', map { "\"$_\"" } @address) . ']';
    good('two hosts: SageMaker', '0 0', 2, 60, [map { "$alone SM_HOSTS='$all' SM_CURRENT_HOST=$_ SM_NETWORK_INTERFACE_NAME=dto$id TRAINING_JOB_NAME=a" } @address], 'sizes', \@in);
    spew("$tmp/resourceconfig.$_.json", qq({"current_host": "$_", "hosts": $all, "network_interface_name": "dto$id"})) for @address;
    good('two hosts: SageMaker, by resourceconfig.json', '0 0', 2, 60, [map { "$alone DT_SAGEMAKER_CONFIG=$tmp/resourceconfig.$_.json" } @address], 'sizes', \@in);
    good('two hosts: Slurm', '0 0', 2, 60, [map { "$alone SLURM_JOB_ID=$id SLURM_STEP_ID=0 SLURM_PROCID=$_ SLURM_LOCALID=0 SLURM_NODEID=$_ SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE='1(x2)' SLURM_STEP_NODELIST='10.77.7.[1-2]'" } 0, 1], 'sizes', \@in);
}
done_testing();
