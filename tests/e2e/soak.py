"""Turns of the soak: one job each, hurt in a way that a seed decides, and an oracle.

The oracle is the same for all: the job ends within its bound, and either with the bits
of a calm run or with an error that names what was done to it. What was committed is
never given up in silence: a run after one that was stopped goes on from a version that is
as new as what was stable then, or says that it cannot (OL-500).
"""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from harness import OUTLIVE, ROOT, Job, Result, Run, damage, kill, until

SHORT = ("--suspect-timeout", "100ms", "--dead-timeout", "500ms", "--heartbeat", "20ms")
BOUND_S = 90.0
"""Of a run; a calm one takes 2 s, a failure adds a few."""
KINDS = ("containers", "partner", "parity", "records")
GROUPS = {"partner": 3, "xor:4": 4, "xor:3": 6, "rs:3+2": 5, "rs:2+2": 8}
"""Levels that survive a node's loss, and nodes for them: one group, and two."""


@contextlib.contextmanager
def full_load() -> Iterator[None]:
    """Every core computes something else meanwhile."""
    words = [sys.executable, "-c", "while True: pass"]
    load = [subprocess.Popen(words) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def files(job: Job, *kinds: str) -> list[Path]:
    """What the nodes hold of these kinds."""
    return [
        path for node in range(job.nodes) for kind in kinds for path in job.containers(node, kind)
    ]


def protected(job: Job, chance: random.Random) -> str:
    """Copies at partners, or parities: drawn. In words, if it is not the usual."""
    job.beyond = chance.choice(list(GROUPS))
    if job.beyond == "partner":
        return ""
    job.nodes = GROUPS[job.beyond]
    job.ranks = max(job.ranks, job.nodes)
    memory = chance.choice(("memory,", ""))
    job.levels = f"{memory}disk,{job.beyond}"
    return f"{job.levels}: "


def tolerated(job: Job) -> int:
    """Nodes of which each group may lose so many at once."""
    return 2 if job.beyond.startswith("rs:") else 1


def right(job: Job, result: Result) -> None:
    """A good end with the bits of a calm run."""
    assert result.status == 0, f"ended with {result.status}: {result.err[-1500:]}"
    assert result.report["result"] == "finished", result.report["result"]
    job.check()


def unable(result: Result, status: int, code: str) -> None:
    """An end that names the true cause."""
    codes = result.codes("errors") if result.report else set()
    assert result.status == status, (
        f"ended with {result.status}, not {status}: {result.err[-1500:]}"
    )
    assert code in codes or code in result.err, f"{codes}: {result.err[-1500:]}"


def places(result: Result) -> list[str]:
    """Who failed, as the report says."""
    return sorted(failure["place"] for failure in result.failures)


def faults(job: Job, chance: random.Random) -> str:
    """One to three failures, each of which finds a protected job; two nodes at once where that is
    what the level survives."""
    how, specs = protected(job, chance), []
    for base in sorted(chance.sample((30, 75, 120), chance.randint(1, 3))):
        kind = chance.choice(("node", "node", "rank", "agent"))
        count = job.ranks if kind == "rank" else job.nodes
        when = f"{(base + chance.randrange(15)) * 5}ms" if kind == "agent" else ""
        first = chance.randrange(count)
        specs.append(f"{kind}:{first}@{when or f'version={base}'}")
        if kind == "node" and tolerated(job) == 2:
            second = chance.choice([node for node in range(count) if node != first])
            specs.append(f"node:{second}@version={base}")
    job.steps, job.spares = 160, 6
    for base in (30, 75, 120):
        job.hold(base - 1, 0)
    result = job.run(inject=tuple(specs), bound_s=BOUND_S)
    right(job, result)
    fatal = sorted(spec.split("@")[0] for spec in specs if not spec.startswith("agent"))
    assert places(result) == fatal, f"injected {specs}, reported {places(result)}"
    return how + " ".join(specs)


def calm(job: Job, chance: random.Random) -> str:
    """No failure under full load: none is reported, nobody is warned of."""
    del chance
    with full_load():
        result = job.run(bound_s=BOUND_S)
    right(job, result)
    assert result.failures == [], f"false alarm: {result.failures}"
    assert result.report["warnings"] == [], f"false alarm: {result.report['warnings']}"
    assert result.report["hangs"] == [], f"false alarm: {result.report['hangs']}"
    return "no failure under full load"


def halted(job: Job, chance: random.Random) -> int:
    """A run that is killed at some step; gives the version that was stable then."""
    step = chance.randrange(25, 90)
    door = job.dir / "door"
    job.hold(step - 1, 10)
    run = job.start(program=job.program("--pause", step, door))
    until("the program stands still", Path(f"{door}.reached").exists, 30)
    newest = job.settled(10)
    run.signal(9)
    run.process.wait(10)
    job.gone(20)
    for file in run.files:
        file.close()
    return newest


def purge_nodes(job: Job) -> None:
    """As a purge of scratch storage does."""
    for node in range(job.nodes):
        shutil.rmtree(job.node(node))


def purge_files(job: Job) -> None:
    """The same, which leaves directories."""
    for path in (job.home / "nodes").rglob("*"):
        if path.is_file():
            path.unlink()


def flip_records(job: Job) -> None:
    """One byte of each record."""
    for path in files(job, "records"):
        damage(path)


def remove_records(job: Job) -> None:
    """All of them."""
    for path in files(job, "records"):
        path.unlink()


def lost_history(job: Job, chance: random.Random) -> str:
    """Nothing can be proven any more: refused, nothing removed, and begun anew if asked."""
    levels = protected(job, chance)
    halted(job, chance)
    hurt: Callable[[Job], None] = chance.choice(
        (purge_nodes, purge_files, flip_records, remove_records)
    )
    hurt(job)
    before = {path: path.stat().st_size for path in files(job, "containers", "partner", "parity")}
    result = job.run(bound_s=BOUND_S)
    assert not result.said("fresh"), f"{hurt.__name__}: begun at step 0 without a word"
    unable(result, 80, "OL-500")
    assert "--fresh" in result.err, result.err[-1500:]
    after = {path: path.stat().st_size for path in files(job, "containers", "partner", "parity")}
    assert before == after, f"{hurt.__name__}: containers were removed"
    right(job, job.run("--fresh", bound_s=BOUND_S))
    return levels + hurt.__name__


def renamed(job: Job, chance: random.Random) -> str:
    """The job's directory under another name: refused with both names, whichever is asked for."""
    halted(job, chance)
    job.home.rename(job.store / "other")
    name = chance.choice(["other", "test"])
    words = [OUTLIVE, "run", "--job", name, "--store", job.store, "--report", job.report]
    words += ["--emulate-nodes", job.nodes, "--every", "10", "--", *job.program()]
    result = Run(job, [str(word) for word in words]).end(BOUND_S)
    assert not result.said("fresh"), "begun at step 0 without a word"
    assert result.status != 0 and "test" in result.err and "other" in result.err, result.err[-1500:]
    return f"renamed, run as {name}"


def hurt_one(job: Job, chance: random.Random) -> str:
    """The files of one node, or of two where that is what the level survives, damaged, cut off or
    gone between two runs: costs nothing."""
    levels = protected(job, chance)
    newest = halted(job, chance)
    told = []
    for node in chance.sample(range(job.nodes), tolerated(job)):
        how = chance.choice(("gone", "damaged", "cut off", "no records"))
        for path in [path for kind in KINDS for path in job.containers(node, kind)]:
            if how == "damaged":
                damage(path, chance.random())
            elif how == "cut off":
                os.truncate(path, chance.randrange(path.stat().st_size or 1))
            elif how == "gone" or path.parent.name == "records":
                path.unlink()
        told.append(f"node {node} {how}")
    result = job.run(bound_s=BOUND_S)
    right(job, result)
    assert result.said("restored"), "begun at step 0 without a word"
    assert min(result.said("restored")) >= newest, f"{result.said('restored')}, {newest} was stable"
    return levels + ", ".join(told)


def without_job_json(job: Job, chance: random.Random) -> str:
    """The job's own record gone or damaged: it goes on, or says so at once."""
    newest = halted(job, chance)
    path = job.home / "job.json"
    gone = chance.random() < 0.5
    path.unlink() if gone else damage(path, chance.random())
    result = job.run(bound_s=BOUND_S)
    if result.status == 0:
        right(job, result)
        assert result.said("restored") and min(result.said("restored")) >= newest, result.out
    else:
        known = ("OL-403", "OL-404", "OL-406", "OL-500")
        assert "job.json" in result.err and any(code in result.err for code in known), result.err
    return f"job.json {'gone' if gone else 'damaged'}: status {result.status}"


def two_launchers(job: Job, chance: random.Random) -> str:
    """Two at once on one job: one is refused, the other does not notice."""
    late = chance.random() < 0.5
    other = replace(job, dir=job.dir / "second")
    other.dir.mkdir()
    first = job.start()
    if late:
        until("the job runs", lambda: "rank 0" in first.text(), 30)
    # At once, either may be first: both would run the program.
    at = first.words.index("--")
    words = [*first.words[:at], "--", "true"] if late else list(first.words)
    words[words.index("--report") + 1] = str(other.report)
    second = Run(other, words)
    results = [second.end(BOUND_S), first.end(BOUND_S)]
    refused = [result for result in results if result.status == 75]
    assert len(refused) == 1, [result.status for result in results]
    assert "OL-502" in refused[0].err, refused[0].err
    job.check()
    ended = next(result for result in results if result.status != 75)
    assert ended.status == 0 and ended.failures == [], ended.failures
    return "late" if late else "at once"


def unranked(job: Job, chance: random.Random) -> str:
    """Processes that do not say which rank they are: their own results, or a refusal."""
    program, steps, count = build(job, "unranked"), 80, chance.randint(2, 4)
    outs = [job.dir / f"out-{nth}" for nth in range(count)]
    starts = [chance.randrange(1, 1000) for _ in outs]
    each = [f"{program} {out} {start} {steps} &" for out, start in zip(outs, starts, strict=True)]
    job.nodes, when = 1, chance.randrange(20, 60)
    command = ["/bin/sh", "-c", " ".join([*each, "wait"])]
    result = job.run(
        "--every", "5", program=command, inject=(f"rank:0@version={when}",), bound_s=BOUND_S
    )
    for out, value in zip(outs, starts, strict=True):
        for step in range(steps):
            value = (value * 3 + step) % 2**64
        if out.exists():
            assert int(out.read_text()) == value, f"{out.name} is wrong, status {result.status}"
        else:
            assert "OL-200" in result.err or "OL-201" in result.err, result.err[-1500:]
    return f"{count} processes, {sum(out.exists() for out in outs)} finished"


def build(job: Job, name: str) -> Path:
    """A program of tests/e2e/programs, beside the ring."""
    built = job.ring.parent / name
    if not built.exists():
        words = ["cc", "-std=gnu11", "-O1", "-I", ROOT / "crates" / "client" / "include"]
        words += [Path(__file__).parent / "programs" / f"{name}.c", "-o", built]
        words += ["-L", built.parent, "-loutlive"]
        subprocess.run([str(word) for word in words], check=True, timeout=60)
    return built


def big_forced(job: Job, chance: random.Random) -> str:
    """Forced captures so big that they take longer than a node may be silent."""
    job.ranks, job.nodes, job.steps = 2, 2, 12
    mib = chance.choice((64, 256, 512, 768))
    job.cells = mib * (1 << 20) // 8 // job.ranks
    force = chance.randint(2, 4)
    options = (*SHORT, "--memory", f"{2 * mib + 64}MiB")
    survives = chance.choice(("process", "node-crash", "node-loss"))
    program = job.program("--force", force, "--wait", survives)
    # No policy: only what is forced is captured.
    result = job.run(*options, "--every", "1000000", program=program, bound_s=2 * BOUND_S)
    assert result.status == 0, f"ended with {result.status}: {result.err[-1500:]}"
    job.check(program)
    assert result.failures == [], f"false alarm: {result.failures}"
    assert result.report["checkpoints"]["taken"] > 0, result.report["checkpoints"]
    return f"{mib} MiB, each {force} steps"


def agents_in_captures(job: Job, chance: random.Random) -> str:
    """Agents killed while forced captures are under way: the job goes on, and checkpoints
    with it."""
    job.cells, job.steps = 400_000, 160
    program = job.program("--force", chance.randint(3, 9))
    run = job.start("--every", "1000000", program=program)
    began, kills = time.monotonic(), 0
    until("a version is stable", lambda: job.stable() >= 0 or run.process.poll() is not None, 30)
    for _ in range(chance.randint(1, 3)):
        until_next = time.monotonic() + chance.random() * 0.5
        while time.monotonic() < until_next:
            time.sleep(0.005)
        agents = run.pids("agent")
        if agents and run.process.poll() is None:
            kill(agents[chance.choice(sorted(agents))])
            kills += 1
    result = run.end(BOUND_S)
    seconds = time.monotonic() - began
    assert result.status == 0, f"ended with {result.status}: {result.err[-1500:]}"
    job.check(program)
    assert seconds < 45, f"{kills} agents killed: {seconds:.0f} s, calm it takes 3"
    return f"{kills} agents killed"


def full_disks(job: Job, chance: random.Random) -> str:
    """A disk runs full, then a node is lost, perhaps the partner: copies that can be read
    are used, and spares take the place of the lost."""
    job.nodes, job.ranks, job.steps = 4, 8, 180
    full = chance.randrange(job.nodes)
    lost = chance.choice([node for node in range(job.nodes) if node != full])
    first = 30 + chance.randrange(30)
    then = first + 20 + chance.randrange(40)
    specs = (f"full:node:{full}@version={first}", f"node:{lost}@version={then}")
    result = job.run(inject=specs, bound_s=BOUND_S)
    if result.status == 80 and "partner" not in result.report["checkpoints"]["last"]:
        # A busy machine may leave out all versions before the disk is full: then no copy
        # was promised to survive the node, and the job must say so.
        unable(result, 80, "OL-500")
        assert "partner and shared survive" in result.err, result.err[-1500:]
    else:
        right(job, result)
    assert f"node:{lost}" in places(result), places(result)
    return " ".join(specs)


def purged(job: Job, chance: random.Random) -> str:
    """Storage of some or all nodes purged under a running job, then a node lost: what was saved
    after the purge serves."""
    job.nodes, job.ranks, job.steps = 4, 8, 1500
    part = chance.choice(("", "containers", "partner", "records"))
    hurt = sorted(chance.sample(range(job.nodes), chance.randint(1, job.nodes)))
    lost = chance.randrange(job.nodes)
    run = job.start()

    def reaches(count: int) -> bool:
        """So many more versions become stable before the job ends."""
        for _ in range(count):
            before = job.stable()
            until(
                "another version is stable",
                lambda before=before: job.stable() > before or run.process.poll() is not None,
                30,
            )
        return run.process.poll() is None

    told = f"{part or 'all'} of nodes {hurt}"
    if reaches(1):
        for node in hurt:
            shutil.rmtree(job.node(node) / part, ignore_errors=True)
    # The first may have been written before the purge, the second was not.
    keepers = run.pids("keeper") if reaches(2) else {}
    if lost in keepers:
        kill(keepers[lost])
        told += f", then node {lost} lost"
    result = run.end(BOUND_S)
    right(job, result)
    return told


TURNS: dict[str, Callable[[Job, random.Random], str]] = {
    turn.__name__: turn
    for turn in (
        faults,
        lost_history,
        hurt_one,
        two_launchers,
        agents_in_captures,
        full_disks,
        purged,
        unranked,
        big_forced,
        renamed,
        without_job_json,
        calm,
    )
}


def drawn(seed: int, kinds: list[str]) -> tuple[str, random.Random]:
    """The turn of a seed, and what it draws from."""
    chance = random.Random(seed)
    return chance.choice(kinds), chance
