"""A command on quiet cores, on this machine: what is changed for it comes back, however it ends.

Programs of others stay where they are (`--others leave`). Where threads are
moved, they are those of a process of the test's own. No time is asserted."""

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import OUTLIVE, kill, until
from skip import skip
from test_json import documented, fields

pytestmark = pytest.mark.alone

CORES = sorted(os.sched_getaffinity(0))
NO_SETAFFINITY = 0x04000000
KTHREAD = 0x00200000
DIE_AT = "OUTLIVE_QUIET_DIE_AT"
ONLY = "OUTLIVE_QUIET_ONLY"
SETTINGS = (
    "proc/irq/default_smp_affinity",
    "proc/irq/*/smp_affinity_list",
    "sys/devices/virtual/workqueue/cpumask",
    "sys/devices/virtual/workqueue/*/cpumask",
    "proc/sys/kernel/watchdog_cpumask",
    "proc/sys/kernel/sched_rt_runtime_us",
    "proc/sys/kernel/numa_balancing",
    "proc/sys/vm/stat_interval",
    "proc/sys/vm/compaction_proactiveness",
    "proc/sys/vm/swappiness",
    "sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
    "sys/kernel/mm/ksm/run",
    "sys/kernel/rcu_normal",
    "sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    "sys/devices/system/cpu/cpu*/cpuidle/*/disable",
    "sys/fs/cgroup/cgroup.subtree_control",
    "sys/fs/cgroup/cpuset*",
    "sys/fs/cgroup/cpuset/cpuset.*",
    "sys/fs/cgroup/*/outlive-quiet-*",
    "sys/fs/cgroup/outlive-quiet-*",
)


def stat_of(task: Path) -> list[str]:
    """Fields behind the name."""
    return (task / "stat").read_text().rpartition(")")[2].split()


def kernel_threads() -> dict[str, str]:
    """Where threads of the kernel may run that can be moved, by number, name and begin."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words, name = stat_of(place), (place / "comm").read_text().strip()
            flags = int(words[6])
            if not flags & KTHREAD or flags & NO_SETAFFINITY or name.startswith("irq/"):
                continue
            allowed = re.search(r"Cpus_allowed_list:\s*(\S*)", (place / "status").read_text())
            found[f"thread {place.name} {words[19]} {name}"] = allowed[1]
        except (OSError, ProcessLookupError):
            continue
    return found


def snapshot() -> dict[str, str]:
    """All settings that may be touched."""
    found = kernel_threads()
    for pattern in SETTINGS:
        for path in Path("/").glob(pattern):
            if path.is_dir():
                found[str(path)] = "there"
                continue
            try:
                found[str(path)] = path.read_text()
            except OSError as error:
                found[str(path)] = str(error)
    return found


def differences(before: dict[str, str], now: dict[str, str]) -> dict[str, tuple]:
    """What is not as before; threads come and go."""
    keys = [
        key
        for key in before | now
        if not key.startswith("thread ") or key in before.keys() & now.keys()
    ]
    return {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}


def needs_root() -> None:
    """Skips where nothing could be changed."""
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    if os.geteuid() != 0:
        skip("quiet-root", "settings of the machine are root's")
    if len(CORES) < 2:
        skip("quiet-cores", "one core cannot be parted")


class Quiet:
    """`outlive quiet` with journals of the test's own."""

    def __init__(self, journals: Path) -> None:
        self.journals = journals
        self.compute, self.service = str(CORES[-1]), str(CORES[0])

    def words(self, *words: object, compute: str | None = None) -> list[str]:
        """A run of it."""
        more = [] if "--others" in words else ["--others", "leave"]
        options = ["--compute", compute or self.compute, "--journal", str(self.journals), *more]
        return [str(OUTLIVE), "quiet", *options, *map(str, words)]

    def run(
        self, *words: object, compute: str | None = None, **more
    ) -> subprocess.CompletedProcess:
        """To its end."""
        return ended(self.words(*words, compute=compute), **more)

    def other(self, what: str, *words: str) -> subprocess.CompletedProcess:
        """`status` or `restore`."""
        return ended([str(OUTLIVE), "quiet", what, "--journal", str(self.journals), *words])

    def left(self) -> list[str]:
        """Journals."""
        return [path.name for path in self.journals.glob("*.journal")]


