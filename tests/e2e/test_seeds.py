"""The seed of a test that failed is kept, and run first until it is removed (tests/seed.py)."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from seed import FAILED, VARIABLE, file, keep

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import os, sys
import pytest
sys.path.insert(0, {tests!r})
from seed import seed as seed

WRONG = os.environ.get("WRONG")

@pytest.fixture
def leaves():
    yield
    assert WRONG != "afterwards"

@pytest.mark.parametrize("case", ["a", "b"])
def test_one(seed, case, leaves):
    assert WRONG not in ("always", str(seed)) or case == "b"

def test_without():
    assert WRONG != "always"
"""


def run(directory: Path, wrong: str = "", seed: str = "") -> str:
    """What pytest says of these tests, and whether any failed."""
    environment = os.environ | {FAILED: str(directory / "failed"), "WRONG": wrong}
    environment |= {VARIABLE: seed}
    (directory / "test_it.py").write_text(TESTS.format(tests=str(ROOT / "tests")))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(
        words, cwd=directory, env=environment, capture_output=True, text=True, timeout=60
    )
    failed = wrong != "" and wrong != seed
    assert done.returncode == (1 if failed else 0), done.stdout + done.stderr
    return done.stdout


def kept(directory: Path) -> dict[str, list[int]]:
    """Seeds by file."""
    files = (directory / "failed").glob("*")
    return {one.name: [int(line) for line in one.read_text().splitlines()] for one in files}


def test_a_seed_that_failed_is_run_until_it_is_removed(tmp_path: Path) -> None:
    name = "test_it.py::test_one[a]"
    run(tmp_path)
    assert kept(tmp_path) == {}
    said = run(tmp_path, "always")
    assert list(kept(tmp_path)) == [name], said
    [number] = kept(tmp_path)[name]
    where = tmp_path / "failed" / name
    assert f"seed {number} is kept in {where}" in said
    # It fails again, with the same: kept once.
    run(tmp_path, str(number))
    assert kept(tmp_path) == {name: [number]}
    # Run also when it passes, which is said.
    assert f"{name}: seed {number}, which failed before, is run" in run(tmp_path)
    # The variable goes before it.
    assert "failed before" not in run(tmp_path, seed=str(number + 1))
    where.unlink()
    assert "failed before" not in run(tmp_path)
    # What fails after the test is the test's.
    run(tmp_path, "afterwards")
    assert set(kept(tmp_path)) == {name, name.replace("[a]", "[b]")}


def test_the_soak_begins_with_seeds_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FAILED, str(tmp_path / "failed"))
    monkeypatch.delenv(VARIABLE, raising=False)
    found = importlib.util.spec_from_file_location("long_soak", ROOT / "scripts/soak.py")
    assert found and found.loader
    soak = importlib.util.module_from_spec(found)
    found.loader.exec_module(soak)

    def first(name: str, number: int | None = None) -> list[int]:
        return list(itertools.islice(soak.seeds(name, number), 4))

    for number in (5, 3, 5):
        assert str(file("scripts/soak.py purge")) in keep("scripts/soak.py purge", number)
    begun = first("scripts/soak.py purge")
    assert begun[:2] == [5, 3] and begun[3] == begun[2] + 1
    assert "seed 5, which failed before" in capsys.readouterr().out
    assert first("scripts/soak.py purge", 9) == [9, 10, 11, 12]
    other = first("scripts/soak.py")
    assert other == [other[0] + nth for nth in range(4)]
