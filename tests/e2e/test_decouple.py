"""Decoupled threads (`outlive quiet --decouple`): programs that were not changed compute the same
while partners on another core make their system calls.

Programs of others are left where they are. No time is asserted."""

import ctypes
import errno
import json
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from harness import OUTLIVE, ROOT, until
from skip import skip
from test_json import documented, fields

pytestmark = pytest.mark.alone

CORES = sorted(os.sched_getaffinity(0))
STRICT = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
TOLD = re.compile(r"decoupled: (\d+) calls? forwarded, (\d+) made in place, by (\d+) process")
PR_SET_SYSCALL_USER_DISPATCH = 59


def needs_dispatch() -> None:
    """Skips where calls cannot be turned over."""
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    if platform.machine() != "x86_64":
        skip("decouple-machine", "threads are decoupled on x86-64 alone")
    probe = "import ctypes, sys; sys.exit(ctypes.CDLL(None).prctl(59, 0, 0, 0, 0) != 0)"
    if subprocess.run([sys.executable, "-c", probe], check=False).returncode:
        skip("decouple-dispatch", "the kernel has no syscall user dispatch")
    if len(CORES) < 2:
        skip("quiet-cores", "one core cannot be parted")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that does with the kernel what programs do."""
    needs_dispatch()
    built = tmp_path_factory.mktemp("decoupled") / "decoupled"
    source = Path(__file__).parent / "programs" / "decoupled.c"
    words = ["cc", *STRICT, str(source), "-o", str(built), "-pthread"]
    subprocess.run(words, check=True, timeout=60)
    return built


def run(*words: object, **more) -> subprocess.CompletedProcess:
    """Runs a command to its end, on the core of the others."""
    command = [str(word) for word in words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


def prefix(journal: Path, command: Path = OUTLIVE) -> list[str]:
    """What stands before a command that is to be decoupled."""
    cores = ["--compute", str(CORES[-1]), "--service", str(CORES[0]), "--others", "leave"]
    return [str(command), "quiet", *cores, "--journal", str(journal), "--decouple", "--"]


def told(done: subprocess.CompletedProcess) -> list[int]:
    """Calls forwarded, made in place, and processes."""
    found = TOLD.search(done.stderr)
    assert found, done.stderr
    return [int(word) for word in found.groups()]


def plainly(*words: object, **more) -> subprocess.CompletedProcess:
    """The same command as it is, on the one core."""
    return run("taskset", "-c", CORES[-1], *words, **more)


def test_files_signals_memory_threads_network_and_children_are_the_same(
    program: Path, tmp_path: Path
) -> None:
    plain, decoupled = plainly(program), run(*prefix(tmp_path), program)
    assert (plain.returncode, plain.stderr) == (7, "")
    assert plain.stdout.count("\n") > 90
    assert decoupled.stdout == plain.stdout
    assert decoupled.returncode == 7, decoupled.stderr
    forwarded, _, processes = told(decoupled)
    assert forwarded > 1000 and processes >= 4, decoupled.stderr


def test_an_ordinary_user_has_it_too(program: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return  # as all tests here
    place = tmp_path / "own"
    place.mkdir()
    os.chown(place, 65534, 65534)
    command, built = place / "outlive", place / "decoupled"
    shutil.copy(OUTLIVE, command)
    shutil.copy(program, built)
    for path in tmp_path.parents:
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o755)
    tmp_path.chmod(0o755)
    user = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": place}
    environment = os.environ | {"TMPDIR": str(place), "HOME": str(place)}
    plain = plainly(built, env=environment, **user)
    done = run(*prefix(place / "journal", command), built, env=environment, **user)
    assert (done.returncode, done.stdout) == (7, plain.stdout), done.stderr
    assert told(done)[0] > 1000


PYTHON = """
import sqlite3, subprocess, threading, hashlib
from concurrent.futures import ThreadPoolExecutor
def echo(number):
    return len(subprocess.run(["echo", str(number)], capture_output=True).stdout)
with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(echo, range(12))))
base = sqlite3.connect("base.db")
base.execute("create table numbers(n)")
with base:
    base.executemany("insert into numbers values(?)", ((n,) for n in range(2000)))
print(base.execute("select sum(n) from numbers").fetchone())
queue, lock = [], threading.Condition()
def put():
    with lock:
        queue.append(threading.current_thread() is not threading.main_thread())
        lock.notify_all()
threads = [threading.Thread(target=put) for _ in range(8)]
[one.start() for one in threads]
with lock:
    lock.wait_for(lambda: len(queue) == 8, 30)
