#!/usr/bin/env bash
# Runs a program on two hosts that are played on this one: network namespaces with one link between them, a rank on each,
# on a core of its own. They are removed at the end. Needs root and iproute2.
#     tests/hosts.sh ENGINE RATE PROGRAM [ARGUMENT ..]     ENGINE: mpi, or a provider of libfabric; RATE: 1gbit, or - for all
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
engine=$1 rate=$2
shift 2
a=dthost$$a b=dthost$$b link=dth$$ work=$(mktemp -d)
clean() {
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
ip netns add "$a"
ip netns add "$b"
ip link add "$link" netns "$a" type veth peer name "$link" netns "$b"
address=10.77.7.1
for host in "$a" "$b"; do
    ip -n "$host" link set lo up
    ip -n "$host" addr add $address/24 dev "$link"
    ip -n "$host" link set "$link" up
    # Linux's usual one: BBR, where it is set, guesses a rate, and guesses low between hosts that are one machine
    ip netns exec "$host" sysctl -q -w net.ipv4.tcp_congestion_control=cubic 2>/dev/null || true
    # Without a rate they are in a data centre, where frames are long. A message of more than one waits for up to 3 us more
    # until its receiver has acknowledged it, or not: that is up to the state of the connection's window.
    [ "$rate" != - ] || ip -n "$host" link set "$link" mtu 9001
    [ "$rate" = - ] || tc -n "$host" qdisc add dev "$link" root tbf rate "$rate" burst 256kb latency 4ms # more would queue: acknowledgements wait behind data
    address=10.77.7.2
done
cores=$(nproc)
case $engine in
mpi)
    printf '#!/bin/bash\n[ "$1" = 10.77.7.1 ] && host=%s || host=%s\nshift\nexec ip netns exec $host unshare --uts bash -c "hostname $host; $*"\n' \
        "$a" "$b" >"$work/agent"
    chmod +x "$work/agent"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    # shellcheck disable=SC2016
    ip netns exec "$a" mpirun --mca plm_rsh_agent "$work/agent" --mca pml ob1 --mca btl self,tcp --bind-to none \
        --mca btl_tcp_if_include 10.77.7.0/24 --mca oob_tcp_if_include 10.77.7.0/24 -H 10.77.7.1:1,10.77.7.2:1 -np 2 \
        bash -c 'exec taskset -c $((OMPI_COMM_WORLD_RANK % '"$cores"')) "$@"' host "$@"
    ;;
*)
    export DT_FABRIC=$engine WORLD_SIZE=2 MASTER_ADDR=10.77.7.1 MASTER_PORT=29577
    RANK=1 ip netns exec "$b" taskset -c $((1 % cores)) "$@" >"$work/out" 2>&1 &
    RANK=0 ip netns exec "$a" taskset -c 0 "$@" || { cat "$work/out" >&2; exit 1; }
    wait $!
    ;;
esac
