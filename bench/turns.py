"""Three jobs on one shared directory of limited bandwidth: each by itself, and in turns.

    python3 bench/turns.py [--rounds 3] [--rate 16] [--outlive PATH] [--dir DIR] [--json FILE]

The directory is a real file system, bench/slowfs.py: everything that is written or read there
crosses one link of --rate MiB/s, so jobs that write at the same time slow each other. On it lies
the store of three jobs that run at the same time: examples/01-heat2d with 2 ranks under MPICH on
two emulated nodes, the ring of the tests with 4 ranks on two, and examples/03-nbody on one. Their
levels are memory, disk and shared, and when they save at which of them the policy decides that
has learnt; node storage is on --dir. Each job loses a node twice, which only shared survives, and
a rank once, always at the same versions.

Before, all three run once together without a coordinator: what they learn then of costs is where
every other run begins. Failures come here far more often than what a policy supposes at first (a
node's in five years), and it takes more of them than such short runs have to learn that: so each
run begins as if 40 losses of a node had been seen, as often as they come here. Then, in each
round and in an order that turns:

    alone      without a coordinator
    turns      with `outlive coordinator`
    killed     the same, killed (SIGKILL) in the middle
    restarted  the same, and started again ten seconds later

For each job and all together: seconds of the run; blocked in captures; computing lost at
failures; in recoveries; versions kept at shared and how long each took from its capture; the
mean age, in computing, of the newest version at shared: what the loss of a node costs if it comes
at any moment (for the sum, the mean of the jobs). Medians over rounds, with least and most, and
the difference to `alone` of the same round. Results are compared byte by byte; a failure that did
not happen, or a job that does not finish, ends the benchmark.

Needs the command, `make -C examples`, .deps/mpich, cc; libfuse 3 (or 2), /dev/fuse and the Python
package mfusepy (pip install mfusepy).
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOUND_S = 900.0  # of a run; what takes longer hangs
RESTART_AFTER_S = 10.0
LOSSES = 40  # that each job remembers
VARIANTS = ["alone", "turns", "killed", "restarted"]
ROWS = {
    "seconds": "run, s",
    "blocked_s": "blocked in captures, s",
    "lost_s": "computing lost, s",
    "recovery_s": "in recoveries, s",
    "versions": "versions at shared",
    "kept_s": "each took, s",
    "age_s": "mean age of the newest, s",
}
# Of all jobs together these are means, the others sums.
MEANS = ("kept_s", "age_s")


def until(what, true, bound_s):
    """Polls until it is true."""
    end = time.monotonic() + bound_s
    while not true():
        if time.monotonic() > end:
            sys.exit(f"not within {bound_s} s: {what}")
        time.sleep(0.02)


class Place:
    """Where everything lies: the slow directory with the store, and what is local."""

    def __init__(self, base, rate):
        self.backing, self.store, self.local = (
            base / name for name in ("backing", "store", "local")
        )
        for directory in (self.backing, self.store, self.local):
            directory.mkdir()
        words = [sys.executable, ROOT / "bench/slowfs.py", self.backing, self.store, rate]
        self.process = subprocess.Popen([str(word) for word in words])
        mounted = lambda: os.path.ismount(self.store) or self.process.poll() is not None  # noqa: E731
        until("the slow directory", mounted, 20)
        if self.process.poll() is not None:
            sys.exit("bench/slowfs.py did not start: libfuse, /dev/fuse or mfusepy is missing")

    def close(self):
        """Unmounts it."""
        self.process.terminate()
        self.process.wait(20)

    def rate(self, size=4 << 20):
        """Bytes a second that one writer has."""
        path = self.store / "rate"
        begin = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            for _ in range(size >> 20):
                file.write(bytes(1 << 20))
            os.fsync(file.fileno())
        took = time.perf_counter() - begin
        path.unlink()
        return size / took

    def begin(self, learnt):
        """As it was before the first run, but for what jobs have learnt."""
        for directory in (self.backing, self.local):
            for path in directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, files in learnt.items():
            (self.backing / name).mkdir(mode=0o700)
            for file, data in files.items():
                (self.backing / name / file).write_bytes(data)
                (self.backing / name / file).chmod(0o600)

    def learnt(self, names, mtbf):
        """What makes a job the same job, with what it has learnt of costs, and with failures
        every so many seconds."""
        found = {}
        for name in names:
            job = json.loads((self.backing / name / "job.json").read_text())
            # Without it the file is taken as it is.
            del job["checksum"]
            losses = [{"at": mtbf * (n + 1), "lost": "storage"} for n in range(LOSSES)]
            job["learned"] |= {"seconds": mtbf * (LOSSES + 0.5), "since": 0.0, "failures": losses}
            key = (self.backing / name / "key").read_bytes()
            found[name] = {"job.json": json.dumps(job).encode(), "key": key}
        return found


class Job:
    """A job: its program, its nodes, and the versions at which it fails."""

    def __init__(self, name, nodes, words, steps, fails):
        self.name, self.nodes, self.words, self.steps = name, nodes, words, steps
        self.inject = [f"{what}@version={int(steps * part)}" for what, part in fails]
        self.process = self.began = self.took = None

    def start(self, options, place, again):
        """Starts it under `outlive run`."""
        here = place.local / self.name
        here.mkdir()
        line = [options.outlive, "run", "--quiet", "--job", self.name, "--store", place.store]
        line += ["--report", here / "report.json", "--node-storage", place.local / "nodes"]
        line += ["--emulate-nodes", self.nodes, "--spares", len(self.inject), "--backoff", "0"]
        line += ["--levels", "memory,disk,shared", "--memory", "256MiB"]
        line += ["--on-nothing-usable", "fresh"]
        # The first time it is to learn what versions cost there.
        line += ["--fresh"] if again else ["--redo-max", "3s"]
        for fault in self.inject:
            line += ["--inject", fault]
        words = [here / "result" if word == "RESULT" else word for word in self.words]
        with (here / "out").open("w") as out:
            self.process = subprocess.Popen(
                [str(word) for word in (*line, "--", *words)],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=here,
                env=os.environ | {"LD_LIBRARY_PATH": str(options.outlive.parent)},
            )
        self.began, self.took = time.perf_counter(), None

    def poll(self):
        """True once it has ended."""
        if self.took is None and self.process.poll() is not None:
            self.took = time.perf_counter() - self.began
        return self.took is not None

    def figures(self, options, place):
        """What its report and its history say."""
        here = place.local / self.name
        report = json.loads((here / "report.json").read_text())
        if self.process.returncode or report["result"] != "finished":
            print((here / "out").read_text()[-4000:], file=sys.stderr)
            sys.exit(f"{self.name} did not finish: status {self.process.returncode}")
        failures, counts = report["failures"], report["checkpoints"]
        if report["not_injected"] or len(failures) != len(self.inject):
            sys.exit(f"{self.name}: {len(failures)} failures, not {len(self.inject)}")
        if any(entry["lost_ms"] is None for entry in failures):
            sys.exit(f"{self.name}: what a failure lost is not known")
        parts = ("detect_ms", "fence_ms", "rebuild_ms", "relaunch_ms")
        kept = counts["stable"].get("shared", 0)
        return {
            "seconds": self.took,
            "blocked_s": counts["blocked_ms_sum"] / 1e3,
            "lost_s": sum(entry["lost_ms"] for entry in failures) / 1e3,
            "recovery_s": sum(entry[part] or 0.0 for entry in failures for part in parts) / 1e3,
            "versions": kept,
            "kept_s": counts["kept_ms"].get("shared", 0.0) / 1e3 / max(kept, 1),
            "age_s": age(events(place, self.name)),
        }


def events(place, job):
    """What happened in the last run of a job, oldest first."""
    found = []
    for line in (place.backing / job / "view" / "events.jsonl").read_text().splitlines():
        line = json.loads(line)
        if line.get("kind") == "run":
            if line["schema"] != "outlive.events/1" or line["continues"]:
                sys.exit(f"{job}: its events are of another form, or too many")
            found = []
        found.append(line)
    return found


def age(lines):
    """The mean age of the newest version at shared over the time in which the program computes, in
    seconds of computing that its loss would cost."""
    done, since, last = 0.0, None, 0.0
    # None: the beginning.
    captured, safe = {None: 0.0}, 0.0
    area = spent = 0.0
    for line in lines:
        at, kind = line["at"], line.get("kind")
        if since is not None:
            length = at - last
            area += length * (done + (last - since) - safe + length / 2)
            spent += length
        last = at
        now = done + (at - since if since is not None else 0.0)
        match kind:
            case "ranks-up":
                since = at
            case "captured":
                captured[line["version"]] = now
            case "stable" if line["level"] == "shared" and line["version"] in captured:
                safe = max(safe, captured[line["version"]])
            case "failure":
                done, since = now, None
            case "opened" if line.get("restored") in captured:
                done = captured[line["restored"]]
                captured = {v: p for v, p in captured.items() if p <= done}
                safe = min(safe, done)
    return area / max(spent, 1e-9)


class Coordinator:
    """`outlive coordinator` of the store, as the variant has it."""

    def __init__(self, options, place, variant):
        self.options, self.place, self.variant = options, place, variant
        self.process = self.killed = None
        self.turns = [0, 0]  # given before the kill, and by the end
        if variant != "alone":
            self.start()

    def start(self):
        words = [self.options.outlive, "coordinator", "--quiet", "--store", self.place.store]
        self.process = subprocess.Popen([str(word) for word in words])

    def given(self):
        """Turns that were given."""
        path = self.place.backing / ".coordinator" / "state.json"
        return json.loads(path.read_text())["turns"]["accepted"] if path.exists() else 0

    def passes(self, seconds):
        """So long do the jobs run."""
        middle = self.options.middle
        # Not before it has given turns: else nothing would be killed in the middle.
        kills = self.variant in ("killed", "restarted") and self.killed is None
        if kills and seconds > middle and self.given() > 0:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(20)
            self.killed, self.process, self.turns[0] = seconds, None, self.given()
        again = self.killed is not None and self.process is None and self.variant == "restarted"
        if again and seconds > self.killed + RESTART_AFTER_S:
            self.start()

    def end(self):
        """Ends it. It must have done something."""
        if self.process is not None:
            if self.process.poll() is not None:
                sys.exit("the coordinator has ended")
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)
        if self.variant == "alone":
            return
        self.turns[1] = self.given()
        before = self.turns[0] if self.killed is not None else self.turns[1]
        if before == 0 or (self.variant == "restarted" and self.turns[1] == before):
            sys.exit(f"the coordinator gave no turns: {self.turns}")


def run(options, place, jobs, variant, learnt):
    """All jobs once; figures by job."""
    place.begin(learnt or {})
    coordinator = Coordinator(options, place, variant)
    begin = time.perf_counter()
    for job in jobs:
        job.start(options, place, again=learnt is not None)
    try:
        while not all([job.poll() for job in jobs]):
            seconds = time.perf_counter() - begin
            if seconds > BOUND_S:
                sys.exit(f"{variant}: not within {BOUND_S} s")
            coordinator.passes(seconds)
            time.sleep(0.05)
        coordinator.end()
        return {job.name: job.figures(options, place) for job in jobs}, coordinator.turns
    finally:
        for process in (coordinator.process, *(job.process for job in jobs)):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(20)


def programs(options, base):
    """The three jobs."""
    ring = base / "ring"
    include, source = ROOT / "crates/client/include", ROOT / "tests/e2e/programs/ring.c"
    words = ["cc", "-std=gnu11", "-O2", "-pthread", "-I", include, source, "-o", ring]
    words += ["-L", options.outlive.parent, "-loutlive"]
    subprocess.run([str(word) for word in words], check=True)
    mpirun = ROOT / ".deps/mpich/bin/mpirun"
    heat, bodies = options.examples / "heat2d", options.examples / "nbody"
    nodes = lambda node, a, b: [(f"node:{node}", a), (f"node:{node}", b)]  # noqa: E731

    def job(name, count, words, step_us, rank_at, lost_at):
        steps = int(options.seconds * 1e6 / step_us)
        words = [steps if word == "STEPS" else word for word in words]
        fails = [*nodes(count - 1, *lost_at), ("rank:0", rank_at)]
        return Job(name, count, words, steps, fails)

    # Pauses make steps last, so that the seconds are those of the storage and not of cores.
    cells = ["1448", "1448"]  # 16 MiB
    heat = [mpirun, "-n", "2", heat, *cells, "STEPS", "RESULT", "--sleep-us", "80000"]
    ring = [ring, "RESULT", "4", "STEPS", str(1 << 18), "--sleep-us", "50000"]  # 8 MiB
    bodies = [bodies, "1000", "STEPS", "RESULT", "--threads", "1", "--sleep-us", "40000"]
    bodies += ["--trajectory", "trajectory", "--every", "8"]
    return [
        job("heat", 2, heat, 100_000, 0.75, (0.3, 0.6)),
        job("ring", 2, ring, 55_000, 0.45, (0.25, 0.7)),
        job("nbody", 1, bodies, 50_000, 0.2, (0.5, 0.8)),
    ]


def together(figures):
    """Of all jobs."""
    each = list(figures.values())
    mean = lambda row: statistics.mean(job[row] for job in each)  # noqa: E731
    return {row: mean(row) if row in MEANS else sum(job[row] for job in each) for row in ROWS}


def shown(values):
    """Median, least and most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def table(found):
    """Side by side: a line for each job and figure, then of all of them."""
    names = [*found["alone"][0][0], "all"]
    variants, others = list(found), list(found)[1:]
    heads = [*variants, *(f"{variant} - alone" for variant in others)]
    lines = ["| job | figure | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
    for name in names:
        for row, words in ROWS.items():
            of = lambda figures: (together(figures) if name == "all" else figures[name])[row]  # noqa: B023, E731
            values = {v: [of(figures) for figures, _ in found[v]] for v in variants}
            cells = [shown(values[variant]) for variant in variants]
            for variant in others:
                pairs = zip(values[variant], values["alone"], strict=True)
                cells.append(shown([one - other for one, other in pairs]))
            lines.append(f"| {name} | {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def same_results(place, jobs, first):
    """Every run computes the same, whatever failed."""
    for job in jobs:
        result = (place.local / job.name / "result").read_bytes()
        if first.setdefault(job.name, result) != result:
            sys.exit(f"{job.name}: another result")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=16.0, help="MiB/s of the shared directory")
    parser.add_argument("--seconds", type=float, default=36.0, help="of computing, about")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="alone, and others")
    parser.add_argument("--outlive", type=Path, default=ROOT / "target/release/outlive")
    parser.add_argument("--examples", type=Path, default=ROOT / "build/examples")
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--json", type=Path, help="writes the figures here too")
    options = parser.parse_args()
    if min(options.rounds, options.rate) <= 0 or options.seconds < 20:
        parser.error("--rounds and --rate are above 0, --seconds at least 20")
    for needed in (options.outlive, options.examples / "heat2d", options.examples / "nbody"):
        if not needed.exists():
            parser.error(f"{needed} is not there: make build, make -C examples")
    options.outlive, options.middle = options.outlive.resolve(), options.seconds / 2

    variants = options.variants.split(",")
    if variants[0] != "alone" or not set(variants) <= set(VARIANTS):
        parser.error(f"--variants are alone, and of {', '.join(VARIANTS[1:])}")
    found = {variant: [] for variant in variants}
    try:
        measure(options, found)
    finally:
        # Also of what was measured until something went wrong.
        tell(options, found)


