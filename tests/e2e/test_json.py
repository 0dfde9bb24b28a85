"""What commands answer as JSON is what docs/reference/json.md says, field by field."""

import json
import os
import re
import subprocess
from pathlib import Path

from harness import OUTLIVE, ROOT, Job, damage, newest_of
from sample_report import REPORT

# Described elsewhere: in report.md, under Errors, in words.
ELSEWHERE = set(
    "learned attribution report problem refusal error damaged limit goal findings".split()
)
# Of each balancing.
FIGURES = set(
    """imbalance imbalance_before migration migration_total migration_least
    migration_total_least edge_cut_max edge_cut_total volume_total seconds_max_per_process
    iterations messages_max rounds rounds_flow rounds_refine operations_max operations_borders
    operations_refine operation_ns memory_bytes_max converged fresh""".split()
)
SPANS = {"mean", "min", "median", "p99", "max"}

# Commands that need no job, and schemas of theirs.
RESEARCH = (
    "outlive.simulate",
    "outlive.balance",
    "outlive.bench",
    "outlive.memory",
    "outlive.minickpt",
    "outlive.noise",
    "outlive.pages",
    "outlive.plan",
    "outlive.quiet",
)
# Compared with a job that runs: test_view.py.
OF_A_JOB_THAT_RUNS = ("outlive.top/", "outlive.events/")
# Shown by a test of the command: they need the module.
OF_THE_MODULE = {"outlive.minickpt.status/1", "outlive.minickpt.last/1"}
# Compared under each MPI that is here: test_noise_mpi.py.
OF_AN_MPI = {"outlive.noise-mpi/1"}
# Written into a file: test_pages.py.
OF_A_RUN = {"outlive.pages-run/1"}
# Of real jobs: test_bench.py.
OF_A_BENCHMARK = {"outlive.bench.levels/1", "outlive.bench.tiers/1"}
# Compared with a server that runs: test_memory_server.py.
OF_A_SERVER = {"outlive.memory/1", "outlive.memory-server/1"}
# Compared while cores are quiet: test_quiet.py.
OF_QUIET_CORES = {"outlive.quiet/1"}
# Of protections that this machine may refuse: test_noise_compare.py.
OF_PROTECTIONS = {"outlive.noise-compare/1"}
# Where calls can be forwarded: test_decouple.py.
OF_FORWARDING = {"outlive.noise-forward/1"}


def documented() -> dict[str, set[str]]:
    """Names of fields by schema and kind."""
    page = (ROOT / "docs" / "reference" / "json.md").read_text()
    found = {}
    for title, table in re.findall(r"<!-- fields: (.*?) -->\n\n((?:\|.*\n)+)", page):
        cells = [row.split("|")[1] for row in table.splitlines()[2:]]
        for kind in title.split()[1:] or [""]:
            name = f"{title.split()[0]} {kind}".strip()
            found[name] = set(re.findall(r"`([^`]+)`", " ".join(cells)))
    return found


def fields(value: object, path: str = "") -> set[str]:
    """All names in a document."""
    found = set()
    if isinstance(value, dict) and set(value) != SPANS:
        for key, below in value.items():
            name = f"{path}.{key}" if path else key
            found.add(name)
            found |= set() if key in ELSEWHERE else fields(below, name)
    elif isinstance(value, list):
        for below in value:
            found |= fields(below, f"{path}[]")
    return found


def two_names_of_this_machine(directory: Path) -> tuple[str, ...]:
    """As hosts, with a shell that leads to them."""
    shell, hosts = directory / "shell", directory / "hosts"
    shell.write_text('#!/bin/sh\nexec sh -c "$2"\n')
    shell.chmod(0o755)
    hosts.write_text("one\ntwo\n")
    return str(hosts), "--remote-shell", str(shell)


