"""outlive plan: what it says, what it draws, and what bad input gets."""

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from harness import OUTLIVE

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
        ("machine", "count = 1024", "count = 0", "line 5: a machine of 0 nodes"),
        ("machine", '"8 years"', '"8"', "line 7: '8' has no unit"),
        ("machine", 'servers = "files"', 'servers = "disk"', "not described"),
        ("job", "nodes = 1024", "nodes = 2048", "line 3: a job of 2048 nodes"),
        ("job", '"40 GB"', '"40 PB"', "no level saves it often enough"),
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
