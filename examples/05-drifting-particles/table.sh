#!/bin/sh
# The rows of the README's table: of several runs the smallest of each time, so that
# other work on the machine counts little.
#   ./table.sh MPIRUN REPEATS RANKS...
set -eu
mpirun=$1 repeats=$2
shift 2
for ranks in "$@"; do
    for _ in $(seq "$repeats"); do
        for every in 0 5; do $mpirun -n "$ranks" ./particles --balance "$every" --steps 60; done
    done
done | awk '
    function least(name, value) { if (!(name in min) || value < min[name]) min[name] = value }
    {
        for (i = 1; i < NF; i += 1) field[$i] = $(i + 1)
        ranks = field["ranks"]; key = ranks " " field["balance"]
        least(key " wall", field["wall"] + 0); least(key " slowest", field["slowest"] + 0)
        least(ranks " average", field["average"] + 0)
        if (sum == "") sum = field["checksum"]
        if (sum != field["checksum"]) { print "checksums differ"; exit 1 }
        if (field["balance"] > 0) {
            least(ranks " balancing", field["balancing"] + 0); least(ranks " busy", field["busy"] + 0)
            moved[ranks] = field["moved"]
            if (!(ranks in seen)) { seen[ranks] = 1; order[++count] = ranks }
        }
    }
    END {
        print "| ranks | slowest, never | slowest, every 5 | ideal | less by | cells moved | wall, never | wall, every 5 | balancing | busy in it |"
        print "|---|---|---|---|---|---|---|---|---|---|"
        for (i = 1; i <= count; i++) {
            r = order[i]
            printf "| %d | %.2f s | %.2f s | %.2f s | %.2f | %d | %.1f s | %.1f s | %.2f s | %.2f s |\n", r, \
                min[r " 0 slowest"], min[r " 5 slowest"], min[r " average"], \
                min[r " 0 slowest"] / min[r " 5 slowest"], moved[r], min[r " 0 wall"], min[r " 5 wall"], \
                min[r " balancing"], min[r " busy"]
        }
    }'
