"""`bench/rescue.py`: the table that says what checkpoints cost a run, and what they save it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BOUND_S, OUTLIVE, ROOT, mpich, program
from skip import skip

sys.path.insert(0, str(ROOT / "bench"))
import rescue


def test_the_percentages_are_those_of_the_table() -> None:
    """Of planted seconds: 10 s alone, 16 s begun anew, 11 s with checkpoints, 12 s rescued."""
    planted = ([10.0, 9.0, 12.0], [16.0], [11.0, 11.0], [8.0, 12.0, 14.0])
    found = rescue.figures(dict(zip(rescue.RUNS, planted, strict=True)))
    assert found["overhead_percent"] == pytest.approx(10.0)
    assert found["saved_percent"] == pytest.approx(25.0)


def test_a_run_that_was_not_hit_is_no_figure() -> None:
    report = {"restarts": 0, "checkpoints": {"stable": {"partner": 3}}}
    rescue.check("calm", report, True, False)
    for saves, fails in ((False, False), (True, True)):
        with pytest.raises(SystemExit):
            rescue.check("not as meant", report, saves, fails)


def test_the_four_runs_end_with_the_same_result(tmp_path: Path) -> None:
    mpich(8)
    heat2d = program("heat2d")
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    # Steps of some milliseconds: so that versions are there before the error comes.
    words = ("--rounds", "1", "--steps", "4", "--cells", "768", "--heat2d", heat2d)
    where = ("--outlive", OUTLIVE, "--dir", tmp_path, "--json", tmp_path / "figures")
    line = [sys.executable, ROOT / "bench/rescue.py", *words, *where]
    done = subprocess.run(line, capture_output=True, text=True, timeout=4 * BOUND_S)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures").read_text())
    assert list(figures["seconds"]) == list(rescue.RUNS)
    assert all(len(values) == 1 and values[0] > 0 for values in figures["seconds"].values())
    said = rescue.figures(figures["seconds"])
    assert said["saved_percent"] == pytest.approx(figures["saved_percent"])
    assert f"{said['overhead_percent']:.1f} %" in done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "figures"]
