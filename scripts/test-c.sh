#!/usr/bin/env bash
# The C face: the header alone, the C examples and the C programs of the
# documentation, with every compiler here, as strictly as they can; then the installed
# library as its users find it. The C tests are crates/client/tests/c.rs.
set -euo pipefail
cd "$(dirname "$0")/.."

header=crates/client/include
strict=(-Wall -Wextra -Wpedantic -Werror -I "$header")
mpi_include=$PWD/.deps/mpich/include
out=build/c
mkdir -p "$out"

python3 tests/snippets.py "$out/snippets" >"$out/snippets.list"

compilers=0
for cc in gcc clang; do
    if ! command -v "$cc" >/dev/null; then
        python3 tests/skip.py "$cc" "$cc is not installed"
        continue
    fi
    compilers=$((compilers + 1))
    for standard in c99 c11 c17; do
        echo '#include <outlive.h>' | "$cc" "-std=$standard" "${strict[@]}" -fsyntax-only -x c -
        echo "PASS $cc outlive.h as $standard"
    done
    for standard in c++11 c++17; do
        echo '#include <outlive.h>' | "$cc" "-std=$standard" "${strict[@]}" -fsyntax-only -x c++ -
        echo "PASS $cc outlive.h as $standard"
    done
    for language in "c99 c" "c++11 c++"; do
        echo '#include <outlive_sessions.h>' | "$cc" "-std=${language% *}" "${strict[@]}" \
            -I crates/sessions/include -fsyntax-only -x "${language#* }" -
        echo "PASS $cc outlive_sessions.h as ${language% *}"
        echo '#include <outlive_memory.h>' | "$cc" "-std=${language% *}" "${strict[@]}" \
            -I crates/memory-server/include -fsyntax-only -x "${language#* }" -
        echo "PASS $cc outlive_memory.h as ${language% *}"
        echo '#include <outlive_balance.h>' | "$cc" "-std=${language% *}" "${strict[@]}" \
            -I crates/balance-mpi/include -fsyntax-only -x "${language#* }" -
        echo "PASS $cc outlive_balance.h as ${language% *}"
    done
    for source in bench/nas/*.c; do
        "$cc" -std=c11 "${strict[@]}" -Wshadow -Wno-unknown-pragmas -Wno-pedantic -DRANKS \
            -I crates/sessions/include -fsyntax-only "$source"
    done
    echo "PASS $cc bench/nas"
    for flag in "" -DNO_OUTLIVE; do
        "$cc" -std=c11 "${strict[@]}" ${flag:+"$flag"} -fsyntax-only examples/03-nbody/nbody.c
        if [ -f "$mpi_include/mpi.h" ]; then
            "$cc" -std=c11 "${strict[@]}" ${flag:+"$flag"} -isystem "$mpi_include" \
                -fsyntax-only examples/01-heat2d/heat2d.c
        else
            python3 tests/skip.py mpich "no .deps/mpich: heat2d is not checked"
        fi
        echo "PASS $cc examples${flag:+ $flag}"
    done
    while read -r snippet; do
        case $snippet in
        *.c)
            "$cc" -std=c11 "${strict[@]}" -D_POSIX_C_SOURCE=200809L -fsyntax-only "$snippet"
            echo "PASS $cc $(basename "$snippet") of the documentation"
            ;;
        esac
    done <"$out/snippets.list"
done
[ "$compilers" -gt 0 ]

# As a user has it: installed below a prefix, found by pkg-config and by CMake.
prefix=$PWD/$out/prefix
rm -rf "$prefix" "$out/cmake"
scripts/install.sh "$prefix" >/dev/null
user=$PWD/examples/03-nbody/nbody.c
flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs outlive)
# shellcheck disable=SC2086 # the flags are words
cc -std=c11 "$user" -o "$out/installed" $flags -Wl,-rpath,"$prefix/lib" -lpthread -lm
"$out/installed" 2>/dev/null || [ $? = 64 ] # no arguments: it may only say how it is used
echo "PASS installed library, by pkg-config"
# The loader finds each library by the name that it has in the programs.
for library in "$prefix"/lib/liboutlive*.so; do
    name=$(basename "$library" .so)
    echo 'int main(void) { return 0; }' | cc -x c - -o "$out/needs" -Wl,--no-as-needed \
        -L "$prefix/lib" "-l${name#lib}" -Wl,-rpath,"$prefix/lib"
    "$out/needs"
    echo "PASS installed $name"
done
if command -v cmake >/dev/null; then
    mkdir -p "$out/cmake"
    cat >"$out/cmake/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.13)
project(user C)
find_package(outlive 0.1 REQUIRED)
add_executable(user $user)
target_link_libraries(user outlive::outlive pthread m)
CMAKE
    cmake -S "$out/cmake" -B "$out/cmake/build" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
    cmake --build "$out/cmake/build" >/dev/null
    echo "PASS installed library, by CMake"
fi
[ "$("$prefix/bin/outlive" --version)" = "$(target/release/outlive --version)" ]
[ -s "$prefix/share/man/man1/outlive.1" ]
echo "PASS installed command"
