"""A short sample of the soak (scripts/soak.py): turns that a fresh seed decides."""

import random

import pytest
import soak
from harness import Job
from seed import seed as seed


@pytest.mark.parametrize("kind", list(soak.TURNS))
def test_a_turn(job: Job, kind: str, seed: int) -> None:
    print(f"repeat: scripts/soak.py --turns 1 --kind {kind} --seed {seed}")
    print(soak.TURNS[kind](job, random.Random(seed)))
