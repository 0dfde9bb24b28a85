"""Memory that stays in memory (`outlive quiet --lock`): of programs and what they start."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from harness import OUTLIVE
from skip import skip

pytestmark = pytest.mark.alone

CORES = sorted(os.sched_getaffinity(0))
STRICT = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "crates" / "node" / "c" / "lock.c"

# Whether all that it has touched is locked, and in children of fork and of a shell something; what
# is only reserved is not made for it.
PROBE = """
import mmap, os, re, subprocess, sys
def of(text, what): return int(re.search(what + r":\\s*(\\d+)", text)[1])
def now(what): return of(open("/proc/self/status").read(), what)
reserved = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
before = now("VmRSS")
held = bytearray(os.urandom(1)) * (64 << 20)
print(now("VmLck") >= now("VmRSS") > before + 60_000, now("VmRSS") < 1 << 20, flush=True)
if os.fork() == 0:
    print(now("VmLck") > 0, flush=True)
    os._exit(0)
os.wait()
words = ["/bin/sh", "-c", "cat /proc/self/status"]
text = subprocess.run(words, capture_output=True, text=True).stdout
print(of(text, "VmLck") > 0, flush=True)
"""


def run(tmp_path: Path, *words: object, **more) -> subprocess.CompletedProcess:
    """A command on the last core, others where they are."""
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    if len(CORES) < 2:
        skip("quiet-cores", "one core cannot be parted")
    cores = ["--compute", CORES[-1], "--service", CORES[0], "--others", "leave"]
    options = [*cores, "--journal", tmp_path / "journals"]
    command = [str(word) for word in [OUTLIVE, "quiet", *options, *words]]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


def needs_root() -> None:
    if os.geteuid() != 0:
        skip("quiet-root", "it takes root")


@pytest.mark.parametrize("more", [[], ["--decouple"]])
def test_what_is_touched_is_locked_in_children_too(more: list[str], tmp_path: Path) -> None:
    needs_root()
    done = run(tmp_path, "--lock", *more, "--", sys.executable, "-c", PROBE)
    if more and "OL-100" in done.stderr:
        skip("decouple-dispatch", "the kernel has no syscall user dispatch")
    lines = ["True True", "True", "True"]
    assert (done.returncode, done.stdout.splitlines()) == (0, lines), done.stderr
    told = re.search(r"locked: the memory of (\d+) processes\n", done.stderr)
    assert told and int(told[1]) >= 3, done.stderr
    assert bool(more) == ("decoupled: " in done.stderr)


def test_without_it_nothing_is_locked(tmp_path: Path) -> None:
    words = ["sh", "-c", "grep VmLck /proc/self/status; echo $LD_PRELOAD"]
    done = run(tmp_path, "--", *words, env={**os.environ, "LD_PRELOAD": ""})
    assert done.stdout.split() == ["VmLck:", "0", "kB"], done.stderr
    assert "locked" not in done.stderr


def limited(soft: int, hard: int):
    """An ordinary user who may lock so much."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    return prepare


def test_an_ordinary_user_under_a_limit_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    needs_root()
    tmp_path = Path(f"/tmp/outlive-lock-test-{os.getpid()}")
    tmp_path.mkdir(mode=0o777)
    tmp_path.chmod(0o777)
    try:
        ran = tmp_path / "ran"
        none = resource.RLIM_INFINITY
        cases = [(1 << 20, 8 << 20, False), (1 << 20, none, True)]
        try:
            with_limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (with_limit[0], none))
            resource.setrlimit(resource.RLIMIT_MEMLOCK, with_limit)
        except ValueError:
            cases.pop()  # Nobody has none in this container.
        for soft, hard, locked in cases:
            words = ["--lock", "--", "sh", "-c", f"touch {ran}; grep VmLck /proc/self/status"]
            done = run(tmp_path, *words, preexec_fn=limited(soft, hard))
            assert ran.exists() == locked, done.stderr
            if locked:
                assert done.returncode == 0 and int(done.stdout.split()[1]) > 0, done.stderr
            else:
                assert done.returncode != 0 and "OL-100" in done.stderr, done.stderr
                assert "8192 KiB" in done.stderr and "ulimit -l" in done.stderr
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path)], check=True)


def test_a_static_program_is_told_and_runs(tmp_path: Path) -> None:
    needs_root()
    source, program = tmp_path / "static.c", tmp_path / "static"
    source.write_text("int main(void) { return 5; }\n")
    subprocess.run(["cc", "-static", str(source), "-o", str(program)], check=True, timeout=60)
    done = run(tmp_path, "--lock", "--", program)
    assert done.returncode == 5 and "not locked" in done.stderr, done.stderr
    assert "no process told" in done.stderr


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_library_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    words = [compiler, *STRICT, "-shared", "-fPIC", str(SOURCE), "-o", str(tmp_path / "lock.so")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
