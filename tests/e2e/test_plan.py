"""outlive plan: what it says, what it draws, and what bad input gets."""

import copy
import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from harness import OUTLIVE
from sample_report import REPORT

RECORD = """start,node,end,kind
2001-10-28T06:00:00Z,3,2001-10-28T07:00:00Z,fatal
2001-10-28T01:30:00-07:00,4,,light
2001-11-02T00:00:00Z,900,2001-11-02T05:00:00Z,fatal
"""


def plan(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [OUTLIVE, "plan", *words], capture_output=True, text=True, timeout=120, cwd=cwd
    )


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A directory with the machine and the job that the command offers to start from."""
    for which in ("machine", "job"):
        done = plan("--example", which, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (tmp_path / f"{which}.toml").write_text(done.stdout)
    (tmp_path / "trace.csv").write_text(RECORD)
    return tmp_path


FILES = ("--machine", "machine.toml", "--job", "job.toml")


def test_a_plan_in_words_and_as_a_picture(pair: Path) -> None:
    done = plan(*FILES, "--compare", "all", "--trace", "trace.csv", "--plot", "p.svg", cwd=pair)
    assert done.returncode == 0, done.stderr
    for part in (
        "Checkpoint after every",
        "Expected:",
        "What would help most",
        "Daly, FGCS",
        "The record: 3 failures",
    ):
        assert part in done.stdout
    assert ElementTree.parse(pair / "p.svg").getroot().tag.endswith("svg")


def test_no_known_method_is_better(pair: Path) -> None:
    done = plan(*FILES, "--compare", "all", "--json", cwd=pair)
    answer = json.loads(done.stdout)
    assert answer["schema"] == "outlive.plan/1"
    assert [level for level in answer["levels"] if level["every"]]
    best = answer["expected"]["seconds"]
    ended = [m["expected"]["seconds"] for m in answer["methods"] if m["expected"]["seconds"]]
    assert ended and all(other >= best * (1 - 1e-6) for other in ended)


@pytest.mark.parametrize(
    ("file", "was", "now", "said"),
    [
        ("machine", "count = 1024", "count = 0", "line 6: a machine of 0 nodes"),
        ("machine", '"8 years"', '"8"', "line 7: '8' has no unit"),
        ("machine", "size = 32", 'nodes = ["0-5000"]', "line 14: group rack: node 5000 does not"),
        ("machine", '"2 GB/s"', '"-2 GB/s"', "is negative"),
        (
            "machine",
            "stride = 32\nwrite",
            "stride = 300\nwrite",
            "line 40: sets of 8 nodes, 300 apart",
        ),
        ("machine", 'servers = "files"', 'servers = "disk"', "not described"),
        ("job", "nodes = 1024", "nodes = 2048", "line 3: a job of 2048 nodes"),
        ("job", '"40 GB"', '"40 PB"', "no level saves it often enough"),
        ("job", '"4 s"', '"40 years"', "no level saves it often enough"),
        ("trace", "2001-11-02T00", "2001-10-02T00", "line 4: 2001-10-02T00:00:00Z is before"),
        ("trace", "2001-11-02T00", "2201-11-02T00", "is over 100 years after the first"),
        ("trace", ",900,", ",1024,", "line 4: node '1024' is none"),
        ("trace", "-07:00", "", "line 3: '2001-10-28T01:30:00' is a local time"),
    ],
)
def test_bad_input_is_told_with_line_and_remedy(
    pair: Path, file: str, was: str, now: str, said: str
) -> None:
    path = pair / ("trace.csv" if file == "trace" else f"{file}.toml")
    text = path.read_text()
    assert was in text
    path.write_text(text.replace(was, now, 1))
    done = plan(*FILES, "--trace", "trace.csv", cwd=pair)
    assert done.returncode == 78
    assert "OL-600" in done.stderr and said in done.stderr and "remedy:" in done.stderr
    assert done.stdout == ""


LOCAL = """\
[nodes]
count = 64
mtbf = "1 year"
[[levels]]
kind = "local"
write = "2 GB/s"
read = "4 GB/s"
"""
PARTNER = """\
[[groups]]
name = "all"
size = 64
mtbf = "20 h"
[[levels]]
kind = "partner"
write = "2 GB/s"
read = "4 GB/s"
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "no level survives any of these failures: local"),
        (PARTNER, "none of its levels (local, partner) survives every failure"),
    ],
)
def test_a_machine_that_no_level_survives_is_no_plan(pair: Path, more: str, said: str) -> None:
    (pair / "machine.toml").write_text(LOCAL + more)
    (pair / "job.toml").write_text('nodes = 64\nwork = "300 days"\ncheckpoint = "4 GB"\n')
    done = plan(*FILES, cwd=pair)
    assert (done.returncode, done.stdout) == (78, "")
    assert said in done.stderr and "remedy: add a level that" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('capture = "4 s"', 'capture = "20 h"', "Note: a capture takes 20 h, longer than the"),
        ('restart = "2 min"', 'restart = "20 h"', "Note: a restart from files takes 20 h"),
        ('checkpoint = "40 GB"', 'checkpoint = "4 TB"', "Note: a write to files takes 18 h 58 min"),
    ],
)
def test_costs_longer_than_the_machine_lives_are_said(
    pair: Path, was: str, now: str, said: str
) -> None:
    text = (pair / "job.toml").read_text()
    assert was in text
    (pair / "job.toml").write_text(text.replace(was, now))
    done = plan(*FILES, cwd=pair)
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
    assert "would help" in done.stdout or "more often than not" in done.stdout


