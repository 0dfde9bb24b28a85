#!/usr/bin/env bash
# Runs test suites one after the other, goes on after a failure, and sums them.
#
#   scripts/test.sh all
#   scripts/test.sh SUITE...     the suites are the functions suite_* below
#
# Output is shown and kept in build/results/SUITE.log. What a machine lacks is
# skipped by name through tests/skip.py; with CI=true only names in
# tests/skip-list may be skipped.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 70

all=(fmt lint clippy unit ucx structure build doc c fortran histories python examples mpi e2e cluster torchrun sessions minickpt pages book)
sources() { # a hash of the files that are tested: their names and what they hold
    find Cargo.toml Cargo.lock bench crates examples fuzz kernel scripts tests -type f \
        \( -name '*.rs' -o -name '*.py' -o -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.f90' \
        -o -name '*.sh' -o -name '*.toml' -o -name '*.lock' -o -name seeds \) \
        -not -path '*/target/*' -not -name '*.mod.c' -print0 2>/dev/null | LC_ALL=C sort -z |
        xargs -0 sha256sum | sha256sum | cut -c1-16
}

results=$PWD/build/results
python=$PWD/.deps/python/bin/python
system_python=/usr/bin/python3
[ -x "$system_python" ] || system_python=python3
# What is built once gains nothing from being prepared for the next build: a fifth of the time.
[ "${CI:-}" != true ] || export CARGO_INCREMENTAL=0
# Nor from being optimised over all crates: as long again as the rest of that build.
[ "${CI:-}" != true ] || export CARGO_PROFILE_RELEASE_LTO=off
export PATH="$PWD/.deps/python/bin:$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
# What is red there is red again, there and on any machine: seeds follow from what is tested.
if [ "${CI:-}" = true ]; then
    export OUTLIVE_SEEDS_FROM="${OUTLIVE_SEEDS_FROM:-$(sources)}"
    export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-$((16#$(printf %s "$OUTLIVE_SEEDS_FROM" | sha256sum | cut -c1-15)))}"
    echo "seeds follow from OUTLIVE_SEEDS_FROM=$OUTLIVE_SEEDS_FROM"
fi
# The Python extension is checked against one known interpreter.
[ ! -x "$python" ] || export PYO3_PYTHON=$python

# Tests of jobs wait most of the time: one after the other they keep a quarter of two cores busy.
beside=-n$(($(nproc) + 1))
# Ranks of MPI turn while they wait: one test a core.
turning=-n$(nproc)

have() { command -v "$1" >/dev/null 2>&1; }
skip() { "$system_python" tests/skip.py "$@"; }

# A test that fails is red, however often it would pass: a race that shows once is there.
# Only what stands in tests/flaky-list, with reason and date, holds nothing up.
judged() { # judged LOG STATUS: shows what was said, and the status that counts
    cat "$1"
    "$system_python" tests/flaky.py "$1" "$2"
}

tests_in() { # tests_in DIRECTORY [WORDS...]: its pytest files, with more words for pytest
    local in=$1 log=$results/${1//\//-}${2:-}.txt
    shift
    if ! compgen -G "$in/test_*.py" >/dev/null; then
        skip "$in" "it holds no tests yet"
        return
    fi
    "$python" -m pytest -q -rsfE --durations=15 -p no:cacheprovider "$@" "$in" >"$log" 2>&1
    judged "$log" $?
}

# The emulator hangs now and then, which is no fault of what is tested: what fails there is
# run once more, alone, and named in the summary (AGAIN); failing twice is failing.
twice() { # twice DIRECTORY: its pytest files
    local name=${1##*/}
    local cache=build/$name-cache log=$results/$name-first.txt
    rm -rf "$cache"
    if "$python" -m pytest -q -rsfE -o cache_dir="$cache" "$1" >"$log" 2>&1; then
        cat "$log"
        return
    fi
    # What failed is counted by the second run.
    sed -E '/ in [0-9.]+s/ s/[0-9]+ (failed|errors?),? ?//g' "$log"
    echo "again, alone: what failed"
    sed -nE 's/^(FAILED|ERROR) ([^ ]+).*/AGAIN \2/p' "$log"
    "$python" -m pytest -q -rsf -o cache_dir="$cache" --last-failed --last-failed-no-failures none "$1"
}

cargo_tests() { # cargo_tests SECONDS NAME [WORDS...]: cargo test, which ends after SECONDS if it hangs
    local limit=$1 log=$results/$2-all.txt
    shift 2
    timeout "$limit" cargo test --locked --no-fail-fast "$@" >"$log" 2>&1
    judged "$log" $?
}

