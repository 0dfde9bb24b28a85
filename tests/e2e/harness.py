"""Runs jobs under `outlive run` and looks at what they leave.

Every process of a job carries a token in its environment; what is still there when
a test ends is found by it, reported as a leak and killed by number.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTLIVE = Path(os.environ.get("OUTLIVE_BIN", ROOT / "target" / "release" / "outlive"))
BOUND_S = 60.0  # of every run; what takes longer hangs
LEFT_S = 5.0  # until the last process of a job must be gone
TOKEN = "OUTLIVE_E2E"


def until(what: str, true: Callable[[], object], bound_s: float = BOUND_S):
    """Polls until `true()` is true, and gives what it gave."""
    end = time.monotonic() + bound_s
    while True:
        if found := true():
            return found
        assert time.monotonic() < end, f"not within {bound_s} s: {what}"
        time.sleep(0.005)


def processes(token: str) -> dict[int, str]:
    """The living processes that carry the token: number and command line."""
    found = {}
    mark = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
        if line:  # a zombie has none
            found[int(entry.name)] = line
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signals a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


@dataclass
class Result:
    """How a run ended."""

    status: int
    out: str
    err: str
    report: dict

    @property
    def failures(self) -> list[dict]:
        """Of the report."""
        return self.report["failures"]

    def failure(self) -> dict:
        """The only one."""
        assert len(self.failures) == 1, json.dumps(self.failures, indent=1) + self.err
        return self.failures[0]

    def codes(self, what: str = "warnings") -> set[str]:
        """The codes of the report's warnings or errors."""
        return {entry["code"] for entry in self.report[what]}

    def said(self, what: str) -> list[int]:
        """The numbers that ranks said after this word."""
        lines = [line.split() for line in self.out.splitlines()]
        return [int(word[3]) for word in lines if word[:1] == ["rank"] and word[2] == what]


class Run:
    """A run under way."""

    def __init__(self, job: "Job", words: list[str]) -> None:
        self.job = job
        self.words = words
        self.files = [open(job.dir / name, "w+b") for name in ("out", "err")]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=self.files[0],
            stderr=self.files[1],
            env=job.environment(),
        )

    def signal(self, number: int) -> None:
        """Signals the launcher."""
        self.process.send_signal(number)

    def pids(self, kind: str) -> dict[int, int]:
        """Keepers or agents by node, from the specification in their environment."""
        found = {}
        for pid, line in processes(self.job.token).items():
            if line.split()[1:2] != [kind]:
                continue
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            # One that begins or ends just now shows no environment.
            spec = next((e for e in environ if e.startswith(b"OUTLIVE_AGENT_SPEC=")), None)
            if spec is None:
                continue
            found[json.loads(spec.split(b"=", 1)[1])["node"]] = pid
        return found

    def text(self) -> str:
        """Everything said so far."""
        return "".join(
            (self.job.dir / name).read_text("utf-8", "replace") for name in ("out", "err")
        )

    def end(self, bound_s: float = BOUND_S) -> Result:
        """Waits for the end, in bounded time."""
        try:
            status = self.process.wait(bound_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"hangs: {self.words}\n{self.text()[-6000:]}") from None
        for file in self.files:
            file.close()
        out, err = ((self.job.dir / name).read_text("utf-8", "replace") for name in ("out", "err"))
        assert "panicked" not in out + err, err
        report = self.job.report
        return Result(status, out, err, json.loads(report.read_text()) if report.exists() else {})


