#!/usr/bin/env bash
# The Fortran module as strict Fortran 2008, and the tests of tests/fortran.
set -euo pipefail
cd "$(dirname "$0")/.."

module=crates/client/fortran/outlive.f90
out=build/fortran
mkdir -p "$out"

if ! command -v gfortran >/dev/null; then
    python3 tests/skip.py gfortran "gfortran is not installed"
    exit
fi
gfortran -std=f2008 -Wall -Wextra -pedantic -Werror -J "$out" -c "$module" -o "$out/outlive.o"
echo "PASS $module as Fortran 2008"
for test in tests/fortran/*.f90; do
    [ -f "$test" ] || continue
    program=$out/$(basename "$test" .f90)
    gfortran -std=f2008 -Wall -Wextra -I "$out" "$test" "$out/outlive.o" -o "$program" \
        -L target/release -loutlive -Wl,-rpath,"$PWD/target/release"
    "$program"
    echo "PASS $test"
done
