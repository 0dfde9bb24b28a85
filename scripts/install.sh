#!/usr/bin/env bash
# Installs what was built: scripts/install.sh PREFIX      (DESTDIR is honoured)
# The C library and its files for pkg-config and CMake are crates/client/install.sh's.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
/*) prefix=$1 ;;
*)
    echo "usage: [DESTDIR=DIR] $0 PREFIX (an absolute path)" >&2
    exit 64
    ;;
esac
root=${DESTDIR:-}$prefix
built=target/release
libraries=(liboutlive_balance_mpi.so liboutlive_mpi.so liboutlive_sessions.so liboutlive_memory.so)
for file in outlive liboutlive.so liboutlive.a "${libraries[@]}"; do
    if [ ! -f "$built/$file" ]; then
        echo "install: $built/$file is not there; run: make build" >&2
        exit 69
    fi
done

OUTLIVE_LIBRARY_DIR=$PWD/$built crates/client/install.sh "$prefix"

# Renamed into place: a running program keeps the file that it has mapped.
place() { # place MODE FILE DIRECTORY
    install -d "$3"
    install -m "$1" "$2" "$3/.new-$(basename "$2")"
    mv -f "$3/.new-$(basename "$2")" "$3/$(basename "$2")"
}
place 755 $built/outlive "$root/bin"
place 755 crates/mpi/tools/outlive-shield "$root/bin"
for library in "${libraries[@]}"; do
    place 755 "$built/$library" "$root/lib"
done
# Programs ask for these by their sonames.
for library in liboutlive_sessions.so liboutlive_memory.so; do
    ln -sf "$library" "$root/lib/$library.0"
done
# A part of the command, as a file: a copy in a directory of temporary files would go with its run.
if ! said=$($built/outlive pages library "$root/lib/liboutlive_pages.so" 2>&1); then
    echo "$said" >&2
    exit 1
fi
for header in crates/{balance-mpi,memory-server,mpi,sessions}/include/*.h; do
    place 644 "$header" "$root/include"
done

install -d "$root"/share/{man/man1,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
$built/outlive man --out-dir "$root/share/man/man1"
$built/outlive completions bash >"$root/share/bash-completion/completions/outlive"
$built/outlive completions zsh >"$root/share/zsh/site-functions/_outlive"
$built/outlive completions fish >"$root/share/fish/vendor_completions.d/outlive.fish"
echo "install: $($built/outlive --version) in $root"