def measure(options, found):
    """Runs of all variants, round by round."""
    first, variants = {}, list(found)
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        base = Path(directory)
        jobs = programs(options, base)
        place = Place(base, options.rate * (1 << 20))
        try:
            print(f"one writer has {place.rate() / (1 << 20):.1f} MiB/s", file=sys.stderr)
            run(options, place, jobs, "alone", None)
            same_results(place, jobs, first)
            # Two nodes of each job are lost in a run.
            learnt = place.learnt([job.name for job in jobs], options.seconds / 2)
            for turn in range(options.rounds):
                for number in range(len(variants)):
                    variant = variants[(number + turn) % len(variants)]
                    found[variant].append(run(options, place, jobs, variant, learnt))
                    same_results(place, jobs, first)
                    load = os.getloadavg()[0]
                    print(f"round {turn + 1}: {variant}; load {load:.1f}", file=sys.stderr)
        finally:
            place.close()


def tell(options, found):
    """The table of rounds that are complete."""
    rounds = min(len(runs) for runs in found.values())
    found = {variant: runs[:rounds] for variant, runs in found.items()}
    print(f"{rounds} rounds of {len(found)} runs\n")
    if rounds == 0:
        return
    print(table(found) + "\n")
    for variant in list(found)[1:]:
        print(f"{variant}: turns given before a kill, at the end {[t for _, t in found[variant]]}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
