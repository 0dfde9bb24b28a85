#!/usr/bin/env bash
# Builds the Python package as a wheel and installs it into .deps/python.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$PWD/.deps/python/bin/python
[ -x "$python" ] || {
    echo "python: no .deps/python; run: make deps" >&2
    exit 69
}
rm -rf build/wheels
PATH="$PWD/.deps/python/bin:$PATH" maturin build --quiet --release --locked \
    --manifest-path crates/python/Cargo.toml --interpreter "$python" --out build/wheels
"$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
    --force-reinstall build/wheels/*.whl
"$python" -c 'import outlive; print("python: outlive", outlive.__version__, "in .deps/python")'
