"""Ask ``liboutlive_mpi.so`` who contributed to a collective, and who is dead.

Under ``outlive run --collectives ...``, or with the library in ``LD_PRELOAD``::

    from array import array
    from mpi4py import MPI
    from outlive import collectives

    total = array("d", [0.0])
    MPI.COMM_WORLD.Allreduce(array("d", [value]), total)
    if missing := collectives.absent(MPI.COMM_WORLD):
        print("without ranks", missing)

(mpi4py's ``allreduce`` in lower case sends pickled objects by messages, which do not survive.)
Needs neither NumPy nor mpi4py: a communicator is one of mpi4py's, or the handle itself.
Errors are :class:`outlive.Error`.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Protocol

from outlive._types import Error

__all__ = ["Communicator", "absent", "active", "dead", "library"]


class Communicator(Protocol):
    """A communicator of mpi4py, 4.0 or newer."""

    @property
    def handle(self) -> int:
        """MPI's own handle."""


_LIBRARY = "liboutlive_mpi.so"
# Ranks that are asked for at first; more are asked for again.
_ROOM = 64

_found: ctypes.CDLL | None = None


def library() -> str | None:
    """The path of the library in this process; None if it was not loaded with it.

    It is not loaded here: behind the MPI library it could serve no call any more.
    """
    return _mapped()


def _mapped() -> str | None:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                path = line.rstrip("\n").partition("/")
                if path[1] and path[2].rpartition("/")[2].startswith(_LIBRARY):
                    return "/" + path[2]
    except OSError:  # no /proc: as good as not loaded
        pass
    return None


def _loaded() -> ctypes.CDLL | None:
    global _found
    if _found is None:
        path = _mapped()
        if path is None:
            return None
        loaded = ctypes.CDLL(path)
        ints = ctypes.POINTER(ctypes.c_int)
        loaded.outlive_mpi_active.argtypes = []
        loaded.outlive_mpi_dead.argtypes = [ints, ctypes.c_int]
        # A handle is an int (MPICH) or a pointer (Open MPI, the standard ABI): the wider
        # of the two holds both, and the library reads as much as its MPI has.
        loaded.outlive_mpi_absent.argtypes = [ctypes.c_size_t, ints, ctypes.c_int]
        for name in ["active", "dead", "absent"]:
            getattr(loaded, f"outlive_mpi_{name}").restype = ctypes.c_int
        _found = loaded
    return _found


def _ask(call: Callable[[Any, int], int], entity: str) -> list[int]:
    room = _ROOM
    while True:
        ranks = (ctypes.c_int * room)()
        count = call(ranks, room)
        if count < 0:
            raise _not_served(entity)
        if count <= room:
            return ranks[:count]
        room = count


def _not_served(entity: str) -> Error:
    return Error(
        101,
        entity,
        "liboutlive_mpi.so does not serve it",
        "start with outlive run --collectives, and ask between MPI_Init and MPI_Finalize",
    )


def active() -> bool:
    """True if Outlive serves this process's collectives now."""
    loaded = _loaded()
    return loaded is not None and loaded.outlive_mpi_active() == 1


def dead() -> list[int]:
    """Ranks of ``MPI_COMM_WORLD`` that this process knows to be dead, ascending.

    Raises Error 101 if Outlive does not serve this process.
    """
    loaded = _loaded()
    if loaded is None:
        raise _not_served("process")
    return _ask(loaded.outlive_mpi_dead, "process")


def absent(comm: Communicator | int) -> list[int]:
    """Ranks of ``comm`` that did not contribute to its last collective, ascending.

    That is the last Reduce, Allreduce or Barrier whose result this process got: all of
    them for an Allreduce or Barrier, the root for a Reduce. ``comm`` is a communicator of
    mpi4py or a handle as an int.

    Raises Error 101 if Outlive does not serve the communicator, TypeError if it is none.
    """
    handle = comm if isinstance(comm, int) else getattr(comm, "handle", None)
    if not isinstance(handle, int):
        raise TypeError(f"{type(comm).__name__} is no communicator of mpi4py and no handle")
    loaded = _loaded()
    if loaded is None:
        raise _not_served("communicator")
    return _ask(lambda ranks, room: loaded.outlive_mpi_absent(handle, ranks, room), "communicator")
