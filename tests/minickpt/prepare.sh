#!/usr/bin/env bash
# Gets a stock Debian kernel with its headers (never installed on this machine),
# builds the modules and the test programs against it, all under build/minickpt.
#
#   tests/minickpt/prepare.sh            does nothing where nothing changed
#   OUTLIVE_KERNEL=RELEASE ...           another kernel than the newest 6.1 "cloud" (uname -r)
#   tests/minickpt/prepare.sh packages   Debian's vi and NumPy instead, under build/minickpt/debian
#
# Ends with 69 and says why where something is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/build/minickpt
root=$work/root
mkdir -p "$root"

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
# Flavours share the headers of their version; those of the real-time kernel are its own.
case $release in
*-rt-amd64) common=linux-headers-${release%-rt-amd64}-common-rt ;;
*-cloud-amd64) common=linux-headers-${release%-cloud-amd64}-common ;;
*) common=linux-headers-${release%-amd64}-common ;;
esac
headers=$root/usr/src/linux-headers-$release

if [ ! -e "$root/boot/vmlinuz-$release" ] || [ ! -e "$headers/Makefile" ]; then
    kbuild=$(apt-cache depends "linux-headers-$release" 2>/dev/null |
        sed -n 's/.*Depends: \(linux-kbuild-.*\)/\1/p' | head -1)
    mkdir -p "$work/debs/$release"
    (cd "$work/debs/$release" && apt-get download -q "linux-image-$release" \
        "linux-headers-$release" "$common" "$kbuild") >"$work/apt.log" 2>&1 ||
        lacks "apt-get download of the kernel failed: $(tail -1 "$work/apt.log")"
    for deb in "$work/debs/$release"/*.deb; do
        dpkg -x "$deb" "$root"
    done
    # Some kernels come with compressed modules, which busybox does not load.
    named='(virtio_net|net_failover|failover|crc16|crc32c_generic|crc32c-intel|mbcache)[.]'
    find "$root/lib/modules/$release/kernel" -name '*.ko.xz' -regextype posix-extended \
        -regex ".*/((nvdimm|virtio|jbd2|ext4)/.*|$named.*)" -exec xz -dkf {} +
fi
common=$root/usr/src/$common
# The packages name each other by absolute paths.
printf 'include %s/Makefile\n' "$common" >"$headers/Makefile"

module=$work/module/$release
mkdir -p "$module/minickpt" "$module/include/uapi"
cp -u kernel/minickpt/Makefile kernel/minickpt/*.[ch] "$module/minickpt/"
cp -u kernel/include/uapi/*.h "$module/include/uapi/"
# Sparse knows what no compiler does: which pointers are the program's.
check=$(command -v sparse >/dev/null && echo C=2 || true)
make -s -C "$headers" M="$module/minickpt" CC=gcc-12 CONFIG_DEBUG_INFO_BTF_MODULES= modules $check >"$work/module.log" 2>&1 || {
    cat "$work/module.log" >&2
    exit 1
}
if grep -E "minickpt/[^ ]*: (warning|error)" "$work/module.log" >&2; then
    exit 1
fi
grep -v "^Skipping BTF" "$work/module.log" || true

strip --strip-debug "$module"/minickpt/*.ko

programs=$work/programs
mkdir -p "$programs"
for source in tests/minickpt/programs/*.c kernel/user/*.c; do
    out=$programs/$(basename "$source" .c)
    [ "$out" -nt "$source" ] && [ "$out" -nt tests/minickpt/programs/pattern.h ] &&
        [ "$out" -nt kernel/include/uapi/outlive_minickpt.h ] && continue
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -pthread -Ikernel/include -Wno-unused-function -o "$out" "$source"
done
# As a distribution would link them.
mkdir -p "$work/dynamic"
for source in tests/minickpt/programs/dynamic/*.c; do
    out=$work/dynamic/$(basename "$source" .c)
    [ "$out" -nt "$source" ] && continue
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror -fopenmp -Ikernel/include -o "$out" "$source" -lm
done
[ -n "${OUTLIVE_KERNEL:-}" ] || printf '%s\n' "$release" >"$work/release"
