#!/usr/bin/env bash
# Installs what building and testing need, says what it does, and does nothing
# when everything is there (then it needs no network either).
#
#   scripts/deps.sh            all of it
#   scripts/deps.sh --apt      only the system's packages (as root)
#   scripts/deps.sh --torch    PyTorch for tests/torchrun, which nothing else needs (145 MB to fetch)
#   OUTLIVE_PYTHON=/path/to/python3 scripts/deps.sh
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'deps: %s\n' "$*"; }

# What to install by apt, and a command (or file) that shows it is there, so
# that a machine with other sources of the same tools is left alone.
apt_packages=()
needs() { # needs PACKAGE COMMAND
    command -v "$2" >/dev/null 2>&1 || apt_packages+=("$1")
}
needs gcc gcc
needs g++ g++
needs clang clang
needs gfortran gfortran
needs cmake cmake
needs ninja-build ninja
needs pkg-config pkg-config
needs shellcheck shellcheck
needs libopenmpi-dev mpifort # Fortran MPI: the wheels hold no Fortran modules
needs openmpi-bin mpirun
# Emulated machines whose kernels die (tests/minickpt); the kernel itself is
# fetched by tests/minickpt/prepare.sh and never installed.
needs qemu-system-x86 qemu-system-x86_64
needs busybox-static busybox
needs sparse sparse # the kernel module: what no compiler checks
needs e2fsprogs mke2fs
needs gcc-12 gcc-12
needs make make
# Machines of namespaces (tests/cluster).
needs iproute2 ip
needs nftables nft
needs openssh-client ssh

# The system's Python first: an environment made from a user's own Python is
# of no use to another user.
python=${OUTLIVE_PYTHON:-}
if [ -z "$python" ]; then
    for candidate in /usr/bin/python3 python3; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
            >/dev/null 2>&1; then
            python=$(command -v "$candidate")
            break
        fi
    done
fi
[ -n "$python" ] || apt_packages+=(python3 python3-venv)

