#!/usr/bin/env bash
# Installs what was built: scripts/install.sh DESTINATION PREFIX
# DESTINATION is where the files go; PREFIX is where they will be found, which
# differs when a package is made (DESTDIR).
set -euo pipefail
cd "$(dirname "$0")/.."

destination=$1 prefix=$2
client=crates/client
library=target/release/liboutlive.so
if [ ! -x target/release/outlive ] || [ ! -f $library ]; then
    echo "install: nothing is built; run: make build" >&2
    exit 69
fi
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
major=${version%%.*}

install -d "$destination"/{bin,include,lib/pkgconfig,lib/cmake/Outlive,share/outlive/fortran}
install -m 755 target/release/outlive "$destination/bin/"
install -m 755 $library "$destination/lib/liboutlive.so.$version"
ln -sf "liboutlive.so.$version" "$destination/lib/liboutlive.so.$major"
ln -sf "liboutlive.so.$major" "$destination/lib/liboutlive.so"
[ ! -f target/release/liboutlive_mpi.so ] || install -m 755 target/release/liboutlive_mpi.so "$destination/lib/"
install -m 755 crates/mpi/tools/outlive-shield "$destination/bin/"
install -m 644 crates/mpi/include/outlive_mpi.h "$destination/include/"
[ ! -f target/release/liboutlive.a ] || install -m 644 target/release/liboutlive.a "$destination/lib/"
install -m 644 $client/include/*.h* "$destination/include/"
# A .mod file fits one compiler only, so the module is installed as source.
[ ! -d $client/fortran ] || install -m 644 $client/fortran/*.f90 "$destination/share/outlive/fortran/"

# Templates name @PREFIX@ and @VERSION@.
fill() { sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" "$1"; }
[ ! -f $client/outlive.pc.in ] || fill $client/outlive.pc.in >"$destination/lib/pkgconfig/outlive.pc"
for template in "$client"/cmake/*.in; do
    [ -f "$template" ] || continue
    fill "$template" >"$destination/lib/cmake/Outlive/$(basename "$template" .in)"
done
echo "install: outlive $version in $destination"
