"""How a typed program uses the package: checked by mypy --strict, never run."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import outlive
from outlive import balance, collectives


def train(steps: int) -> float:
    """Every call once."""
    state: dict[str, Any] = {"weights": array.array("d", [0.0] * 10), "rate": 0.1}
    with outlive.open(timeout=5.0) as job:
        start: int = job.restore(state, default=1)
        for step in range(start, steps):
            taken: bool = job.checkpoint(step, state, now=step == 7)
            if taken:
                job.wait(step, survives="node-loss", timeout=2.0)
        for step in job.steps([state], steps, start=1):
            path: str = job.route(step, "out.txt")
            job.protect(path, bytearray(3))
            job.unprotect(path)
            assert not job.wanted(step + 1)
        status: outlive.Status = job.status()
        newest: int | None = status.version_surviving["all-nodes"]
        error = job.last_error
        if error is not None and error.code == 109:
            print(error.entity, error.reason, error.remedy, newest)
        survives: outlive.Survives = "node-crash"
        job.wait(steps, survives)
        levels: list[outlive.Level] = list(status.levels.values())
        print([(level.name, level.survives, level.version) for level in levels])
    return status.blocked_ns / 1e9


def even(seconds: list[float]) -> list[int]:
    """The balancer on arrays."""
    rows = (np.array([0, 1, 2]), np.array([1, 0]))
    done: balance.Balanced = balance.balance(rows, 2, [0, 0], weights=seconds, tolerance=0.1)
    print(done.imbalance, done.migration, done.iterations)
    return [int(part) for part in done.parts]


def missing(world: collectives.Communicator) -> list[int]:
    """Who contributed, of a communicator or a handle."""
    if not collectives.active() or collectives.library() is None:
        return []
    return collectives.absent(world) + collectives.absent(0x44000000) + collectives.dead()