@contextmanager
def begun(words: list[str], **more) -> Iterator[subprocess.Popen]:
    """A process that does not outlive a test that fails."""
    with subprocess.Popen(words, **more) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


def ended(words: list[str], **more) -> subprocess.CompletedProcess:
    """Runs a command."""
    more.setdefault("env", os.environ)
    return subprocess.run(words, capture_output=True, text=True, timeout=60, **more)


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Quiet]:
    """Afterwards the machine is as before."""
    needs_root()
    before = snapshot()
    made = Quiet(tmp_path / "journals")
    try:
        yield made
    finally:
        restored = made.other("restore")
    assert restored.returncode == 0, restored.stderr
    assert differences(before, snapshot()) == {}
    assert made.left() == []


PROBE = """
import ctypes, os, sys, threading
libc = ctypes.CDLL(None)
print(sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0), libc.prctl(30, 0, 0, 0, 0))
seen = []
thread = threading.Thread(target=lambda: seen.append(sorted(os.sched_getaffinity(0))))
thread.start(); thread.join()
try:
    os.sched_setaffinity(0, set(range(os.cpu_count())))
except OSError:
    pass
print(seen[0], sorted(os.sched_getaffinity(0)))
print(open("/proc/self/cgroup").read())
sys.exit(7)
"""


def has_groups() -> bool:
    """Whether cores can be given to control groups."""
    mounts = Path("/proc/self/mountinfo").read_text()
    two = Path("/sys/fs/cgroup/cgroup.controllers")
    return "rw,cpuset" in mounts or (two.exists() and "cpuset" in two.read_text())


def test_the_command_has_its_cores_alone_and_its_status_is_passed_on(quiet: Quiet) -> None:
    before = snapshot()
    done = quiet.run("--", sys.executable, "-c", PROBE)
    assert done.returncode == 7, done.stderr
    own = [int(quiet.compute)]
    first, second, groups = done.stdout.split("\n", 2)
    assert first == f"{own} {os.SCHED_OTHER} 1"
    if has_groups():
        # It cannot leave by itself either.
        assert second == f"{own} {own}"
        assert "outlive-quiet-" in groups
    assert "outlive: quiet: cores" in done.stderr
    assert differences(before, snapshot()) == {}
    assert quiet.left() == []


def test_while_it_runs_all_is_changed_and_status_tells(quiet: Quiet) -> None:
    before = snapshot()
    with begun(quiet.words("-q", "--", "sleep", "1000")) as running:
        journal = until("a command", lambda: started(quiet, running.pid))
        during = snapshot()
        changed = differences(before, during)
        assert "/proc/sys/vm/stat_interval" in changed
        irqs = [key for key in changed if "smp_affinity_list" in key]
        assert all(during[key].strip() == "0" for key in irqs if len(CORES) == 2), changed
        status = json.loads(quiet.other("status", "--json").stdout)
        assert fields(status) == documented()["outlive.quiet/1"]
        assert [run["owner"] for run in status["runs"]] == ["alive"]
        # All that differs is in the journal, and is as it says.
        said = {change["setting"]: change for change in status["runs"][0]["changes"]}
        for key in changed:
            name = f"thread {key.split()[1]} ({key.split(' ', 3)[3]})" if key[0] == "t" else key
            assert name in said, (name, journal)
            assert said[name]["now"] == said[name]["after"], said[name]
        assert "sleep 1000" in quiet.other("status").stdout
        # Its cores are taken; a living run is not undone.
        refused = quiet.run("--", "true")
        assert refused.returncode == 75, refused.stderr
        assert "OL-502" in refused.stderr and f"process {running.pid}" in refused.stderr
        assert "in use by process" in quiet.other("restore").stderr
        assert differences(during, snapshot()) == {}
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 128 + signal.SIGTERM
    assert differences(before, snapshot()) == {}


