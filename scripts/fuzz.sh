#!/usr/bin/env bash
# Every parser of bytes from outside, for a while: scripts/fuzz.sh SECONDS. With cargo-fuzz and a
# nightly toolchain each target of fuzz/ runs so long under libFuzzer, begun with the inputs of
# fuzz/seeds. Without them the same entry points run over mutated inputs, so long each. Then what
# the kept inputs and some mutations reach is printed, where LLVM's tools read what rustc writes.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?seconds for each target}

if cargo fuzz --version >/dev/null 2>&1 && cargo +nightly --version >/dev/null 2>&1; then
    for file in fuzz/fuzz_targets/*.rs; do
        target=$(basename "$file" .rs)
        mkdir -p "fuzz/corpus/$target" "fuzz/seeds/$target"
        cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
            -max_total_time="$seconds" -rss_limit_mb=2048
    done
else
    echo "cargo-fuzz or a nightly toolchain is missing: mutations from a seed instead"
fi

tests=(-p outlive-cli --test fuzz -p outlive-client --test arguments)
OUTLIVE_FUZZ_SECONDS=$seconds cargo test --locked "${tests[@]}" -- --nocapture
OUTLIVE_FUZZ_SECONDS=$seconds cargo test --locked -p outlive-cli --bins -- --nocapture of_all_kinds
OUTLIVE_FUZZ_SECONDS=$seconds cargo test --locked -p outlive-vault --test mutations

# What rustc writes, only tools of the same LLVM or a newer one read.
tools() { # a directory with llvm-profdata and llvm-cov, or nothing
    local own needs
    own=$(compgen -G "$(rustc --print sysroot)/lib/rustlib/*/bin/llvm-profdata" | head -1 || true)
    needs=$(rustc --version --verbose | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
    if [ -n "$own" ]; then
        dirname "$own"
    elif [ "$(llvm-cov --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p')" -ge "$needs" ] 2>/dev/null; then
        dirname "$(command -v llvm-cov)"
    fi
}
llvm=$(tools)
if [ -z "$llvm" ]; then
    echo "coverage is not printed: rustup component add llvm-tools"
    exit
fi
profiles=$(mktemp -d)
trap 'rm -rf "$profiles"' EXIT
export RUSTFLAGS="-C instrument-coverage" LLVM_PROFILE_FILE="$profiles/%p-%m.profraw"
export CARGO_TARGET_DIR=target/coverage
mapfile -t binaries < <(cargo test --locked "${tests[@]}" --no-run 2>&1 | sed -n 's/.*(\(target.*\))$/\1/p')
cargo test --locked -q "${tests[@]}"
"$llvm/llvm-profdata" merge -sparse "$profiles"/*.profraw -o "$profiles/all"
objects=()
for binary in "${binaries[@]}"; do
    objects+=(-object "$binary")
done
# Of the parsers' own files alone: what is beside them in a crate is no parser.
parsers='(orders|ipc|wire|peers|handshake|parse|slurm|units|inject|hostfile|address|job_file|reading|ffi)\.rs$'
"$llvm/llvm-cov" report "${objects[@]}" -instr-profile="$profiles/all" |
    awk -v parsers="$parsers" '/^Filename/ || $1 ~ parsers'