print(queue)
import socket, multiprocessing
a, b = socket.socketpair()
child = multiprocessing.get_context("fork").Process(target=lambda: b.sendall(b"x" * 200000))
child.start()
b.close()
print(sum(len(part) for part in iter(lambda: a.recv(4096), b"")))
child.join()
print(child.exitcode)
"""
SHELL = (
    "set -o pipefail; seq 20000 > numbers;"
    " sort -R --parallel=2 numbers | sort -n | cmp - numbers && echo sorted;"
    " xz -T2 -k numbers && xz -dc numbers.xz | sha256sum;"
    " for n in 1 2 3; do echo $((n * n)) | cat; done; (exit 5) || echo $?;"
    " trap 'echo trapped' USR1; kill -USR1 $$; f=$(echo a b | (read x y; echo $y)); echo $f;"
    " sleep 0.05 & wait $!; echo $?; yes | head -2; echo end | tee copy; cat copy"
)
PERL = (
    "$SIG{ALRM} = sub { die qq(late\\n) }; alarm 1; eval { sleep 20 }; print $@;"
    " $SIG{CHLD} = sub { $n++ }; system('true'); pipe(R, W);"
    " if (!fork) { print W $_ for 1..1000; exit 3 } close W;"
    " my $t = join '', <R>; wait; print length($t), ' ', $? >> 8, qq(\\n); print sort <*.c>"
)


@pytest.mark.parametrize(
    "words", [["python3", "-c", PYTHON], ["bash", "-c", SHELL], ["perl", "-e", PERL]]
)
def test_programs_as_they_are_print_the_same(words: list[str], tmp_path: Path) -> None:
    needs_dispatch()
    if not shutil.which(words[0]) or (words[0] == "bash" and not shutil.which("xz")):
        skip(f"decouple-{words[0]}", f"no {words[0]}")
    outputs = []
    for name, before in (
        ("plain", ["taskset", "-c", CORES[-1]]),
        ("decoupled", prefix(tmp_path / "j")),
    ):
        place = tmp_path / name
        place.mkdir()
        done = run(*before, *words, cwd=place)
        outputs.append((done.returncode, done.stdout))
    assert outputs[0] == outputs[1], done.stderr
    assert outputs[0][0] == 0 and outputs[0][1] and told(done)[0] > 100


def test_a_compiler_writes_the_same_bytes(program: Path, tmp_path: Path) -> None:
    source = tmp_path / "one.c"
    source.write_text('#include <stdio.h>\nint main(void) { return puts("compiled") < 0; }\n')
    plain = run("gcc", "-O2", source, "-o", tmp_path / "plain")
    done = run(*prefix(tmp_path / "j"), "gcc", "-O2", source, "-o", tmp_path / "decoupled")
    assert plain.returncode == done.returncode == 0, done.stderr
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "decoupled").read_bytes()
    assert told(done)[2] >= 4


def test_partners_lie_on_the_service_core_and_a_killed_program_leaves_none(
    program: Path, tmp_path: Path
) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*prefix(tmp_path), str(program), "wait"], **pipes) as running:
        assert running.stdout.readline() == "ready\n"
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        (pid,) = children
        tasks = Path(f"/proc/{pid}/task")

        def where(task: Path) -> tuple[str, str]:
            allowed = re.search(r"Cpus_allowed_list:\s*(\S+)", (task / "status").read_text())
            return (task / "comm").read_text().strip(), allowed[1]

        places = [where(task) for task in tasks.iterdir()]
        partners = {core for name, core in places if name == "outlive-partner"}
        others = {core for name, core in places if name != "outlive-partner"}
        assert (partners, others) == ({str(CORES[0])}, {str(CORES[-1])}), places
        os.kill(int(pid), signal.SIGKILL)
        assert running.wait(timeout=60) == 128 + signal.SIGKILL
    until("all its threads have ended", lambda: not tasks.exists())


FOLLOWS = """
import os, sys
from pathlib import Path
def partner():
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text() == "outlive-partner\\n":
            lines = (task / "status").read_text().splitlines()
            return [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")][0]
for core in sys.argv[1:]:
    os.sched_setaffinity(0, [int(core)])
    for _ in range(100):
        os.getppid()
    print(core, partner())
"""


def test_partners_follow_their_threads_to_cores_near_them(program: Path, tmp_path: Path) -> None:
    """As on a machine with two NUMA nodes of two cores, were these four."""
    first, last = CORES[0], CORES[-1]
    both = f"{first},{last}"
    cases = [
        (f"{first}:{last};{last}:{first}", [(first, last), (last, first), (first, last)]),
        (f"{last}:{first}", [(last, first), (last, first)]),
    ]
    anywhere = f"{first}-{last}" if last == first + 1 else both
    for bad in (
        "",
        "x",
        f"{first}:",
        f"{first}:{last};x",
        f"{first}",
        "0:99999",
        f"{first}:{last},",
    ):
        cases.append((bad, [(first, anywhere), (last, anywhere)]))
    # One that moves to where nothing is known of.
    cases.append((f"{first}:{last}", [(first, last), (last, anywhere), (first, last)]))
    for near, expected in cases:
        variables = [f"OUTLIVE_DECOUPLE_SERVICE={both}", f"OUTLIVE_DECOUPLE_NEAR={near}"]
        cores = [core for core, _ in expected]
        words = ["env", *variables, sys.executable, "-c", FOLLOWS, *cores]
        done = run(*prefix(tmp_path), *words)
        lines = "".join(f"{core} {by}\n" for core, by in expected)
        assert (done.returncode, done.stdout) == (0, lines), (near, done.stderr)


def test_what_cannot_be_decoupled_is_told_and_runs(program: Path, tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 5; }\n")
    static = tmp_path / "static"
    subprocess.run(["cc", "-static", str(source), "-o", str(static)], check=True, timeout=60)
    done = run(*prefix(tmp_path / "j"), static)
    assert (done.returncode, "linked statically" in done.stderr) == (5, True), done.stderr
    assert "no process told" in done.stderr


def forbid() -> None:
    """A filter under which the kernel seems to have no dispatch, for what is executed here."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = [
        (0x20, 0, 0, 0),  # the number of the call
        (0x15, 0, 3, 157),  # prctl
        (0x20, 0, 0, 16),  # its first argument
        (0x15, 0, 1, PR_SET_SYSCALL_USER_DISPATCH),
        (0x06, 0, 0, 0x00050000 | errno.EINVAL),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
    no_new_privileges, seccomp, filtered = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(seccomp, filtered, program, 0, 0):
        os._exit(99)


def test_a_machine_without_dispatch_is_told_before_anything_is_changed(tmp_path: Path) -> None:
    needs_dispatch()
    refused = run(*prefix(tmp_path / "j"), "true", preexec_fn=forbid)
    assert (refused.returncode, "OL-100" in refused.stderr) == (64, True), refused.stderr
    assert "no dispatch of system calls" in refused.stderr and "leave --decouple" in refused.stderr
    assert not list((tmp_path / "j").glob("*.journal*"))
    # The library alone leaves the program as it is.
    library, account = tmp_path / "lib.so", tmp_path / "account"
    account.touch()
    assert "LD_PRELOAD=" in run(OUTLIVE, "quiet", "library", library).stderr
    ours = {"LD_PRELOAD": str(library), "OUTLIVE_DECOUPLE_REPORT": str(account)}
    environment = os.environ | ours | {"OUTLIVE_DECOUPLE_SERVICE": str(CORES[0])}
    assert run("echo", "said", env=environment, preexec_fn=forbid).stdout == "said\n"
    assert account.read_text() == ""
    assert run("echo", "said", env=environment).stdout == "said\n"
    assert account.read_text().startswith("end ")


def test_the_cost_of_a_call_is_measured_both_ways(program: Path) -> None:
    words = ["--core", CORES[-1], "--service", CORES[0], "--calls", "500"]
    done = run(OUTLIVE, "noise", "forward", *words, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert fields(said) == documented()["outlive.noise-forward/1"]
    names = ["getpid", "write", "read", "futex"]
    for way in ("direct", "forwarded"):
        assert [cost["call"] for cost in said[way]] == names
        assert all(0 < cost["p50_ns"] <= cost["p99_ns"] for cost in said[way])
    refused = run(OUTLIVE, "noise", "forward", "--calls", "1")
    assert "OL-100" in refused.stderr


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_library_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    if not shutil.which(compiler):
        skip(f"pages-{compiler}", f"no {compiler}")
    sources = sorted((ROOT / "crates" / "node" / "c" / "decouple").glob("*.c"))
    if platform.machine() != "x86_64":
        sources = [source for source in sources if source.name == "begin.c"]
    words = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fPIC"]
    for source in sources:
        done = run(*words, "-c", source, "-o", tmp_path / "one.o")
        assert (done.returncode, done.stderr) == (0, ""), source
