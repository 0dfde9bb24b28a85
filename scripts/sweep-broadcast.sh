#!/usr/bin/env bash
# Broadcasts with random failures: every live process must have the message.
#
#   scripts/sweep-broadcast.sh [RUNS] [SEED]
#
# RUNS (100000) with failures before the start under checked correction, and as many
# with up to f failures at any moment under failure-proof correction, over all trees
# and gossip; then as many with spanning trees and failures at any moment, at most one fewer
# than trees. Prints a line for each kind; stops at the first broken promise. SEED is fresh
# by default.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-100000}
seed=${2:-${OUTLIVE_SEED:-$(shuf -i 0-99999999 -n 1)}}
outlive=target/release/outlive
kinds=16
each=$(((runs + kinds - 1) / kinds))

sweep() { # sweep NAME OPTION...
    local name=$1
    shift
    if "$outlive" simulate broadcast --runs "$each" --seed "$seed" "$@" --json >/dev/null; then
        echo "PASS $name: $each runs from seed $seed: $*"
    else
        echo "FAIL $name: outlive simulate broadcast --runs $each --seed $seed $*"
        exit 1
    fi
    seed=$((seed + each))
}

spreads=(
    "--tree binomial" "--tree kary:4" "--tree lame:2" "--tree optimal"
    "--tree binomial --order in-order" "--tree kary:2 --half-duplex"
    "--dissemination gossip" "--dissemination gossip --gossip-time 8"
)
for start in synchronized overlapped; do
    for spread in "${spreads[@]}"; do
        read -ra options <<<"$spread --start $start"
        sweep checked "${options[@]}" --processes 61 --faults 20%
        sweep failure-proof "${options[@]}" --processes 61 --dead 1,2,7 \
            --correction failure-proof:3 --faults 3 --fault-time during
    done
done

export SPANNING_RUNS=$runs OUTLIVE_SEED=$seed
if cargo test --release --locked -q -p outlive-simulator --test spanning -- \
    --exact every_live_process_gets_every_broadcast >/dev/null; then
    echo "PASS spanning-trees: $runs runs from seed $seed"
else
    echo "FAIL spanning-trees: SPANNING_RUNS=$runs OUTLIVE_SEED=$seed cargo test --release -p outlive-simulator" \
        "--test spanning every_live_process_gets_every_broadcast"
    exit 1
fi
