"""Builds what the tests of sessions and kernels run, once."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from seed import seed as seed  # noqa: E402

BUILT = ROOT / "build/nas"


@pytest.fixture(scope="session")
def built() -> Path:
    """The kernels, with threads and with ranks, and the ring."""
    library = ROOT / "target/release/liboutlive_sessions.a"
    assert library.exists(), "run make build first"
    subprocess.run(["make", "-s", "-j2", "-C", str(ROOT / "bench/nas")], check=True)
    ring = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    ring += ["-I", str(ROOT / "crates/sessions/include"), str(ROOT / "tests/sessions/ring.c")]
    ring += [str(library), "-o", str(BUILT / "ring"), "-lpthread", "-ldl", "-lm"]
    subprocess.run(ring, check=True)
    return BUILT