def started(quiet: Quiet, pid: int) -> str:
    """The journal, once the command of process `pid` runs."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    names = [Path(f"/proc/{child}/comm").read_text().strip() for child in below]
    return quiet.left()[0] if "sleep" in names else ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2])
def test_signals_reach_the_command_and_all_comes_back(quiet: Quiet, number: int) -> None:
    with begun(quiet.words("-q", "--", "sleep", "1000")) as running:
        until("a command", lambda: started(quiet, running.pid))
        running.send_signal(number)
        assert running.wait(30) == 128 + number


def test_killed_after_each_step_and_restored(quiet: Quiet) -> None:
    """On the way there and back, with everything that this machine has."""
    before = snapshot()
    killed, at = 0, 1
    memory = Path("/dev/shm")
    if memory.is_dir():  # hundreds of runs, each of which waits for the disk at each step
        quiet.journals = memory / f"outlive-quiet-{os.getpid()}"
    words = quiet.words("-q", "--class", "fifo:1", "--", "true")
    while True:
        done = ended(words, env={**os.environ, DIE_AT: str(at)})
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        killed += 1
        restored = quiet.other("restore", "-q")
        assert restored.returncode == 0, restored.stderr
        assert differences(before, snapshot()) == {}, at
        at += 1
    assert killed > 40
    assert differences(before, snapshot()) == {}
    assert quiet.left() == []
    shutil.rmtree(quiet.journals)


def test_killed_restoring_and_the_next_run_undoes_the_rest(quiet: Quiet) -> None:
    before = snapshot()
    for at in (2, 9, 23):
        with begun(quiet.words("-q", "--", "sleep", "1000")) as running:
            until("a command", lambda: started(quiet, running.pid))
            child = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()[0]
            running.kill()
            running.wait(30)
            # The command goes on where it is; undone, it may run everywhere again.
            words = [str(OUTLIVE), "quiet", "restore", "--journal", str(quiet.journals)]
            done = ended(words, env={**os.environ, DIE_AT: str(at)})
            assert done.returncode == -signal.SIGKILL, done.stderr
            assert "was killed" in quiet.other("status").stdout
            done = quiet.run("--", "true")
            assert done.returncode == 0, done.stderr
            assert "its changes were undone first" in done.stderr
            assert sorted(os.sched_getaffinity(int(child))) == CORES
            kill(int(child))
        assert differences(before, snapshot()) == {}


def test_all_comes_back_though_the_journal_was_purged(quiet: Quiet) -> None:
    before = snapshot()
    done = quiet.run("-q", "--", "rm", "-r", str(quiet.journals))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert differences(before, snapshot()) == {}
    assert quiet.left() == []


def test_a_setting_that_somebody_else_has_changed_stays(quiet: Quiet) -> None:
    path = Path("/proc/sys/vm/stat_interval")
    before = path.read_text()
    try:
        with begun(
            quiet.words("--", "sleep", "1000"), stderr=subprocess.PIPE, text=True
        ) as running:
            until("a command", lambda: started(quiet, running.pid))
            path.write_text("77")
            running.terminate()
            said = running.communicate(timeout=30)[1]
        assert path.read_text().strip() == "77"
        assert "somebody else has changed it" in said and str(path) in said
    finally:
        path.write_text(before)


def test_threads_of_others_go_and_come_back_with_what_they_started(quiet: Quiet) -> None:
    program = (
        "import os,sys\nfor line in sys.stdin:\n os.fork() or os.pause()\n print(1, flush=True)"
    )
    program = program.replace("os.pause()", "__import__('signal').pause()")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with begun([sys.executable, "-c", program], **pipes) as other:
        environment = {**os.environ, ONLY: str(other.pid)}
        words = quiet.words("-q", "--others", "move", "--", "sleep", "1000")
        with begun(words, env=environment) as running:
            until("a command", lambda: started(quiet, running.pid))
            assert int(quiet.compute) not in os.sched_getaffinity(other.pid)
            other.stdin.write("fork\n")
            other.stdin.flush()
            assert other.stdout.readline() == "1\n"
            children = Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text()
            child = int(children.split()[0])
            assert int(quiet.compute) not in os.sched_getaffinity(child)
            running.terminate()
            running.wait(30)
        try:
            assert sorted(os.sched_getaffinity(other.pid)) == CORES
            assert sorted(os.sched_getaffinity(child)) == CORES
        finally:
            kill(child)
            kill(other.pid)


def test_a_real_time_command_is_not_stopped(quiet: Quiet) -> None:
    probe = (
        "import os;print(os.sched_getscheduler(0), os.sched_getparam(0).sched_priority,"
        "open('/proc/sys/kernel/sched_rt_runtime_us').read())"
    )
    done = quiet.run("-q", "--class", "fifo:5", "--", sys.executable, "-c", probe)
    assert done.stdout.split() == [str(os.SCHED_FIFO), "5", "-1"], done.stderr


def test_a_dry_run_tells_all_and_changes_nothing(quiet: Quiet) -> None:
    before = snapshot()
    done = quiet.run("--dry-run")
    assert done.returncode == 0, done.stderr
    for word in (
        "smp_affinity_list",
        "stat_interval",
        "rcu_preempt",
        "isolcpus=managed_irq,domain",
    ):
        assert word in done.stdout
    assert differences(before, snapshot()) == {}
    assert not quiet.journals.exists()


def test_what_the_command_leaves_running_goes_on(quiet: Quiet, tmp_path: Path) -> None:
    place = tmp_path / "pid"
    script = f"sleep 1000 > /dev/null 2>&1 & echo $! > {place}"
    done = quiet.run("-q", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    left = int(place.read_text())
    try:
        assert sorted(os.sched_getaffinity(left)) == CORES
        assert "outlive-quiet" not in Path(f"/proc/{left}/cgroup").read_text()
    finally:
        kill(left)


def test_bad_input_changes_nothing(quiet: Quiet) -> None:
    before = snapshot()
    everything = f"{CORES[0]}-{CORES[-1]}"
    for words, compute, status, said in (
        (["--", "true"], everything, 64, "all cores"),
        (["--", "true"], "1000", 64, "does not exist"),
        (["--", "true"], "x", 64, "no list of cores"),
        (["--service", quiet.compute, "--", "true"], None, 64, "compute core too"),
        (["--", "no-such-program"], None, 127, "no such program"),
        (["--class", "fifo:100", "--", "true"], None, 64, "fifo: and a priority"),
        ([], None, 64, "is missing"),
        (["--", "/etc/passwd"], None, 127, "no such program"),
    ):
        done = quiet.run(*words, compute=compute)
        assert (done.returncode, said in done.stderr) == (status, True), done.stderr
        assert differences(before, snapshot()) == {}
    # In a reduced set of cores, there is nothing to part.
    one = {CORES[0]}
    done = quiet.run("--", "true", preexec_fn=lambda: os.sched_setaffinity(0, one))
    assert done.returncode == 64 and "may use" in done.stderr, done.stderr
    quiet.journals.mkdir(exist_ok=True)
    quiet.journals.chmod(0o777)
    done = quiet.run("--", "true")
    quiet.journals.chmod(0o755)
    assert done.returncode == 74 and "OL-402" in done.stderr, done.stderr


def test_without_root_what_remains_is_done_and_the_rest_is_told(quiet: Quiet) -> None:
    before = snapshot()
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    quiet.journals = Path(f"/tmp/outlive-quiet-test-{os.getpid()}")
    try:
        done = quiet.run(
            "--", "/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status", **nobody
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == quiet.compute
        for word in ("takes root", "affinity alone", "interrupts ("):
            assert word in done.stderr, done.stderr
        done = quiet.run("--class", "fifo:5", "--", "true", **nobody)
        assert done.returncode == 127 and "OL-505" in done.stderr, done.stderr
        assert differences(before, snapshot()) == {}
    finally:
        for path in quiet.journals.glob("*"):
            path.unlink()
        quiet.journals.rmdir()
        quiet.journals = Path(f"/tmp/outlive-quiet-none-{os.getpid()}")


@pytest.mark.parametrize("bytes_max", [1, 400, 2000, 4000])
def test_a_journal_that_cannot_be_written_undoes_what_was_done(
    quiet: Quiet, bytes_max: int
) -> None:
    before = snapshot()

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, bytes_max))

    done = quiet.run("--", "echo", "it ran", preexec_fn=limited)
    assert done.returncode == 74 and "OL-4" in done.stderr, done.stderr
    assert "it ran" not in done.stdout
    assert differences(before, snapshot()) == {}
    quiet.other("restore")  # what is not even a whole first line goes
    assert quiet.left() == []


def test_ended_before_the_command_runs(quiet: Quiet) -> None:
    """One that came while settings were changed: the command is not started."""
    before = snapshot()
    # It waits for the lock, and signals wait for it.
    quiet.journals.mkdir(mode=0o755)
    with open(quiet.journals / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with begun(quiet.words("--", "echo", "it ran"), stdout=subprocess.PIPE) as running:
            until("signals wait", lambda: blocks(running.pid, signal.SIGINT))
            running.send_signal(signal.SIGINT)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert running.wait(60) == 128 + signal.SIGINT
            assert running.stdout.read() == b""
    assert differences(before, snapshot()) == {}


def blocks(pid: int, number: int) -> bool:
    """Whether a process has blocked a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(re.search(r"SigBlk:\s*(\S+)", status)[1], 16) >> (number - 1) & 1)


