"""`bench/turns.py`: what its table says of planted runs. The benchmark itself needs a file system
in user space, and takes minutes."""

import json
import sys
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import turns


def history(*words: tuple[float, str, dict]) -> list[dict]:
    """Lines of events."""
    return [{"at": at, "kind": kind, **more} for at, kind, more in words]


def test_the_age_of_what_is_safe_is_computing_since_its_capture() -> None:
    first = {"version": 1}
    lines = history(
        (10.0, "ranks-up", {}),
        (12.0, "captured", first),
        (12.5, "stable", first | {"level": "memory"}),
        # From 0 to 3 s of age while nothing is safe: 4.5.
        (13.0, "stable", first | {"level": "shared"}),
        # From 1 to 3: 4.
        (15.0, "failure", {}),
        # Time without computing counts for nothing.
        (16.0, "opened", {"restored": 1}),
        (20.0, "ranks-up", {}),
        # From 0 to 2: 2.
        (22.0, "ended", {}),
    )
    assert turns.age(lines) == pytest.approx((4.5 + 4.0 + 2.0) / 7.0)
    # Begun anew: what was computed and kept before is void.
    lines[5] = {"at": 16.0, "kind": "opened", "restored": None}
    assert turns.age(lines) == pytest.approx((4.5 + 4.0 + 2.0) / 7.0)


def figures(seconds: float, age: float) -> dict:
    """Of one job."""
    rest = {"blocked_s": 0.5, "lost_s": 2.0, "recovery_s": 1.0, "versions": 4, "kept_s": 1.5}
    return {"seconds": seconds, "age_s": age, **rest}


def test_differences_are_of_the_same_round() -> None:
    run = lambda *all: {f"job-{n}": figures(*one) for n, one in enumerate(all)}  # noqa: E731
    found = {
        "alone": [(run((10.0, 2.0), (20.0, 4.0)), [0, 0]), (run((30.0, 2.0), (40.0, 4.0)), [0, 0])],
        "turns": [(run((9.0, 1.0), (20.0, 4.0)), [0, 7]), (run((26.0, 1.0), (40.0, 2.0)), [0, 8])],
    }
    rows = [line.split(" | ") for line in turns.table(found).splitlines()]
    of = {(row[0].strip("| "), row[1]): [cell.strip(" |") for cell in row[2:]] for row in rows[2:]}
    words = turns.ROWS["seconds"]
    assert of["job-0", words] == [
        "20.00 (10.00..30.00)",
        "17.50 (9.00..26.00)",
        "-2.50 (-4.00..-1.00)",
    ]
    # Seconds are added up, ages are not.
    assert of["all", words][2] == "-2.50 (-4.00..-1.00)"
    assert of["all", turns.ROWS["age_s"]][0] == "3.00 (3.00..3.00)"
    assert of["all", turns.ROWS["age_s"]][2] == "-1.00 (-1.50..-0.50)"


def test_what_was_learnt_is_kept_and_failures_are_planted(tmp_path: Path) -> None:
    place = object.__new__(turns.Place)
    place.backing = tmp_path
    (tmp_path / "heat").mkdir()
    job = {"name": "heat", "checksum": 5, "learned": {"seconds": 3.0, "levels": {"disk": {}}}}
    (tmp_path / "heat" / "job.json").write_text(json.dumps(job))
    (tmp_path / "heat" / "key").write_bytes(b"k")
    kept = json.loads(place.learnt(["heat"], 30.0)["heat"]["job.json"])
    learned = kept["learned"]
    assert "checksum" not in kept and learned["levels"] == {"disk": {}}
    assert len(learned["failures"]) == turns.LOSSES
    assert learned["failures"][-1]["at"] <= learned["seconds"]
