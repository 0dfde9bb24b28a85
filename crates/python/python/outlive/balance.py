"""Balance a load that changes while a program runs, moving little.

One process with the whole graph, as NumPy arrays or a SciPy sparse matrix::

    done = outlive.balance.balance(matrix, 64, parts, weights=seconds)
    done.parts, done.imbalance, done.migration

Many processes, each with its own objects, over mpi4py (or anything with the same
``isend``, ``recv``, ``allgather`` and ``alltoall``)::

    moves = outlive.balance.exchange(comm, numbers, offsets, others, weights=seconds)
    for number, rank in zip(moves.exports, moves.exports_to): ...

Needs NumPy. Errors are :class:`outlive.Error`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outlive import _native
from outlive._types import Error

__all__ = ["Balanced", "Exchange", "Sparse", "balance", "exchange"]


class Sparse(Protocol):
    """A SciPy sparse matrix or array."""

    def tocsr(self) -> Any:
        """As compressed rows."""


PROCESSES_MAX = 2**24
"""Most processes of one call, as for ``outlive balance``."""

Graph = Union[Sparse, "tuple[ArrayLike, ArrayLike]", "tuple[ArrayLike, ArrayLike, ArrayLike]"]


@dataclass(frozen=True)
class Balanced:
    """A new assignment and what it is worth; measures as in ``outlive balance``."""

    parts: NDArray[np.uint32]
    """The process of each task."""
    imbalance_before: float
    """Largest load per speed over the ideal, minus 1, before."""
    imbalance: float
    """The same now."""
    migration: float
    """Most tasks that a process imports and exports, over the average number."""
    migration_total: float
    """Tasks that moved, over all tasks."""
    edge_cut_max: float
    """Largest weight of cut edges at a process, over the average weight of edges."""
    edge_cut_total: float
    """Weight of all cut edges, each once."""
    volume_total: float
    """Communication volume."""
    seconds_max_per_process: float
    """Modelled time for parallel methods, measured for the others."""
    iterations: int
    """Of the diffusion."""
    memory_bytes_max: int
    """Of a tree of domains: the largest database of a leader; else 0."""
    fresh: bool
    """True if the assignment is a fresh partition (``scratch``, or ``auto`` that took it)."""


@dataclass(frozen=True)
class Exchange:
    """What this process hands over and takes in."""

    exports: NDArray[np.uint64]
    """Own objects that go, ascending."""
    exports_to: NDArray[np.uint32]
    """Their new processes."""
    imports: NDArray[np.uint64]
    """Objects that come, ascending."""
    imports_from: NDArray[np.uint32]
    """Where they are now."""
    imbalance_before: float
    imbalance: float
    rounds: int
    iterations: int
    fresh: bool
    """True if the assignment is a fresh partition."""


def _bad(name: str, reason: str) -> Error:
    return Error(100, f"option '{name}'", reason, "see help(outlive.balance)")


def _array(name: str, values: ArrayLike, kind: type[np.generic], count: int | None) -> NDArray[Any]:
    """One dimension of `kind`, without loss."""
    try:
        given = np.asarray(values)
        if kind is np.float64:
            array = given.astype(kind)
        else:
            if given.size and not np.issubdtype(given.dtype, np.integer):
                raise _bad(name, f"{given.dtype} are no integers")
            limit = int(np.iinfo(kind).max)  # type: ignore[type-var]
            if given.size and (int(given.min()) < 0 or int(given.max()) > limit):
                raise _bad(name, f"not all are from 0 to {limit}")
            array = given.astype(kind)
    except (TypeError, ValueError) as error:
        raise _bad(name, str(error)) from None
    if array.ndim != 1:
        raise _bad(name, f"{array.ndim} dimensions, not one")
    if count is not None and array.size != count:
        raise _bad(name, f"{array.size} values for {count}")
    return array


def _coordinates(values: ArrayLike | None, count: int) -> bytes | None:
    if values is None:
        return None
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _bad("coordinates", str(error)) from None
    if array.ndim != 2 or array.shape[0] != count or not 1 <= array.shape[1] <= 3:
        raise _bad("coordinates", f"shape {array.shape}, not ({count}, 1 to 3)")
    full = np.zeros((count, 3))
    full[:, : array.shape[1]] = array
    return full.tobytes()


def _floats(name: str, values: ArrayLike | float | None, count: int, default: float) -> bytes:
    if values is None:
        values = default
    if np.ndim(values) == 0:
        values = np.full(count, values)
    return _array(name, values, np.float64, count).tobytes()


def _rows(graph: Graph) -> tuple[NDArray[Any], NDArray[Any], ArrayLike | None]:
    if isinstance(graph, tuple):
        if len(graph) not in (2, 3):
            raise _bad("graph", f"{len(graph)} arrays, not offsets, others and maybe weights")
        offsets = _array("offsets", graph[0], np.uint64, None)
        others = _array("others", graph[1], np.uint32, None)
        return offsets, others, graph[2] if len(graph) == 3 else None
    if not hasattr(graph, "tocsr"):
        raise _bad("graph", f"{type(graph).__name__} is no sparse matrix")
    rows = graph.tocsr().copy()
    if rows.shape[0] != rows.shape[1]:
        raise _bad("graph", f"shape {rows.shape}: a task graph is square")
    # A matrix stores its diagonal; a task is not its own neighbour.
    rows.setdiag(0)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    offsets = _array("graph", rows.indptr, np.uint64, None)
    return offsets, _array("graph", rows.indices, np.uint32, None), abs(rows.data)


def balance(
    graph: Graph,
    processes: int,
    parts: ArrayLike | None = None,
    *,
    weights: ArrayLike | float | None = None,
    coordinates: ArrayLike | None = None,
    speeds: ArrayLike | float | None = None,
    background: ArrayLike | float | None = None,
    method: str = "diffusion",
    tolerance: float = 0.02,
    migration_price: float = 0.1,
    levels: Sequence[str] = ("refine",),
    group: int = 1024,
    fan_out: int = 1024,
    seed: int = 1,
) -> Balanced:
    """Assign the tasks of a graph to ``processes``, from ``parts`` if there are any.

    ``graph`` is a symmetric SciPy sparse matrix (absolute values are edge weights,
    the diagonal is ignored) or compressed rows ``(offsets, others[, edge weights])``
    that list each edge at both ends. ``speeds`` may be 0 for a process that is gone:
    it ends up empty. ``background`` is load of a process that cannot move.
    ``method``: diffusion, scratch, auto, hybrid, greedy, refine, greedy-refine, rcb or
    sfc. ``scratch`` is a fresh partition whose parts are named so that tasks stay;
    ``auto`` does this and diffusion and takes the better by the weight of the cut edges
    plus ``migration_price`` for each task that moves.

    ``levels``, ``group`` and ``fan_out`` shape the tree of ``hybrid`` (after HybridLB:
    HPC Colony 2006, section 2.4): leaves of ``group`` processes, ``fan_out`` children to
    a domain above. ``levels`` names the method of each level from the leaves up: first
    greedy, refine or diffusion, then refine or diffusion; the last holds for all above.
    """
    offsets, others, edges = _rows(graph)
    tasks = max(offsets.size - 1, 0)
    processes = _whole("processes", processes, (1, PROCESSES_MAX))
    arrays = {
        "offsets": offsets.tobytes(),
        "others": others.tobytes(),
        "edges": _floats("edge weights", edges, others.size, 1.0),
        "weights": _floats("weights", weights, tasks, 1.0),
        "coordinates": _coordinates(coordinates, tasks),
    }
    start = None if parts is None else _array("parts", parts, np.uint32, tasks).tobytes()
    idle = np.zeros(processes) if background is None else background
    found, figures = _native.balance(
        arrays,
        _floats("speeds", speeds, processes, 1.0),
        _floats("background", idle, processes, 0.0),
        start,
        _choice(method, tolerance, migration_price, seed, levels, (group, fan_out)),
    )
    iterations, memory = int(figures.pop("iterations")), int(figures.pop("memory_bytes_max"))
    fresh = bool(figures.pop("fresh"))
    return Balanced(
        np.frombuffer(found, np.uint32).copy(),
        iterations=iterations,
        memory_bytes_max=memory,
        fresh=fresh,
        **figures,
    )


def _whole(name: str, value: int, bounds: tuple[int, int]) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise _bad(name, str(error)) from None
    if not bounds[0] <= number <= bounds[1]:
        raise _bad(name, f"{number} is not from {bounds[0]} to {bounds[1]}")
    return number


def _number(name: str, value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise _bad(name, str(error)) from None


def _choice(
    method: str,
    tolerance: float,
    price: float,
    seed: int,
    levels: Sequence[str] = (),
    tree: tuple[int, int] = (1024, 1024),
) -> dict[str, Any]:
    if isinstance(levels, str) or not all(isinstance(name, str) for name in levels):
        raise _bad("levels", "not a sequence of names")
    return {
        "method": method,
        "tolerance": _number("tolerance", tolerance),
        "migration_price": _number("migration_price", price),
        "levels": list(levels),
        "group": _whole("group", tree[0], (1, 2**31 - 1)),
        "fan_out": _whole("fan_out", tree[1], (2, 2**31 - 1)),
        "seed": _whole("seed", seed, (0, 2**64 - 1)),
    }


def exchange(
    comm: Any,
    numbers: ArrayLike,
    offsets: ArrayLike,
    others: ArrayLike,
    *,
    weights: ArrayLike | float | None = None,
    edge_weights: ArrayLike | float | None = None,
    coordinates: ArrayLike | None = None,
    speed: float = 1.0,
    background: float = 0.0,
    method: str = "diffusion",
    tolerance: float = 0.02,
    migration_price: float = 0.1,
    seed: int = 1,
) -> Exchange:
    """Balance between the processes of ``comm``; collective.

    ``numbers`` are this process's objects, unique over all; ``others[offsets[i] :
    offsets[i + 1]]`` the numbers that object i is tied to, on any process, listed at
    both ends with one weight. A process of ``speed`` 0 leaves: it takes part and ends
    without objects. An error on one process is an error on all. Messages
    go over a duplicate of ``comm`` if it can be duplicated.

    ``method``: ``diffusion`` between neighbours, or, computed by one process that holds
    all objects (at most 2**20, with 2**24 ends of edges), ``scratch``, a fresh partition
    whose parts are named so that objects stay, and ``auto``, the better of the two;
    where there are more objects ``auto`` is ``diffusion``.
    """
    own = comm.Dup() if hasattr(comm, "Dup") else comm
    try:
        try:
            names = _array("numbers", numbers, np.uint64, None)
            rows = _array("offsets", offsets, np.uint64, None)
            ends = _array("others", others, np.uint64, None)
            arrays = {
                "offsets": rows.tobytes(),
                "others": ends.tobytes(),
                "edges": _floats("edge_weights", edge_weights, ends.size, 1.0),
                "weights": _floats("weights", weights, names.size, 1.0),
                "coordinates": _coordinates(coordinates, names.size),
            }
            if method not in ("diffusion", "scratch", "auto"):
                raise _bad("method", f"'{method}' is not diffusion, scratch or auto")
            choice = _choice(method, tolerance, migration_price, seed)
            speed, background = _number("speed", speed), _number("background", background)
        except Exception as error:
            # The others are on their way into the call and must not wait for this one.
            with suppress(Exception):
                _native.balance_refused(own, str(error))
            raise
        gone, come, levels, (rounds, iterations, fresh) = _native.balance_over(
            own, names.tobytes(), arrays, speed, background, choice
        )
    finally:
        if own is not comm:
            own.Free()
    return Exchange(
        np.frombuffer(gone[0], np.uint64).copy(),
        np.frombuffer(gone[1], np.uint32).copy(),
        np.frombuffer(come[0], np.uint64).copy(),
        np.frombuffer(come[1], np.uint32).copy(),
        *levels,
        rounds,
        iterations,
        fresh,
    )
