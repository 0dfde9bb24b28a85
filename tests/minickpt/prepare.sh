#!/usr/bin/env bash
# Gets a stock Debian kernel with its headers (never installed on this machine),
# builds the modules and the test programs against it, all under build/minickpt.
#
#   tests/minickpt/prepare.sh            does nothing where nothing changed
#   tests/minickpt/prepare.sh packages   Debian's vi and NumPy instead, under build/minickpt/debian
#
# Ends with 69 and says why where something is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/build/minickpt
root=$work/root
mkdir -p "$work/debs" "$root"

lacks() {
    echo "minickpt: $*" >&2
    exit 69
}
if [ "${1:-}" = packages ]; then
    debian=$work/debian
    [ -e "$debian/complete" ] && exit 0
    mkdir -p "$debian/debs"
    # The reference BLAS and LAPACK: small, and the same on every processor.
    (cd "$debian/debs" && apt-get download -q vim-tiny python3-numpy libblas3 liblapack3 \
        libgfortran5 libquadmath0) >"$work/apt.log" 2>&1 ||
        lacks "apt-get download of vim-tiny and python3-numpy failed: $(tail -1 "$work/apt.log")"
    for deb in "$debian"/debs/*.deb; do
        dpkg -x "$deb" "$debian"
    done
    touch "$debian/complete"
    exit 0
fi
[ "$(uname -m)" = x86_64 ] || lacks "emulated x86-64 kernels need an x86-64 build machine"
command -v qemu-system-x86_64 >/dev/null || lacks "qemu-system-x86_64 is not installed (scripts/deps.sh)"
command -v gcc-12 >/dev/null || lacks "gcc-12, which built Debian's kernel, is not installed"
busybox=$(command -v busybox || true)
[ -n "$busybox" ] || lacks "busybox is not installed (busybox-static)"

release=${OUTLIVE_KERNEL:-}
if [ -z "$release" ] && [ -d "$root/boot" ]; then
    release=$(find "$root/boot" -name 'vmlinuz-6.1.*-cloud-amd64' |
        sed 's/.*vmlinuz-//' | sort -V | tail -1)
fi
if [ -z "$release" ]; then
    release=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        sed -n 's/.*Depends: linux-image-\(6\.1\..*\)/\1/p' | head -1)
fi
[ -n "$release" ] || lacks "apt knows no linux-image-cloud-amd64 of Debian 12 (apt-get update)"
headers=$root/usr/src/linux-headers-$release
common=$root/usr/src/linux-headers-${release%-cloud-amd64}-common

if [ ! -e "$root/boot/vmlinuz-$release" ] || [ ! -e "$headers/Makefile" ]; then
    (cd "$work/debs" && apt-get download -q "linux-image-$release" "linux-headers-$release" \
        "linux-headers-${release%-cloud-amd64}-common" linux-kbuild-6.1) >"$work/apt.log" 2>&1 ||
        lacks "apt-get download of the kernel failed: $(tail -1 "$work/apt.log")"
    for deb in "$work"/debs/*.deb; do
        dpkg -x "$deb" "$root"
    done
fi
# The packages name each other by absolute paths.
printf 'include %s/Makefile\n' "$common" >"$headers/Makefile"

module=$work/module
mkdir -p "$module/minickpt" "$module/include/uapi"
cp -u kernel/minickpt/Makefile kernel/minickpt/*.[ch] "$module/minickpt/"
cp -u kernel/include/uapi/*.h "$module/include/uapi/"
make -s -C "$headers" M="$module/minickpt" CC=gcc-12 modules ${CHECK_SPARSE:+C=2} >"$work/module.log" 2>&1 || {
    cat "$work/module.log" >&2
    exit 1
}
grep -v "^Skipping BTF" "$work/module.log" || true

strip --strip-debug "$module"/minickpt/*.ko

programs=$work/programs
mkdir -p "$programs"
for source in tests/minickpt/programs/*.c kernel/user/*.c; do
    out=$programs/$(basename "$source" .c)
    [ "$out" -nt "$source" ] && [ "$out" -nt kernel/include/uapi/outlive_minickpt.h ] && continue
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -pthread -Ikernel/include -Wno-unused-function -o "$out" "$source"
done
# As a distribution would link them.
mkdir -p "$work/dynamic"
for source in tests/minickpt/programs/dynamic/*.c; do
    out=$work/dynamic/$(basename "$source" .c)
    [ "$out" -nt "$source" ] && continue
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror -fopenmp -o "$out" "$source" -lm
done
printf '%s\n' "$release" >"$work/release"
