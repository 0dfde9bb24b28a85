#!/usr/bin/env bash
# Native collectives and Outlive's in one job, in turns: two ranks on two cores.
#
#   bench/collectives/run.sh [RANKS] [BLOCKS] [SHARE] [MPI...]
#
# RANKS (2): more than two are not pinned, and oversubscribed; "shared" is two on one core.
# BLOCKS (41): of each kind, size and collective, an odd number; the figures are their medians.
# SHARE (0): of a core that a neighbour keeps busy meanwhile. MPI (openmpi mpich).
# OUTLIVE_COLLECTIVES=native measures the native library against itself: how far figures vary.
set -euo pipefail
cd "$(dirname "$0")/../.."
ranks=${1:-2}
blocks=${2:-41}
share=${3:-0}
libraries=("${@:4}")
[ ${#libraries[@]} -gt 0 ] || libraries=(openmpi mpich)
library=$PWD/target/release/liboutlive_mpi.so
[ -f "$library" ] || cargo build --release --locked -p outlive-mpi
work=$(mktemp -d)
neighbour=
trap 'rm -rf "$work"; [ -z "$neighbour" ] || kill "$neighbour"' EXIT
case $ranks in
    shared) ranks=2 pin=2 ;;
    1 | 2) pin=1 ;;
    *) pin=0 ;;
esac
if [ "$share" != 0 ]; then
    bench/collectives/load.py "$share" &
    neighbour=$!
fi
for mpi in "${libraries[@]}"; do
    bin=.deps/$mpi/bin
    if [ ! -x "$bin/mpicc" ]; then
        echo "$mpi: not in .deps, run make deps"
        continue
    fi
    "$bin/mpicc" -O2 -Wall -Wextra bench/collectives/pair.c -o "$work/pair-$mpi"
    options=()
    [ "$mpi" = mpich ] || options=(--allow-run-as-root --oversubscribe)
    echo "$mpi, $ranks ranks, load $(cut -d' ' -f1 /proc/loadavg), neighbour $share"
    "$bin/mpirun" "${options[@]}" -n "$ranks" env LD_PRELOAD="$library" "$work/pair-$mpi" "$pin" "$blocks"
done