JOB = """
import os, pathlib, sys, time
place, compute, service = pathlib.Path(sys.argv[1]), *({int(core)} for core in sys.argv[2:4])
assert os.sched_getaffinity(0) == compute, os.sched_getaffinity(0)
helpers = 0
for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
        name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
    except OSError:
        continue
    if name.startswith("outlive") and int(rest.split()[1]) in (os.getppid(), *KEEPERS):
        helpers += 1
        for task in (stat.parent / "task").iterdir():
            assert os.sched_getaffinity(int(task.name)) == service, (name, task.name)
assert helpers >= 2, "a keeper and an agent"
with place.open("a") as file:
    print("ran", file=file)
if sys.argv[4] == "stays":
    time.sleep(600)
sys.exit(0 if place.read_text().count("ran") > 1 else 3)
"""


@contextmanager
def job(quiet: Quiet, tmp_path: Path, how: str) -> Iterator[tuple[subprocess.Popen, Path]]:
    """`outlive run` with its command on quiet cores."""
    place, program = tmp_path / "ran", tmp_path / "job.py"
    keepers = "[int(p.parent.name) for p in pathlib.Path('/proc').glob('[0-9]*/comm')"
    keepers += " if p.exists() and p.read_text().startswith('outlive-keeper')]"
    program.write_text(JOB.replace("KEEPERS", keepers))
    cores = ["--compute", quiet.compute, "--service", quiet.service]
    more = ["--others", "leave", "--journal", quiet.journals, "--max-restarts", 1]
    options = ["--job", "quiet", "--store", tmp_path / "store", "--backoff", "10ms", *cores, *more]
    command = [sys.executable, program, place, quiet.compute, quiet.service, how]
    words = [str(word) for word in [OUTLIVE, "run", *options, "--", *command]]
    with begun(words, stderr=subprocess.PIPE, text=True) as process:
        yield process, place


