#!/usr/bin/env bash
# Draws the pictures of the documentation with the program itself, into docs/pictures.
#
#   scripts/pictures.sh [OUTLIVE]    OUTLIVE: the command (target/release/outlive)
set -euo pipefail
cd "$(dirname "$0")/.."
outlive=${1:-target/release/outlive}
mkdir -p docs/pictures

draw() { # draw FILE WORDS...: a run of `outlive simulate`
    local file=docs/pictures/$1
    shift
    "$outlive" simulate "$@" --plot "$file" >/dev/null
    grep -q '</svg>' "$file" || {
        echo "pictures: $file is no picture" >&2
        exit 1
    }
}

draw corrected-tree.svg broadcast --processes 32 --dead 1
draw in-order.svg broadcast --processes 32 --dead 16 --order in-order
draw corrected-gossip.svg broadcast --processes 32 --dissemination gossip --dead 1,7
draw acknowledged-tree.svg broadcast --processes 32 --dissemination acknowledged-tree --dead 1
draw bypass.svg allreduce --processes 16 --dead 8
draw up-correction.svg reduce --processes 16 --algorithm up-correction:1 --dead 8
