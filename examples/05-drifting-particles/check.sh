#!/bin/sh
# Runs without and with balancing; the physics must be the same, the slowest rank
# must have less to do.
set -eu
mpirun=$1 ranks=$2
without=$($mpirun -n "$ranks" ./particles --balance 0 --steps 60)
with=$($mpirun -n "$ranks" ./particles --balance 5 --steps 60)
echo "$without"
echo "$with"
field() { echo "$1" | sed "s/.* $2 \([0-9a-f.]*\).*/\1/"; }
[ "$(field "$without" checksum)" = "$(field "$with" checksum)" ] || { echo "checksums differ"; exit 1; }
awk -v a="$(field "$without" slowest)" -v b="$(field "$with" slowest)" \
    'BEGIN { printf "slowest rank: %.2f times less\n", a / b; exit !(b < a) }'