def test_a_job_has_its_command_on_quiet_cores_and_its_agents_elsewhere(
    quiet: Quiet, tmp_path: Path
) -> None:
    with job(quiet, tmp_path, "goes") as (process, place):
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 0 and place.read_text() == "ran\nran\n", said
        assert "1 restart" in said and f"cores {quiet.compute} for the command" in said, said
    assert quiet.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_that_is_ended_leaves_no_setting(quiet: Quiet, tmp_path: Path, number: int) -> None:
    with job(quiet, tmp_path, "stays") as (process, place):
        until("the command runs", place.exists)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
        assert (process.returncode == -number) == (number == signal.SIGKILL), said
    # What a killed one has left is undone by `restore`, behind each test.
    assert len(quiet.left()) == (number == signal.SIGKILL)


def test_quiet_cores_are_of_this_machine(quiet: Quiet, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\n")
    words = [OUTLIVE, "run", "--job", "x", "--hosts", hosts, "--compute", quiet.compute]
    done = ended([*map(str, words), "--store", str(tmp_path / "store"), "--", "true"])
    assert done.returncode == 64 and "option compute: cores are kept quiet on this" in done.stderr
    done = ended([str(OUTLIVE), "run", "--service", quiet.service, "--", "true"])
    assert done.returncode != 0 and "--compute" in done.stderr
