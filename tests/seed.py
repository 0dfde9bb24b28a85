"""The seed of a randomised test: fresh in every run, and said when the test fails.

A ``conftest.py`` imports :func:`seed`, a pytest fixture. ``OUTLIVE_SEED`` repeats a run.
The seed of a test that fails is kept in a file of its own in ``tests/failed-seeds``; as long
as the file is there, its first seed is run and no fresh one. Nothing but the developer
removes it. ``OUTLIVE_SEEDS_FROM`` is a text that all fresh seeds follow from.
The same in Rust: ``crates/base/src/seed.rs``.
"""

import os
import random
import warnings
from pathlib import Path

import pytest

VARIABLE = "OUTLIVE_SEED"
FROM = "OUTLIVE_SEEDS_FROM"
"""The variable that the fresh seeds of all tests follow from, if it is set."""
FAILED = "OUTLIVE_FAILED_SEEDS"
"""The variable that names another directory for the seeds that failed."""


def file(name: str) -> Path:
    """Where the seeds with which this test failed are."""
    every = os.environ.get(FAILED) or Path(__file__).with_name("failed-seeds")
    return Path(every) / name.replace("/", ".")[:200]


def failed(name: str) -> list[int]:
    """These seeds; none if the variable sets the seed."""
    if os.environ.get(VARIABLE) or not file(name).exists():
        return []
    return [int(line) for line in file(name).read_text(encoding="utf-8").splitlines()]


def fresh(name: str = "") -> int:
    """The seed of the variable, or one with which the test failed, or a fresh one."""
    if set_to := os.environ.get(VARIABLE):
        return int(set_to)
    for kept in failed(name) if name else []:
        return kept
    if source := os.environ.get(FROM):
        return random.Random(f"{source} {name}").randrange(10**9)
    return random.SystemRandom().randrange(10**9)


def keep(name: str, number: int) -> str:
    """Writes down that the test failed with this seed; says where."""
    place = file(name)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        before = place.read_text(encoding="utf-8") if place.exists() else ""
        if str(number) not in before.splitlines():
            with place.open("a", encoding="utf-8") as out:
                out.write(f"{number}\n")
    except OSError as error:
        return f"seed {number} is not kept in {place}: {error}"
    return f"seed {number} is kept in {place}"


def runs(name: str, number: int) -> str:
    """What is said when a kept seed is run."""
    where = f"remove {file(name)} when that is mended"
    return f"{name}: seed {number}, which failed before, is run and no fresh one; {where}"


DRAWN = pytest.StashKey[int]()


class Kept:
    """A plugin of pytest, there as soon as a test asks for a seed."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item):
        """A test that failed, or that left something behind, keeps its seed."""
        report = yield
        number = item.stash.get(DRAWN, None)
        if report.failed and number is not None:
            line = keep(item.nodeid, number)
            report.sections.append(("seed", line))
        return report


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test. pytest shows what is printed here if the test fails."""
    plugins, name = request.config.pluginmanager, request.node.nodeid
    if not plugins.has_plugin("outlive-seeds"):
        plugins.register(Kept(), "outlive-seeds")
    number = fresh(name)
    request.node.stash[DRAWN] = number
    if failed(name):
        # Shown of tests that pass too, and from the processes of pytest-xdist.
        warnings.warn(runs(name, number), stacklevel=1)
    print(f"repeat: {VARIABLE}={number} python -m pytest '{name}'")
    return number
