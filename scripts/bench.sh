#!/usr/bin/env bash
# What Outlive costs on this machine, in one table: the figures of the README come from
# here. Options of `outlive bench` may follow, for example --json or --dir DIR.
set -euo pipefail
cd "$(dirname "$0")/.."

exec target/release/outlive bench all "$@"
