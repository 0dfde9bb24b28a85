"""The seed of a randomised test: fresh in every run, and said when the test fails.

A ``conftest.py`` imports :func:`seed`, a pytest fixture. ``OUTLIVE_SEED`` repeats a run.
The same in Rust: ``crates/base/src/seed.rs``.
"""

import os
import random

import pytest

VARIABLE = "OUTLIVE_SEED"


def fresh() -> int:
    """A fresh seed, or that of the variable."""
    return int(os.environ.get(VARIABLE) or random.SystemRandom().randrange(10**9))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test. pytest shows what is printed here if the test fails."""
    number = fresh()
    print(f"repeat: {VARIABLE}={number} python -m pytest '{request.node.nodeid}'")
    return number