@dataclass
class Job:
    """A job in a store of its own."""

    dir: Path
    ring: Path
    token: str
    nodes: int = 3
    ranks: int = 6
    steps: int = 120
    cells: int = 500
    sleep_us: int = 4000
    every: int | None = 10
    spares: int = 2
    levels: str | None = None  # of every run that names none
    beyond: str = "partner"  # the level that survives a node's loss
    extra: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()  # stands before the command line of the run
    holds: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def store(self) -> Path:
        """Directory of all jobs of this test."""
        return self.dir / "store"

    @property
    def home(self) -> Path:
        """The job's directory."""
        return self.store / "test"

    @property
    def report(self) -> Path:
        """The report's file."""
        return self.dir / "report.json"

    @property
    def result(self) -> Path:
        """What the program writes."""
        return self.dir / "result"

    def node(self, node: int) -> Path:
        """A node's storage."""
        return self.home / "nodes" / f"node-{node}"

    def environment(self) -> dict[str, str]:
        """Ours, the token, and a short directory for sockets."""
        mine = {key: value for key, value in os.environ.items() if not key.startswith("OUTLIVE_")}
        run = {TOKEN: self.token, "XDG_RUNTIME_DIR": str(self.dir), "NO_COLOR": "1"}
        return mine | run | {"LD_LIBRARY_PATH": str(self.ring.parent)} | self.extra

    def program(self, *options: object) -> list[str]:
        """The test program's command line."""
        sizes = (self.ranks, self.steps, self.cells, "--sleep-us", self.sleep_us)
        holds = [word for hold in self.holds for word in ("--hold", *hold)]
        return [str(word) for word in (self.ring, self.result, *sizes, *holds, *options)]

    def hold(self, step: int, since: int, survives: str = "node-loss") -> None:
        """At `step` a version of at least `since` survives this, however slow the machine is:
        what the policy took is waited for, or `step` is forced."""
        self.holds.append((step, since, survives))

    def start(
        self, *options: str, program: list[str] | None = None, inject: tuple[str, ...] = ()
    ) -> Run:
        """Starts `outlive run`."""
        fixed = {
            "--job": "test",
            "--store": self.store,
            "--report": self.report,
            "--emulate-nodes": self.nodes,
            "--spares": self.spares,
            "--every": self.every,
            "--backoff": "0",
        }
        if self.nodes == 1:
            del fixed["--spares"]
        if self.every is None:
            del fixed["--every"]
        if self.levels is not None:
            fixed["--levels"] = self.levels
        for option in options:
            fixed.pop(option, None)
        words: list[object] = [*self.before, OUTLIVE, "run"]
        for pair in fixed.items():
            words += pair
        for fault in inject:
            words += ["--inject", fault]
        self.report.unlink(missing_ok=True)
        command = self.program() if program is None else program
        return Run(self, [str(word) for word in (*words, *options, "--", *command)])

    def run(
        self,
        *options: str,
        program: list[str] | None = None,
        inject: tuple[str, ...] = (),
        bound_s: float = BOUND_S,
    ) -> Result:
        """Runs to the end, whatever it is."""
        return self.start(*options, program=program, inject=inject).end(bound_s)

    def survive(self, *options: str, program: list[str] | None = None, **more) -> Result:
        """Runs to the end, which must be good, with the result of a calm run."""
        program = self.program() if program is None else program
        result = self.run(*options, program=program, **more)
        assert result.status == 0, f"{self.report}\n{result.out}{result.err}"
        assert result.report["result"] == "finished"
        self.check(program)
        return result

    def half_done(self, steps: int) -> int:
        """A job of so many steps that is run to half of them, with containers on disk and what
        protects them beyond; the newest version that this protects."""
        self.steps = steps // 2
        self.hold(self.steps - 5, self.steps - 20)
        result = self.survive("--levels", f"disk,{self.beyond}")
        self.steps = steps
        return result.report["checkpoints"]["last"][self.beyond]

    def goes_on(
        self, *options: str, when: Callable[[Run], object], program: tuple[object, ...] = (), **more
    ) -> Result:
        """As `survive`, of a program that offers versions past its steps until this is true:
        however slow the machine is, saving has the time that it takes."""
        enough = self.dir / "enough"
        words = self.program(*program, "--until", enough)
        run = self.start(*options, program=words, **more)
        ended = lambda: run.process.poll() is not None  # noqa: E731
        until("what the program goes on for", lambda: when(run) or ended(), BOUND_S)
        enough.touch()
        result = run.end()
        assert result.status == 0, f"{self.report}\n{result.out}{result.err}"
        assert result.report["result"] == "finished"
        self.check(words)
        return result

    def saves(self, least: int, *levels: str) -> Callable[[Run], object]:
        """For `goes_on`: a version of at least `least` is stable at these levels, the one that
        survives a node's loss if none is named."""
        levels = levels or (self.beyond,)
        return lambda _: all(self.stable(level) >= least for level in levels)

    def counts(self, least: int, *levels: str) -> Callable[[Run], object]:
        """For `goes_on`: so many versions are stable at these levels."""
        return lambda _: all(self.running("stable").get(level, 0) >= least for level in levels)

    def calm(self, program: list[str] | None = None) -> bytes:
        """What the program writes without Outlive."""
        words = list(self.program() if program is None else program)
        words[1] = str(self.dir / "calm")
        if "--sleep-us" in words:
            words[words.index("--sleep-us") + 1] = "0"
        (self.dir / "calm").unlink(missing_ok=True)
        subprocess.run(
            words, check=True, timeout=BOUND_S, env=self.environment(), stdout=subprocess.DEVNULL
        )
        return (self.dir / "calm").read_bytes()

    def check(self, program: list[str] | None = None) -> None:
        """The result is that of a calm run, bit for bit."""
        assert self.result.read_bytes() == self.calm(program)

    def outlive(self, *words: object, status: int | None = 0, bound_s: float = 20.0) -> str:
        """Another command about this job; gives what it says. Any status if None."""
        words = (OUTLIVE, *words, "--store", self.store, "--job", "test")
        done = subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            timeout=bound_s,
            env=self.environment(),
        )
        said = done.stdout + done.stderr
        assert status in (None, done.returncode), f"{words}\n{done.returncode}\n{said}"
        return said if status else done.stdout

    def checkpoints(self) -> list[dict]:
        """What is stored, newest first."""
        return json.loads(self.outlive("checkpoints", "list", "--json"))["versions"]

    def containers(self, node: int, kind: str = "containers") -> list[Path]:
        """Files of a node, oldest first. What is still being written is none yet: it will have
        another name, or be gone, by the time that anyone looks at it."""
        return sorted((self.node(node) / kind).glob("[!.]*"))

    def running(self, what: str) -> dict[str, int]:
        """What the running report says of checkpoints, level by level."""
        path = self.home / "report.json"
        if not path.exists():
            return {}
        return json.loads(path.read_text())["checkpoints"][what]

    def stable(self, level: str | None = None) -> int:
        """The newest version that the running report calls stable at this level, or the one
        that survives a node's loss."""
        return self.running("last").get(level or self.beyond, -1)

    def settled(self, least: int) -> int:
        """The newest stable version of a program that is paused: on a busy machine the
        one before the pause may have been left out."""
        until(f"version {least}", lambda: self.stable() >= least)
        newest, since = self.stable(), time.monotonic()
        end = since + 10.0
        # One that another level has already is on its way.
        on_its_way = lambda: max(self.running("last").values()) > newest  # noqa: E731
        while (now := time.monotonic()) < since + 1.0 or (on_its_way() and now < end):
            time.sleep(0.05)
            if self.stable() != newest:
                newest, since = self.stable(), time.monotonic()
        return newest

    def stands(self) -> list[tuple[str, str]]:
        """For who reads of a test that failed: the end of what was said, the running report, and
        what `outlive status` answers."""
        files = {"said": self.dir / "err", "report": self.home / "report.json"}
        found = [
            (f"job: {name}", path.read_text("utf-8", "replace")[-4000:])
            for name, path in files.items()
            if path.exists()
        ]
        if processes(self.token):
            try:
                found.append(("job: status", self.outlive("status", status=None)))
            except subprocess.TimeoutExpired as error:
                found.append(("job: status", str(error)))
        return found

    def gone(self, bound_s: float = LEFT_S) -> None:
        """No process of the job is left, or will be within the bound."""
        end = time.monotonic() + bound_s
        while left := processes(self.token):
            if time.monotonic() >= end:
                for pid in left:
                    kill(pid)
                raise AssertionError(f"left behind after {bound_s} s: {left}")
            time.sleep(0.01)


def damage(path: Path, at: float = 0.5) -> None:
    """Flips a bit of a file; of a log of decisions, a bit of each record."""
    data = bytearray(path.read_bytes())
    for start, length in logged(data) if path.suffix == ".log" else [(0, len(data))]:
        data[start + int(length * at)] ^= 0x10
    path.write_bytes(data)


def changed(path: Path) -> int:
    """When a file was last written, in nanoseconds; of one that a running job has just
    removed, -1."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return -1


def newest_of(paths: list[Path]) -> Path:
    """The file that was written last."""
    return max(paths, key=changed)


HARMS = ("rots", "is cut off", "is gone")


def hurt(path: Path, how: str) -> None:
    """One of HARMS."""
    if how == "rots":
        damage(path, 0.6)
    elif how == "is cut off":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.unlink()


def logged(data: bytes) -> list[tuple[int, int]]:
    """Where the records of a log begin, and their lengths; of one cut off, what is left."""
    starts = [found.start() for found in re.finditer(b"OLREC01\\0", data)]
    said = [(at, 32 + int.from_bytes(data[at + 12 : at + 16], "little")) for at in starts]
    return [(at, min(length, len(data) - at)) for at, length in said]