suite_fmt() {
    cargo fmt --all --check
}

suite_lint() { # scripts and Python files
    if have shellcheck; then
        shellcheck scripts/*.sh .ci/run
    else
        skip shellcheck "shellcheck is not installed"
    fi && if have ruff; then
        ruff check --quiet . && ruff format --quiet --check . &&
            "$system_python" tests/snippets.py build/snippets >/dev/null &&
            "$system_python" -m compileall -q build/snippets
    else
        skip ruff "no .deps/python"
    fi
}

suite_clippy() {
    cargo clippy --workspace --all-targets --locked -- -D warnings
}

# With "=", since a program of tests with words of its own takes any other for its test's name.
histories=histories::

suite_unit() { # but for what is computed beside others
    cargo_tests 2400 unit -- "--skip=$histories"
}

suite_histories() { # of jobs, simulated (crates/simulator/tests/job): minutes of two cores
    cargo_tests 3600 histories --test job -- "$histories"
}

# Cargo builds crates of others with the features that all selected crates ask for. With the
# command among them these are the features of the whole workspace, and nothing that another suite
# has built is built again: 8 units in place of 60.
as_all=(-p outlive-cli)

ucx_here() { # UCX's headers and library: the feature ucx can be built and tested
    pkg-config --exists 'ucx >= 1.11' 2>/dev/null
}

suite_ucx() { # collectives over UCX, under each kind of transport
    if ! ucx_here; then
        skip ucx "UCX (libucx-dev, pkg-config) is not installed"
        return
    fi
    for compiler in gcc clang; do
        # shellcheck disable=SC2046 # several flags
        "$compiler" -std=gnu11 -Wall -Wextra -Wpedantic -Wswitch-enum -Werror -O2 -fsyntax-only \
            $(pkg-config --cflags ucx) crates/network/c/ucx.c || return
    done
    # The coordinator has the features of all (as_all) and few targets of its own.
    cargo clippy --locked -p outlive-network -p outlive-collectives -p outlive-mpi -p outlive-coordinator \
        --all-targets --features outlive-network/ucx,outlive-collectives/ucx,outlive-mpi/ucx \
        -- -D warnings || return
    # Shared memory is used where UCX is told to report its peers' failures.
    for variables in UCX_TLS=tcp,self UCX_TLS=all 'UCX_TLS=sm,self UCX_MM_ERROR_HANDLING=y'; do
        echo "with $variables"
        (
            # shellcheck disable=SC2086,SC2163 # several variables
            export $variables
            cargo_tests 1200 ucx --features outlive-network/ucx,outlive-collectives/ucx \
                -p outlive-network -p outlive-collectives "${as_all[@]}" --lib --test conformance --test ucx
        ) || return
    done
}

suite_structure() {
    "$system_python" -m unittest discover -s tests/structure -t tests/structure
}

suite_build() {
    make --no-print-directory build
}

suite_doc() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
}

suite_c() {
    scripts/test-c.sh
}

suite_fortran() {
    scripts/test-fortran.sh
}

suite_python() {
    if [ ! -x "$python" ]; then
        skip python "no .deps/python"
        return
    fi
    scripts/python.sh &&
        mypy --strict crates/python/python crates/python/tests/typed.py &&
        stubtest outlive --allowlist crates/python/tests/stubtest-allow &&
        tests_in crates/python/tests
}

suite_examples() {
    if [ ! -x "$python" ]; then
        skip examples "no .deps/python"
        return
    fi
    tests_in tests/examples "$beside"
}

mpi_library() { # mpi_library [WORDS...]: target/debug/liboutlive_mpi.so, with more words for cargo
    # Both kinds have this name, and cargo holds the one that was built last for the other.
    rm -f target/debug/liboutlive_mpi.so target/debug/deps/liboutlive_mpi.so
    # A test among what is built: else what tests ask of crates of others does not count (as_all).
    cargo build --locked -p outlive-mpi -p outlive-network "${as_all[@]}" --lib --test messages "$@"
}

suite_mpi() { # collectives over each MPI library, with ranks killed
    if [ ! -x "$python" ]; then
        skip mpi "no .deps/python"
        return
    fi
    rm -rf build/ucx
    if ucx_here; then
        # Kept beside the other, which most tests take.
        mpi_library --features outlive-mpi/ucx && mkdir -p build/ucx &&
            cp target/debug/liboutlive_mpi.so build/ucx/ || return
    fi
    mpi_library && tests_in tests/mpi "$turning"
}

suite_e2e() {
    if [ ! -x "$python" ]; then
        skip e2e "no .deps/python"
        return
    fi
    local failed=0
    tests_in tests/e2e "$beside" -m 'not alone' || failed=$?
    signal_aside STOP
    tests_in tests/e2e -malone || failed=$?
    signal_aside CONT
    return "$failed"
}

suite_cluster() { # jobs on machines of their own: namespaces, with real ssh and Slurm
    if [ ! -x "$python" ]; then
        skip cluster "no .deps/python"
        return
    fi
    tests_in tests/cluster "$beside"
}

suite_torchrun() { # torchrun on nodes of this machine; on machines: tests/cluster
    if [ ! -x "$python" ]; then
        skip torch "no .deps/python"
        return
    fi
    tests_in tests/torchrun
}

suite_sessions() { # reliable sessions between processes, and the kernels over them
    if [ ! -x "$python" ]; then
        skip sessions "no .deps/python"
        return
    fi
    tests_in tests/sessions
}

suite_minickpt() { # OUTLIVE_MINICKPT=long: the whole; soak: a hundred deaths each
    if [ ! -x "$python" ]; then
        skip minickpt "no .deps/python"
        return
    fi
    # The emulator itself hangs now and then: see docs/design/minickpt-kernel.md.
    twice tests/minickpt
}

suite_pages() { # the tutorial, word by word; what the README shows must stay true
    if [ ! -x "$python" ]; then
        skip pages "no .deps/python"
        return
    fi
    tests_in tests/pages
}

suite_book() { # the pictures are drawn in any case
    scripts/pictures.sh && if have mdbook; then
        mdbook build docs
    else
        skip mdbook "mdbook is not installed"
    fi
}

run() { # run SUITE
    local start=$SECONDS status
    printf '\n== %s\n' "$1"
    "suite_$1" 2>&1 | tee "$results/$1.log"
    status=${PIPESTATUS[0]}
    printf '%s\n' "$status" >"$results/$1.status"
    if [ "$status" = 0 ]; then
        printf '== %s: good, %d s\n' "$1" $((SECONDS - start))
    else
        printf '== %s: FAILED, %d s\n' "$1" $((SECONDS - start))
    fi
}

# What computes and waits for nothing runs aside, while suites that wait leave cores idle: in the
# class of the scheduler that takes only processor time that nobody else wants, and makes way at
# once. Its session has a share of its own where the kernel groups by sessions.
aside=
run_aside() { # run_aside SUITE
    if [ "$suites" = 1 ] || ! have setsid || ! have chrt || ! have pkill || ! have pgrep; then
        run "$1"
        return
    fi
    export -f run "suite_$1" cargo_tests judged
    export results system_python histories
    # shellcheck disable=SC2016 # the inner shell's
    setsid bash -uc '
        { echo 19 >/proc/self/autogroup; } 2>/dev/null
        chrt --idle --pid 0 $$ 2>/dev/null || renice -n 19 $$ >/dev/null
        run "$1"' aside "$1" >"$results/$1.aside" 2>&1 &
    aside=$!
    printf '\n== %s: begun, beside the others\n' "$1"
}

signal_aside() { # signal_aside SIGNAL: to all of it, if there is any
    [ -z "$aside" ] || pkill "-$1" -s "$aside" || true
}

end_aside() { # shows what ran aside
    [ -n "$aside" ] || return 0
    # Nothing is left beside which it would run.
    { echo 0 >"/proc/$aside/autogroup"; } 2>/dev/null
    for _ in 1 2; do # what begins while the first look is taken has the second
        pgrep -s "$aside" | xargs -r -n 1 chrt --other --all-tasks --pid 0 >/dev/null 2>&1
    done
    wait "$aside"
    aside=
    cat "$results"/*.aside
}
trap 'signal_aside CONT; signal_aside TERM' EXIT
trap 'exit 130' INT TERM

[ $# -gt 0 ] || set -- all
[ "$*" != all ] || set -- "${all[@]}"
suites=$#
for suite in "$@"; do
    if ! declare -F "suite_$suite" >/dev/null; then
        echo "scripts/test.sh: no suite '$suite'; there are: ${all[*]}" >&2
        exit 64
    fi
done
rm -rf "$results"
mkdir -p "$results"
for suite in "$@"; do
    case $suite in
    histories) run_aside "$suite" ;;
    *) run "$suite" ;;
    esac
done
end_aside
printf '\n'
"$system_python" tests/summarise.py "$results"
