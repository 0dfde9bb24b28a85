"""Health of the nodes of a job that runs, on a machine that is made of files."""

import json
import subprocess
from pathlib import Path

from harness import OUTLIVE, Job, until

UNCORRECTED = "sys/devices/system/edac/mc/mc0/ue_count"
FIELDS = {"sensor", "source", "verdict", "judged", "value", "per_second", "limit", "reason"}


def plant(root: Path, path: str, text: str) -> None:
    """A file of the machine, whole at once."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def ask(job: Job, *words: str) -> str:
    """What a command says of the job."""
    line = [OUTLIVE, *words, "--store", str(job.store), "--job", "test"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=job.environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def health(job: Job) -> dict[int, dict]:
    """By node, as `outlive status` says it."""
    if not (job.home / "view" / "live.json").exists():
        return {}
    answer = json.loads(ask(job, "status", "--json"))
    return {entry["node"]: entry for entry in answer["health"]}


def test_a_planted_fault_is_seen_while_the_job_runs(job: Job) -> None:
    root = job.dir / "machine"
    plant(root, "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 500 kB\n")
    plant(root, UNCORRECTED, "0\n")
    job.extra["OUTLIVE_HEALTH_ROOT"] = str(root)
    metrics = job.dir / "numbers.prom"
    enough = job.dir / "enough"
    program = job.program("--until", enough)
    limits = "storage-free=off,storage-inodes=off"
    words = ("--health-interval", "200ms", "--health-limits", limits, "--metrics", str(metrics))
    run = job.start(*words, program=program)

    def all_are(verdict: str) -> bool:
        found = health(job)
        return len(found) == job.nodes and all(it["verdict"] == verdict for it in found.values())

    until("all nodes are well", lambda: all_are("ok"))
    assert "\nhealth " not in ask(job, "status")
    plant(root, UNCORRECTED, "2\n")
    until("all nodes are failing", lambda: all_are("failing"))
    finding = health(job)[1]["findings"][0]
    assert set(finding) == FIELDS
    assert (finding["sensor"], finding["source"], finding["value"]) == ("ecc-uncorrected", "mc0", 2)
    assert "health       node 1 failing: ecc-uncorrected of mc0: 2, limit 1" in ask(job, "status")
    assert "HEALTH" in ask(job, "top", "--once")
    line = 'sensor="ecc-uncorrected",source="mc0",verdict="failing"} 2'
    until("metrics have it", lambda: line in metrics.read_text())
    # A device that is gone has not become well.
    (root / UNCORRECTED).unlink()
    until("it is gone", lambda: "is gone" in (health(job)[1]["findings"][0]["reason"] or ""))
    assert all_are("failing")
    enough.touch()
    result = run.end()
    assert result.status == 0, result.err
    job.check(program)
    assert not result.report["warnings"], "a machine's health is no fault of the job"
    told = [text for text in ask(job, "logs").splitlines() if "ecc-uncorrected" in text]
    assert len(told) == job.nodes, told
    of_one = [text for text in ask(job, "logs", "--node", "1").splitlines() if "ecc-" in text]
    assert len(of_one) == 1 and "health of node 1: failing" in of_one[0]
    assert result.err.count("failing: ecc-uncorrected of mc0") == job.nodes
