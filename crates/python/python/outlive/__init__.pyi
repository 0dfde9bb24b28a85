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
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, final

__all__ = ["Error", "Job", "Level", "Status", "Survives", "__version__", "include_dir", "open"]

__version__: Final[str]

Survives = Literal["process", "node-crash", "node-loss", "domain", "all-nodes"]
"""What a version is to survive, each with those before it: the end of a rank or an agent, a
node that starts again with its storage, a node that does not come back, a whole failure
domain, all nodes."""

class Error(Exception):
    """An error of Outlive; its codes are stable, see ``docs/errors.md``."""

    code: int
    """The stable number, for example 104."""
    entity: str
    """What is affected: a region, a rank, a node, a file."""
    reason: str
    """What was seen."""
    remedy: str
    """What to do."""
    def __init__(self, code: int, entity: str, reason: str, remedy: str) -> None: ...

@dataclass(frozen=True)
class Level:
    """A level of a job: where versions are kept."""

    name: str
    """As ``outlive run --levels`` names it."""
    survives: Survives
    """The most that its versions survive."""
    version: int | None
    """The newest version that is committed and stable there."""

@dataclass(frozen=True)
class Status:
    """What a job knows without waiting."""

    is_protected: bool
    """True under ``outlive run``."""
    rank: int
    ranks: int
    node: int
    """The node slot; 0 if not protected."""
    incarnation: int
    """Which start of the job this is, from 1; 0 if not protected."""
    regions: int
    """Regions: those of ``protect``, and those of the state last walked."""
    bytes: int
    """Their bytes."""
    taken: int
    """Captures since the job was opened."""
    failed: int
    """Captures that failed."""
    blocked_ns: int
    """How long the last capture blocked the program, without the walk of the state."""
    version_taken: int | None
    version_surviving: dict[Survives, int | None]
    """The newest committed version that survives at least this."""
    version_restored: int | None
    levels: dict[str, Level]
    """The levels of the job by name, the nearest copies first; none if not protected."""

def open(
    *,
    rank: int | None = None,
    ranks: int | None = None,
    timeout: float = 10.0,
) -> Job:
    """Join the job that ``outlive run`` started; without it, a job that saves nothing.

    ``timeout`` in seconds bounds every wait on the node's agent.
    """

@final
class Job:
    """A rank's handle on its job, from :func:`open`.

    May be used by any thread; a call waits for the one before. A forked child is
    refused with Error 101. A job that is dropped, and one that is open when the
    program ends well, is closed.
    """

    def restore(self, state: Any = None, *, default: int = 0) -> int:
        """Fill ``state`` in place with the newest version that can be rebuilt.

        ``state`` is a dict, list or tuple, nested at will, of NumPy arrays, torch CPU
        tensors, any writable buffer (all filled in place) and of plain values (None,
        bool, int, float, complex, str, bytes, NumPy scalars: replaced in their dict or
        list). A tuple whose plain values changed is replaced as a whole. A list of
        plain values takes the length that it had. Objects with
        ``state_dict``/``load_state_dict`` (modules, optimizers) are taken through
        those. Returns the version, or ``default`` at the first start.

        Raises Error 103, 104 or 105 if the state has other keys, sizes, shapes or types
        than the checkpoint, 109 if it holds something that cannot be stored (at the
        first start too); then nothing was changed.
        """

    def checkpoint(self, version: int, state: Any = None, *, now: bool = False) -> bool:
        """Offer a checkpoint; True if ``state`` was captured, False if skipped.

        Only looks at ``state`` when the checkpoint is wanted. ``state=None`` uses the
        regions declared by :meth:`protect` alone. ``now=True`` forces it, on all ranks.
        A failed save does not raise: see :meth:`status` and :attr:`last_error`. Only
        errors of the program do: 100 (no version), 101 (closed, or a forked child) and
        102 (versions must rise).
        """

    def protect(self, name: str, buffer: Any) -> None:
        """Declare one contiguous buffer under a name; the same name again replaces it.

        It is held, and cannot be resized, until it is replaced or unprotected.
        """

    def unprotect(self, name: str) -> None:
        """Forget a declared buffer; Error 103 if there is none of this name."""

    def wanted(self, version: int) -> bool:
        """True if ``checkpoint(version)`` will capture; that must be the next call."""

    def wait(
        self, version: int, survives: Survives = "process", timeout: float | None = None
    ) -> None:
        """Wait until ``version`` survives this; raises Error 501 or 106.

        It, or a newer one that takes its place, is then committed and stable at a level
        that survives it. ``timeout`` in seconds; that of :func:`open` if None.
        Unprotected: returns.
        """

    def route(self, version: int, name: str) -> str:
        """A path in node storage for a file that the program writes by itself."""

    def steps(self, state: Any, stop: int, *, start: int = 0) -> Iterator[int]:
        """Restore, then count: each turn offers a checkpoint and yields the step."""

    def status(self) -> Status:
        """What is known without waiting."""

    @property
    def last_error(self) -> Error | None:
        """The last error on this job, that of a failed save among them."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    def close(self) -> None:
        """Leave the job. A second call does nothing."""

    def __enter__(self) -> Job: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

def include_dir() -> str | PathLike[str]:
    """Directory of ``outlive.h``, for building C programs against this package."""
