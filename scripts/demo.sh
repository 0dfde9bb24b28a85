#!/usr/bin/env bash
# A node dies: first without Outlive, then with it. Heat in a plate on 8 MPI ranks
# over 4 emulated nodes of this machine; takes about half a minute.
#
#   scripts/demo.sh [DIRECTORY]    keeps what it makes in DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/.."

outlive=$PWD/target/release/outlive
mpirun=$PWD/.deps/mpich/bin/mpirun
plain=$PWD/build/examples/heat2d-plain
protected=$PWD/build/examples/heat2d
size=(512 512 600)
pace=(--sleep-us 10000) # about 6 s of steps: time enough to lose a node

bold='' red='' green='' off=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
    bold=$'\e[1m' red=$'\e[31m' green=$'\e[32m' off=$'\e[0m'
fi
title() { printf '\n%s%s%s\n' "$bold" "$*" "$off"; }
shown() { printf '  $ %s\n' "$*"; }
die() {
    printf '%sdemo: %s%s\n' "$red" "$*" "$off" >&2
    exit 1
}

for needed in "$outlive" "$mpirun" "$plain" "$protected"; do
    [ -x "$needed" ] || die "no $needed; run: make demo"
done

work=${1:-}
job='' # the process group of what runs in the background
if [ -z "$work" ]; then
    work=$(mktemp -d)
    cleanup() {
        [ -z "$job" ] || kill -KILL -- "-$job" 2>/dev/null || true
        rm -rf "$work"
    }
    trap cleanup EXIT
else
    mkdir -p "$work"
    trap '[ -z "$job" ] || kill -KILL -- "-$job" 2>/dev/null || true' EXIT
fi
cd "$work"

# Sums over ranks have the same last bits only if MPI adds in one order in both runs.
title "1. Undisturbed: what the result must be"
shown "outlive run --reproducible -- mpirun -n 8 heat2d-plain ${size[*]} reference.bin --residuals reference.sums"
timeout 60 "$outlive" run --quiet --reproducible --job reference --store store -- \
    "$mpirun" -n 8 "$plain" "${size[@]}" reference.bin --residuals reference.sums | sed 's/^/  /'

title "2. Without Outlive: node 2 (ranks 4 and 5) dies"
shown "mpirun -n 8 heat2d ${size[*]} lost.bin"
set -m # a process group of its own
: >plain.log
timeout 60 "$mpirun" -n 8 "$plain" "${size[@]}" lost.bin "${pace[@]}" --progress 100 \
    >plain.log 2>&1 &
job=$!
set +m
for _ in $(seq 600); do
    grep -q 'step 200 ' plain.log && break
    sleep 0.05
done
grep 'step' plain.log | tail -1 | sed 's/^/  /'
# The ranks of this very run, by program and directory; their numbers are in the
# environment that mpirun gave them.
# Found without a process for each look: on a busy machine the run would be over before.
victims=()
for process in /proc/[0-9]*; do
    [ "$process/exe" -ef "$plain" ] || continue
    [ "$process/cwd" -ef . ] || continue
    rank=$(tr '\0' '\n' <"$process/environ" | sed -n 's/^PMI_RANK=//p') || continue
    case $rank in
    4 | 5) victims+=("${process#/proc/}") ;;
    esac
done 2>/dev/null
[ ${#victims[@]} = 2 ] || die "ranks 4 and 5 were not found"
shown "kill -9 ${victims[*]}"
# mpirun may end the second as soon as the first is gone.
kill -KILL "${victims[@]}" 2>/dev/null || true
status=0
wait "$job" || status=$?
job=''
[ "$status" != 0 ] || die "the unprotected run was expected to die"
[ ! -e lost.bin ] || die "the unprotected run was expected to leave no result"
printf '  %smpirun ended with %s; no result: everything is lost%s\n' "$red" "$status" "$off"

title "3. With Outlive: node 2 dies with its storage, later node 1"
inject=(--inject node:2@version=250 --inject node:1@version=450)
options=(--reproducible --job demo --store store --emulate-nodes 4 --spares 2 --every 20)
shown "outlive run ${options[*]} \\"
printf '      %s\n' "${inject[*]} \\" "--report report.json -- mpirun -n 8 heat2d ${size[*]} result.bin --residuals result.sums"
# Not through a pipe: on a terminal outlive shows more of its timeline.
timeout 80 "$outlive" run "${options[@]}" "${inject[@]}" --report report.json \
    -- "$mpirun" -n 8 "$protected" "${size[@]}" result.bin --residuals result.sums "${pace[@]}" ||
    die "the protected run failed; see $work"

title "4. What it cost"
/usr/bin/env python3 "$OLDPWD/scripts/report.py" report.json --failures 2 | sed 's/^/  /' ||
    die "the report is not that of a job that survived two failures"

title "5. Is it the same?"
shown "cmp reference.bin result.bin && cmp reference.sums result.sums"
cmp reference.bin result.bin || die "the fields differ"
cmp reference.sums result.sums || die "the sums over ranks differ"
printf '  %sbit for bit equal%s: %s bytes, and the sums over 8 ranks\n' "$green" "$off" \
    "$(stat -c %s result.bin)"
