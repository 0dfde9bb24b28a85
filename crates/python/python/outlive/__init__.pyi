"""Outlive: a parallel program that goes on after a node dies.

Three lines make a training loop survive::

    job = outlive.open()                       # 1
    start = job.restore(state)                 # 2
    for step in range(start, steps):
        job.checkpoint(step, state)            # 3
        train(state)

and ``outlive run -- torchrun ... train.py`` (or mpirun, or plain python) starts it.
"""

from collections.abc import Iterator
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal

__version__: Final[str]

Level = Literal["memory", "disk", "partner", "shared"]

class Error(Exception):
    """An error of Outlive; ``OutliveError`` codes are stable, see ``docs/errors.md``."""

    code: int
    """The stable number, for example 104."""
    entity: str
    """What is affected: a region, a rank, a node, a file."""
    reason: str
    remedy: str

class Status:
    is_protected: bool
    rank: int
    ranks: int
    node: int
    incarnation: int
    regions: int
    bytes: int
    taken: int
    failed: int
    blocked_ns: int
    version_taken: int | None
    version_committed: dict[Level, int | None]
    version_restored: int | None

def open(
    *,
    rank: int | None = None,
    ranks: int | None = None,
    timeout: float = 10.0,
) -> Job:
    """Join the job that ``outlive run`` started; without it, a job that saves nothing.

    ``timeout`` in seconds bounds every wait on the node's agent.
    """

class Job:
    def restore(self, state: Any = None, *, default: int = 0) -> int:
        """Fill ``state`` in place with the newest version that can be rebuilt.

        ``state`` is a dict, list or tuple, nested at will, of NumPy arrays, torch CPU
        tensors, any writable contiguous buffer (all filled in place) and of plain values
        (None, bool, int, float, complex, str, bytes: replaced in their dict or list).
        Objects with ``state_dict``/``load_state_dict`` (modules, optimizers) are taken
        through those. Returns the version, or ``default`` at the first start.

        Raises Error 103, 104 or 105 if the state has other keys or sizes than the
        checkpoint; then nothing was changed.
        """

    def checkpoint(self, version: int, state: Any = None, *, now: bool = False) -> bool:
        """Offer a checkpoint; True if ``state`` was captured, False if skipped.

        Only looks at ``state`` when the checkpoint is wanted. ``state=None`` uses the
        regions declared by :meth:`protect` alone. ``now=True`` forces it, on all ranks.
        A failed save does not raise: see :meth:`status` and :attr:`last_error`.
        """

    def protect(self, name: str, buffer: Any) -> None:
        """Declare one buffer under a name; the same name again replaces it."""

    def unprotect(self, name: str) -> None: ...
    def wanted(self, version: int) -> bool:
        """True if ``checkpoint(version)`` will capture."""

    def wait(self, version: int, level: Level = "memory", timeout: float | None = None) -> None:
        """Wait until ``version`` is committed at ``level``; raises Error 501 or 106."""

    def route(self, version: int, name: str) -> str:
        """A path in node storage for a file that the program writes by itself."""

    def steps(self, state: Any, stop: int, *, start: int = 0) -> Iterator[int]:
        """Restore, then count: each turn offers a checkpoint and yields the step."""

    def status(self) -> Status: ...
    @property
    def last_error(self) -> Error | None: ...
    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Job: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

def include_dir() -> str | PathLike[str]:
    """Directory of ``outlive.h``, for building C programs against this package."""
