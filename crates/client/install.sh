#!/bin/sh
# Installs the C library, its headers, the Fortran module's source and the files for
# pkg-config and CMake below PREFIX. Built libraries are taken from
# OUTLIVE_LIBRARY_DIR; unset, the library is built in release mode first.
#
#     crates/client/install.sh PREFIX          (DESTDIR is honoured)
set -eu

if [ $# -ne 1 ] || [ -z "$1" ]; then
    echo "usage: $0 PREFIX" >&2
    exit 64
fi
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
case $1 in
    /*) prefix=$1 ;;
    *) prefix=$(pwd)/$1 ;;
esac
root=${DESTDIR:-}$prefix

if [ -z "${OUTLIVE_LIBRARY_DIR:-}" ]; then
    (cd "$here" && cargo build --release --package outlive-client)
    OUTLIVE_LIBRARY_DIR=${CARGO_TARGET_DIR:-$here/../../target}/release
fi
version=$(cd "$here" && sed -n '/^\[workspace\.package\]/,/^\[/s/^version *= *"\(.*\)"/\1/p' ../../Cargo.toml)
if [ -z "$version" ]; then
    echo "$0: no version in Cargo.toml" >&2
    exit 65
fi

configure() {
    # A prefix may hold characters that mean something to sed.
    escaped=$(printf '%s' "$prefix" | sed 's/[&\\|]/\\&/g')
    sed -e "s|@PREFIX@|$escaped|g" -e "s|@VERSION@|$version|g" "$here/packaging/$1.in" >"$2/$1"
    chmod 644 "$2/$1"
}

install -d "$root/lib/pkgconfig" "$root/lib/cmake/outlive" "$root/include" \
    "$root/share/outlive/fortran"
# Renamed into place: a running program keeps the file that it has mapped.
install -m 755 "$OUTLIVE_LIBRARY_DIR/liboutlive.so" "$root/lib/.liboutlive.so.new"
mv -f "$root/lib/.liboutlive.so.new" "$root/lib/liboutlive.so.$version"
ln -sf "liboutlive.so.$version" "$root/lib/liboutlive.so.0"
ln -sf liboutlive.so.0 "$root/lib/liboutlive.so"
install -m 644 "$OUTLIVE_LIBRARY_DIR/liboutlive.a" "$root/lib/liboutlive.a"
install -m 644 "$here/include/outlive.h" "$here/include/outlive.hpp" "$root/include"
install -m 644 "$here/fortran/outlive.f90" "$root/share/outlive/fortran"
configure outlive.pc "$root/lib/pkgconfig"
configure outlive-config.cmake "$root/lib/cmake/outlive"
configure outlive-config-version.cmake "$root/lib/cmake/outlive"