def test_every_field_is_documented_and_every_documented_field_appears(job: Job) -> None:
    job.hold(40, 0)
    job.hold(100, 50)
    job.survive("--levels", "memory,disk,partner,xor:3", "--keep", "2")
    for n in range(2):  # the newest version cannot be rebuilt
        newest = newest_of(job.containers(n))
        damage(newest)
    partner = newest_of(job.containers(1, "partner"))
    damage(partner)
    newest = str(job.checkpoints()[0]["version"])
    found: dict[str, set[str]] = {}

    def ask(*words: str) -> None:
        done = subprocess.run(
            [OUTLIVE, *words, "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            env=job.environment(),
            cwd=job.dir,
        )
        answer = json.loads(done.stdout)
        name = f"{answer['schema']} {answer.get('kind', '')}".strip()
        found.setdefault(name, set()).update(fields(answer))

    store, named = ("--store", str(job.store)), ("--job", "test")
    ask("status", *store)
    ask("checkpoints", *store)
    ask("status", *store, *named)
    ask("checkpoints", "list", *store, *named)
    ask("checkpoints", "show", newest, *store, *named)
    ask("checkpoints", "verify", *store, *named)
    ask("checkpoints", "rehearse", "--lose", "node:2", *store, *named)
    older = str(job.checkpoints()[1]["version"])
    ask("checkpoints", "prune", "--keep", "1", "--dry-run", *store, *named)
    ask("checkpoints", "pin", older, *store, *named)
    ask("checkpoints", "unpin", older, *store, *named)
    for path in job.home.rglob(f"i*-v{older}-n2.olc"):
        path.unlink()
    ask("checkpoints", "diff", older, newest, *store, *named)
    ask("checkpoints", "values", *store, *named)
    ask("config", "explain")
    ask("doctor")
    ask("health", "--interval", "100ms")
    ask("doctor", "--hosts", *two_names_of_this_machine(job.dir))
    # A program that has lines.
    with subprocess.Popen([OUTLIVE, "coordinator", *store], cwd=job.dir) as running:
        ask("stacks", str(running.pid))
        running.kill()
    ask("checkpoints", "delete", "test", "--yes", *store)
    elsewhere = RESEARCH + OF_A_JOB_THAT_RUNS
    said = {name: names for name, names in documented().items() if not name.startswith(elsewhere)}
    said["outlive.checkpoints/1 show"].discard("damaged")
    values = said["outlive.checkpoints/1 values"]
    # Of numbers: tests/e2e/test_freshness.py.
    values -= {name for name in values if name.startswith("versions[].regions[].")}
    # Of machines: tests/cluster. Of slots: tests/e2e/test_slots.py.
    said["outlive.status/1"].discard("job.hosts")
    assert set(found) == set(said)
    for name, names in found.items():
        assert names == said[name], f"{name}: {names ^ said[name]}"


def test_research_commands_answer_as_documented(tmp_path: Path) -> None:
    graph = tmp_path / "path.graph"
    graph.write_text("4 3\n2\n1 3\n2 4\n3\n")
    found: dict[str, set[str]] = {}
    said = documented()
    assert said["outlive.balance/1"] >= FIGURES

    def ask(line: str) -> None:
        done = subprocess.run(
            [OUTLIVE, *line.split(), "--json"],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
        )
        answer = json.loads(done.stdout)
        found.setdefault(answer["schema"], set()).update(fields(answer))

    ask("simulate commit --seeds 1")
    ask("simulate broadcast --processes 8")
    ask("simulate broadcast --processes 8 --dissemination acknowledged-tree")
    ask("simulate broadcast --processes 8 --dissemination spanning-trees:2 --broadcasts 2")
    ask("simulate jobs --intervals 16")
    ask("simulate levels --sizes 6 --intervals 16")
    ask("simulate policy --runs 2")
    ask("simulate turns --runs 2 --days 5 --mixes 2")
    for which in ("machine", "job"):
        example = subprocess.check_output([OUTLIVE, "plan", "--example", which], timeout=60)
        (tmp_path / f"{which}.toml").write_bytes(example)
    lines = [f"{n * n * 1000},{n},{n * n * 1000 + 60 + n}" for n in range(40)]
    (tmp_path / "record.csv").write_text("\n".join(["start,node,end", *lines]))
    ask("plan --machine machine.toml --job job.toml --compare all --trace record.csv")
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    ask("plan --report report.json")
    ask("noise fwq --samples 50 --quantum-us 100")
    ask("noise ftq --samples 50 --quantum-us 100")
    ask("noise variation --runs 2 --run-ms 1")
    ask(f"pages status --pid {os.getpid()}")
    ask("pages bench --kernels chase --mib 8 --rounds 1 --calls 1")
    ask("simulate reduce --processes 8")
    ask("simulate barrier --processes 8")
    ask("balance --graph path.graph --parts 2")
    ask("balance replay hot-spot --processes 4 --steps 1")
    ask("bench simulate --rounds 1")
    ask("bench collectives-cost --log2-processes 2")
    ask("bench balance --scenario hot-spot --processes 4 --steps 1 --peers none")
    ask("bench hybrid --processes 64")
    ask("minickpt setup")
    for names in found.values():  # figures are described once
        for item, told in (("lines[].", {"lines[].figures"}), ("steps[].", {"figures"})):
            figures = {item + name for name in FIGURES}
            if figures <= names:
                names.difference_update(figures, FIGURES)
                names.update(told)
    said = {name: names for name, names in said.items() if name.startswith(RESEARCH)}
    elsewhere = OF_THE_MODULE | OF_AN_MPI | OF_A_RUN | OF_A_SERVER | OF_QUIET_CORES
    elsewhere |= OF_A_BENCHMARK | OF_PROTECTIONS | OF_FORWARDING
    assert set(found) == set(said) - elsewhere
    goals = {name for name in said["outlive.bench.balance/1"] if name.startswith("goals[]")}
    found["outlive.bench.balance/1"] |= goals  # without a peer there may be none
    for name, names in found.items():
        assert names == said[name], f"{name}: {sorted(names ^ said[name])}"