def test_what_is_learned_from_the_first_part_is_tried_on_the_rest(pair: Path) -> None:
    kind = ("light", "fatal", "fatal")
    lines = [f"{n * 4000},{n * 37 % 1024},,{kind[n % 3]}" for n in range(200)]
    (pair / "long.csv").write_text("\n".join(["start,node,end,kind", *lines, ""]))
    words = (*FILES, "--trace", "long.csv", "--train", "0.5", "--compare", "all", "--json")
    answer = json.loads(plan(*words, cwd=pair).stdout)
    # A stop every 4000 s, not what the machine's file says.
    assert answer["stops_per_hour"] == pytest.approx(0.9, rel=0.05)
    assert answer["trace"]["replayed_days"] == pytest.approx(answer["trace"]["days"] / 2)
    names = [one["name"] for one in answer["trace"]["replay"]]
    assert names[0] == "this plan" and names[-1] == "learning" and "daly" in names
    assert all(0 < one["share"] < 1 for one in answer["trace"]["replay"])
    done = plan(*FILES, "--train", "0.5", cwd=pair)
    assert done.returncode == 64


@pytest.mark.parametrize(("which", "nodes"), [("exascale", 1024), ("spot", 32), ("lab", 8)])
def test_machines_to_start_from_can_be_planned_for(pair: Path, which: str, nodes: int) -> None:
    done = plan("--example", which, cwd=pair)
    (pair / "other.toml").write_text(done.stdout)
    job = f'nodes = {nodes}\nwork = "10 days"\ncheckpoint = "4 GB"\nrestart = "1 min"\n'
    (pair / "small.toml").write_text(job)
    done = plan("--machine", "other.toml", "--job", "small.toml", cwd=pair)
    assert done.returncode == 0, done.stderr
    assert "Checkpoint after every" in done.stdout


NODES = """\
NodeName=tux0 Arch=x86_64 State=IDLE Partitions=batch
NodeName=tux1 Arch=x86_64 State=ALLOCATED Partitions=batch
NodeName=tux2 Arch=x86_64 State=DOWN*+DRAIN Partitions=batch
NodeName=tux3 Arch=x86_64 State=IDLE Partitions=batch
"""


def test_a_machine_from_what_slurm_prints(pair: Path) -> None:
    place = pair / "recorded"
    place.mkdir()
    (place / "nodes.txt").write_text(NODES)
    (place / "topology.conf").write_text(
        "SwitchName=s0 Nodes=tux[0-1]\nSwitchName=s1 Nodes=tux[2-3]\n"
        "SwitchName=top Switches=s[0-1]\n"
    )
    (place / "sacct.txt").write_text(
        "State|ElapsedRaw|NNodes\nCOMPLETED|7200000|4\nNODE_FAIL|1800|4\n"
    )
    done = plan("--from-slurm", "recorded", cwd=pair)
    assert done.returncode == 0, done.stderr
    assert "1 job ended by NODE_FAIL" in done.stdout and 'name = "recorded"' in done.stdout
    (pair / "slurm.toml").write_text(done.stdout)
    job = 'nodes = 4\nwork = "10 days"\ncheckpoint = "4 GB"\n'
    (pair / "small.toml").write_text(job)
    done = plan("--machine", "slurm.toml", "--job", "small.toml", cwd=pair)
    assert done.returncode == 0, done.stderr
    (place / "topology.conf").write_text("SwitchName=s0 Nodes=tux[0-\n")
    done = plan("--from-slurm", "recorded", cwd=pair)
    assert done.returncode == 78
    assert "line 1: 'tux[0-' has brackets" in done.stderr and "remedy:" in done.stderr


def test_a_run_is_judged_by_its_report(pair: Path) -> None:
    report = copy.deepcopy(REPORT)
    report["failures"][0] |= {"at_version": 300, "at_seconds": 3000.0, "relaunch_ms": 10000.0}
    report["failures"][0] |= {"version": 105, "versions_lost": 195}
    report["checkpoints"]["last"] = {"partner": 900}
    report["seconds"] = 11000.0
    (pair / "report.json").write_text(json.dumps(report))
    done = plan("--report", "report.json", cwd=pair)
    assert done.returncode == 0, done.stderr
    assert "1 failure, 1 of them injected" in done.stdout
    assert "it would have paid" in done.stdout
    report["schema"] = "outlive.report/9"
    (pair / "report.json").write_text(json.dumps(report))
    done = plan("--report", "report.json", cwd=pair)
    assert done.returncode == 78 and "outlive.report/9" in done.stderr
