#!/usr/bin/env bash
# Seconds of processor time to compile a program that includes dtrain.h, and one that only uses the communicator, beside
# the header of fc6263c, the last one before the header became minimal. Run by `./build.sh bench compile`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/new" "$work/old"
cp dtrain.h "$work/new/"
git show fc6263c:dtrain.h >"$work/old/dtrain.h" 2>/dev/null || rm -r "$work/old" # a checkout without its history

cat >"$work/all.c" <<'C'
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
int main(void) { return dt_version()[0] == '0' ? 0 : 1; }
C
cat >"$work/comm.c" <<'C'
#define DTRAIN_IMPLEMENTATION
#define DT_STATIC
#define DT_COMM_ONLY
#include "dtrain.h"
int main(int argc, char **argv)
{
    float x[4] = {1, 2, 3, 4};
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (!r) r = dt_all_reduce(c, x, 4, DT_SUM);
    dt_comm_close(&c);
    return r ? dt_fail("communicator") : 0;
}
C

# The least of three runs: user and system seconds of COMPILER LEVEL PROGRAM HEADER.
seconds() {
    local TIMEFORMAT='%U %S' round
    for round in 1 2 3; do
        { time "$1" -std=gnu11 "$2" -I"$work/$4" -c "$work/$3.c" -o "$work/out.o" 2>/dev/null; } 2>&1
    done | awk '{ s = $1 + $2; if (NR == 1 || s < least) least = s } END { printf "%.2f", least }'
}

printf '%-8s %-5s %-22s %8s %8s %6s\n' compiler level program fc6263c now ratio
for compiler in gcc clang; do
    command -v $compiler >/dev/null || { echo "skipped: $compiler is not installed"; continue; }
    for program in all comm; do
        for level in -O0 -O2; do
            now=$(seconds $compiler $level $program new)
            [ -d "$work/old" ] && before=$(seconds $compiler $level $program old) || before=-
            awk -v c=$compiler -v l=$level -v p=$program -v b="$before" -v n="$now" 'BEGIN {
                name = p == "all" ? "the whole header" : "only the communicator"
                printf "%-8s %-5s %-22s %8s %8.2f %6s\n", c, l, name, b, n, b == "-" ? "-" : sprintf("%.2f", n / b) }'
        done
    done
done
