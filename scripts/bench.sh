#!/usr/bin/env bash
# What Outlive costs on this machine: the figures of the README come from here.
set -euo pipefail
cd "$(dirname "$0")/.."

for what in save skip recovery; do
    printf '\n== outlive bench %s\n' "$what"
    target/release/outlive bench "$what" "$@"
done