if [ ${#apt_packages[@]} -gt 0 ]; then
    line="apt-get install --no-install-recommends -y ${apt_packages[*]}"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing with apt: ${apt_packages[*]}"
        apt-get update -qq || say "apt-get update failed; trying with the lists that are here"
        DEBIAN_FRONTEND=noninteractive \
            apt-get install --no-install-recommends -y -qq "${apt_packages[@]}" >/dev/null
        python=${python:-/usr/bin/python3}
    else
        say "missing: ${apt_packages[*]}"
        say "to install them, as root:  apt-get update && $line"
        say "going on; what needs them is skipped by name"
    fi
fi

# Collectives over UCX, an optional feature, and UCX's own benchmark: not every
# architecture has them.
if ! pkg-config --exists ucx 2>/dev/null || ! command -v ucx_perftest >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing with apt, if it has them: libucx-dev ucx-utils"
        DEBIAN_FRONTEND=noninteractive apt-get install --no-install-recommends -y -qq \
            libucx-dev ucx-utils >/dev/null 2>&1 || say "no UCX: its tests are skipped by name"
    else
        say "optional, for collectives over UCX: apt-get install libucx-dev ucx-utils"
    fi
fi

[ "${1:-}" != --apt ] || exit 0

# PyTorch for processors alone, Debian's: that of the Python package index brings gigabytes of
# libraries for graphics cards. Unpacked, not installed, beside the system's Python.
torch() {
    local packages stamp=.deps/torch/stamp
    packages=$(apt-get install -s --no-install-recommends python3-torch 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\).*/\1/p')
    if [ -z "$packages" ]; then
        say "apt has no python3-torch, or it is installed: nothing to fetch"
        return
    fi
    if [ "$(cat "$stamp" 2>/dev/null)" = "$packages" ]; then
        return
    fi
    say "fetching for .deps/torch, by apt, without installing: python3-torch and what it needs"
    rm -rf .deps/torch
    mkdir -p .deps/torch/packages .deps/torch/bin
    # shellcheck disable=SC2086 # a list of words
    if ! (cd .deps/torch/packages && apt-get download -qq $packages) >/dev/null 2>&1; then
        say "they cannot be had: tests with PyTorch are skipped by name"
        return
    fi
    local package
    for package in .deps/torch/packages/*.deb; do
        dpkg-deb -x "$package" .deps/torch || return 0
    done
    rm -rf .deps/torch/packages .deps/torch/usr/share
    cat >.deps/torch/bin/python <<'EOS'
#!/bin/sh
# The system's Python, with the PyTorch that is unpacked here.
here=$(cd "$(dirname "$0")/.." && pwd)
lib=$here/usr/lib
for dir in "$lib"/*-linux-gnu; do
    LD_LIBRARY_PATH="$dir:$dir/blas:$dir/lapack:$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
PYTHONPATH="$lib/python3/dist-packages${PYTHONPATH:+:$PYTHONPATH}"
export LD_LIBRARY_PATH PYTHONPATH
exec /usr/bin/python3 "$@"
EOS
    cat >.deps/torch/bin/torchrun <<'EOS'
#!/bin/sh
# PyTorch 1.13 takes its default for "no output redirected" for nothing at all, from Python 3.11 on:
# said of a rank that there is not, it is understood.
export PET_REDIRECTS="${PET_REDIRECTS:-9:1}" PET_TEE="${PET_TEE:-9:1}"
exec "$(dirname "$0")/python" -m torch.distributed.run "$@"
EOS
    chmod +x .deps/torch/bin/*
    if .deps/torch/bin/python -c 'import torch; torch.ones(2) @ torch.ones(2)' 2>/dev/null; then
        printf '%s\n' "$packages" >"$stamp"
    else
        say "it does not run with /usr/bin/python3: tests with PyTorch are skipped by name"
        rm -rf .deps/torch
    fi
}

if [ "${1:-}" = --torch ]; then
    mkdir -p .deps
    torch
    exit 0
fi

# Rust is not installed from here: how is the user's choice.
wanted=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
found=$(rustc --version 2>/dev/null | cut -d' ' -f2 || true)
if [ -z "$found" ]; then
    say "no rustc found. Install Rust $wanted: https://rustup.rs, then: rustup toolchain install $wanted"
    exit 69
elif [ "$found" != "$wanted" ]; then
    say "rustc is $found, rust-toolchain.toml wants $wanted: rustup toolchain install $wanted"
    exit 69
fi

# One environment: made when its requirements, the Python or the place changed.
environment() { # environment NAME
    local list="requirements/$1.txt" directory=".deps/$1" stamp=".deps/$1/stamp" key
    key=$(
        cat "$list"
        "$python" --version
        pwd
    )
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] && "$directory/bin/python" -c '' 2>/dev/null; then
        return
    fi
    say "making $directory: $(grep -Ec '^[^#]' "$list") packages of $list"
    rm -rf "$directory"
    "$python" -m venv "$directory"
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-deps --only-binary :all: -r "$list"
    "$directory/bin/python" -m pip check --quiet
    printf '%s\n' "$key" >"$stamp"
}

# An ssh server and Slurm for the tests on machines of their own (tests/cluster): unpacked,
# not installed, so that nothing of them runs here but what a test starts.
cluster() {
    local packages="openssh-server libwrap0 munge libmunge2 slurm-client slurmctld slurmd"
    local stamp=.deps/cluster/stamp package
    packages="$packages slurm-wlm-basic-plugins liblua5.1-0"
    if [ "$(cat "$stamp" 2>/dev/null)" = "$packages" ]; then
        return
    fi
    say "fetching for .deps/cluster, by apt, without installing: $packages"
    rm -rf .deps/cluster
    mkdir -p .deps/cluster/packages
    # shellcheck disable=SC2086 # a list of words
    if ! (cd .deps/cluster/packages && apt-get download -qq $packages) >/dev/null 2>&1; then
        say "they cannot be had: tests with a real Slurm and ssh are skipped by name"
        return
    fi
    for package in .deps/cluster/packages/*.deb; do
        dpkg-deb -x "$package" .deps/cluster || return 0
    done
    # What the installation would have done.
    for package in slurmctld slurmd slurmstepd; do
        ln -sf "$package-wlm" ".deps/cluster/usr/sbin/$package"
    done
    rm -rf .deps/cluster/packages
    printf '%s\n' "$packages" >"$stamp"
}

if command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1; then
    mkdir -p .deps
    cluster
fi

if [ -n "$python" ]; then
    mkdir -p .deps
    environment mpich
    environment openmpi
    environment python
    environment s3
else
    say "no Python 3.11 with venv: the Python package, the MPI wheels and the demo need it"
fi
say "ready"
