"""Outlive: a parallel program that goes on after a node dies.

Three lines make a training loop survive::

    job = outlive.open()                       # 1
    start = job.restore(state)                 # 2
    for step in range(start, steps):
        job.checkpoint(step, state)            # 3
        train(state)

and ``outlive run -- torchrun ... train.py`` (or mpirun, or plain python) starts it.
"""

from __future__ import annotations

import atexit as _atexit
import sys as _sys
import weakref as _weakref
from os import PathLike as _PathLike
from pathlib import Path as _Path

from outlive import _native, _stacks
from outlive._native import Job
from outlive._types import Error, Level, Status, Survives

__all__ = ["Error", "Job", "Level", "Status", "Survives", "__version__", "include_dir", "open"]

__version__ = _native.version()

_open_jobs: _weakref.WeakSet[Job] = _weakref.WeakSet()
_stacks.answer()


def open(
    *,
    rank: int | None = None,
    ranks: int | None = None,
    timeout: float = 10.0,
) -> Job:
    """Join the job that ``outlive run`` started; without it, a job that saves nothing.

    ``timeout`` in seconds bounds every wait on the node's agent.
    """
    job = _native.open(rank, ranks, timeout)
    _open_jobs.add(job)
    return job


@_atexit.register
def _leave() -> None:
    """A program that ends well has left its jobs, even if it did not say so."""
    if hasattr(_sys, "last_value"):  # an exception that nobody caught: a failure
        return
    for job in list(_open_jobs):
        try:
            job.close()
        except Error:  # the agent notices the end of the process all the same
            pass


def include_dir() -> str | _PathLike[str]:
    """Directory of ``outlive.h``, for building C programs against this package."""
    return _Path(__file__).with_name("include")
