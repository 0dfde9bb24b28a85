"""outlive.balance: measures checked against NumPy's own, and processes as threads."""

import importlib.util
import os
import queue
import subprocess
import sys
import threading
from collections import defaultdict

import numpy as np
import outlive
import pytest
import scipy.sparse
from conftest import BOUND_S, PROGRAMS, ROOT, mpich
from outlive import balance
from skip import skip


def mesh(x: int, y: int) -> scipy.sparse.csr_array:
    """A grid of tasks, each tied to the next in both directions."""
    line = [scipy.sparse.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(n, n)) for n in (x, y)]
    along = scipy.sparse.kron(scipy.sparse.eye_array(y), line[0])
    return scipy.sparse.csr_array(along + scipy.sparse.kron(line[1], scipy.sparse.eye_array(x)))


def hot(x: int, y: int) -> np.ndarray:
    """Weight 4 in a corner."""
    return np.where(np.add.outer(np.arange(y), np.arange(x)).ravel() < (x + y) // 4, 4.0, 1.0)


def strips(x: int, y: int, processes: int) -> np.ndarray:
    return np.repeat(np.arange(y) * processes // y, x)


def refused(code: int, call: object, *arguments: object, **named: object) -> outlive.Error:
    with pytest.raises(outlive.Error) as caught:
        call(*arguments, **named)
    assert caught.value.code == code and caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    "method", ["diffusion", "scratch", "auto", "hybrid", "refine", "greedy-refine"]
)
def test_the_measures_are_those_that_numpy_finds(method: str) -> None:
    graph, weights, start = mesh(40, 32), hot(40, 32), strips(40, 32, 8)
    done = balance.balance(graph, 8, start, weights=weights, method=method, tolerance=0.05)
    loads = np.bincount(done.parts, weights, 8)
    assert done.imbalance == pytest.approx(loads.max() / loads.mean() - 1)
    before = np.bincount(start, weights, 8)
    assert done.imbalance_before == pytest.approx(before.max() / before.mean() - 1)
    assert done.imbalance <= 0.05 + 1e-9 < done.imbalance_before
    moved = done.parts != start
    counts = np.bincount(done.parts[moved], minlength=8) + np.bincount(start[moved], minlength=8)
    assert done.migration == pytest.approx(counts.max() / (graph.shape[0] / 8))
    assert done.migration_total == pytest.approx(moved.mean())
    rows, columns = graph.nonzero()
    assert done.edge_cut_total == np.count_nonzero(done.parts[rows] != done.parts[columns]) / 2
    again = balance.balance(graph, 8, start, weights=weights, method=method, tolerance=0.05)
    assert np.array_equal(again.parts, done.parts)


def test_a_tree_of_domains_has_a_method_for_each_level() -> None:
    # Four leaves of four; only the first has the heavy corner, so load must cross leaves.
    graph, weights, start = mesh(64, 64), hot(64, 64), strips(64, 64, 16)

    def done(*levels: str, group: int = 4, fan_out: int = 2) -> balance.Balanced:
        return balance.balance(
            graph,
            16,
            start,
            weights=weights,
            method="hybrid",
            levels=levels,
            group=group,
            fan_out=fan_out,
        )

    refine, diffusion, greedy = done("refine"), done("diffusion", "diffusion"), done("greedy")
    assert max(refine.imbalance, greedy.imbalance) < 0.05
    assert diffusion.imbalance < diffusion.imbalance_before
    # Greedy places all anew; the others follow the edges.
    for near in (refine, diffusion):
        assert greedy.migration_total > 1.5 * near.migration_total
        assert greedy.edge_cut_total > 2 * near.edge_cut_total
    assert np.array_equal(done().parts, refine.parts)
    # A leader holds the tasks of its leaf, not those of all.
    assert 0 < refine.memory_bytes_max < done("refine", group=16).memory_bytes_max
    assert not np.array_equal(done("refine", group=16).parts, refine.parts)


def test_speeds_background_and_a_process_that_is_gone() -> None:
    graph, start = mesh(32, 32), strips(32, 32, 4)
    speeds = np.array([2.0, 1.0, 0.0, 1.0])
    done = balance.balance(graph, 4, start, speeds=speeds, background=[0.0, 64.0, 0.0, 0.0])
    loads = np.bincount(done.parts, minlength=4) + np.array([0, 64, 0, 0])
    assert loads[2] == 0 and done.imbalance <= 0.03
    assert loads[0] == pytest.approx(2 * loads[3], rel=0.06)


def test_rows_and_matrices_say_the_same_and_a_start_is_found_without_one() -> None:
    graph = mesh(24, 24)
    rows = (graph.indptr, graph.indices, graph.data)
    at = np.stack([np.arange(576) % 24, np.arange(576) // 24], axis=1)
    one = balance.balance(graph, 6, coordinates=at, weights=hot(24, 24))
    two = balance.balance(rows, 6, coordinates=at, weights=hot(24, 24))
    assert np.array_equal(one.parts, two.parts) and set(one.parts) == set(range(6))
    plain = balance.balance(graph, 6, weights=hot(24, 24))
    assert plain.imbalance <= 0.05


def test_bad_input_has_a_code() -> None:
    graph = mesh(4, 4)
    for processes in (0, -1, 2.5, "8", 2**24 + 1, 2**40):
        refused(100, balance.balance, graph, processes)
    refused(100, balance.balance, graph, 2, weights=1e308)
    refused(100, balance.balance, graph, 2, method="refine", tolerance=np.nan)
    refused(100, balance.balance, graph, 2, tolerance="little")
    refused(100, balance.balance, "graph", 2)
    refused(100, balance.balance, graph, 2, weights=[1.0])
    refused(100, balance.balance, graph, 2, weights=np.full(16, np.nan))
    refused(100, balance.balance, graph, 2, weights=-1.0)
    refused(100, balance.balance, graph, 2, method="metis")
    refused(100, balance.balance, graph, 2, np.zeros(16) - 0.5)
    refused(100, balance.balance, graph, 2, np.full(16, 2))
    refused(100, balance.balance, graph, 2, tolerance=-1.0)
    refused(100, balance.balance, graph, 2, coordinates=np.zeros((3, 2)))
    refused(100, balance.balance, graph, 2, speeds=0.0)
    refused(100, balance.balance, graph[:3], 2)
    refused(100, balance.balance, ([0, 1, 1], [1]), 2)  # an edge at one end
    refused(100, balance.balance, ([0, 9], [0]), 2)
    refused(100, balance.balance, graph, 2, method="rcb")
    for levels in (["metis"], ["refine", "greedy"], "refine", [3]):
        refused(100, balance.balance, graph, 2, method="hybrid", levels=levels)
    refused(100, balance.balance, graph, 2, method="hybrid", group=0)
    refused(100, balance.balance, graph, 2, method="hybrid", fan_out=1)


class Threads:
    """A communicator between threads, with the methods that are asked for."""

    def __init__(self, rank: int, size: int, shared: dict) -> None:
        self.rank, self.size, self.shared = rank, size, shared
        self.early: list[tuple[int, int, object]] = []

    @staticmethod
    def all(size: int) -> list["Threads"]:
        shared = {"mail": defaultdict(queue.Queue), "barrier": threading.Barrier(size)}
        shared["values"] = [None] * size
        return [Threads(rank, size, shared) for rank in range(size)]

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def isend(self, message: object, dest: int, tag: int) -> "Threads":
        self.shared["mail"][dest].put((self.rank, tag, message))
        return self

    def wait(self) -> None:
        """Nothing is under way: a queue has room."""

    def recv(self, source: int | None = None, tag: int = 0) -> object:
        while True:
            for place, (sender, its_tag, message) in enumerate(self.early):
                if its_tag == tag and source in (None, sender):
                    del self.early[place]
                    return message
            self.early.append(self.shared["mail"][self.rank].get(timeout=BOUND_S))

    def allgather(self, value: object) -> list:
        self.shared["values"][self.rank] = value
        self.shared["barrier"].wait(BOUND_S)
        found = list(self.shared["values"])
        self.shared["barrier"].wait(BOUND_S)
        return found

    def alltoall(self, values: list) -> list:
        return [row[self.rank] for row in self.allgather(values)]


def together(size: int, each: object) -> list:
    """`each(comm)` on so many threads; what they return or raise."""
    found: list = [None] * size

    def one(comm: Threads) -> None:
        try:
            found[comm.rank] = each(comm)
        except Exception as error:
            found[comm.rank] = error

    threads = [threading.Thread(target=one, args=(comm,)) for comm in Threads.all(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    return found


def test_processes_exchange_what_balances_and_lose_nothing() -> None:
    graph, weights, start = mesh(20, 20), hot(20, 20), strips(20, 20, 5)

    def each(comm: Threads) -> balance.Exchange:
        own = np.flatnonzero(start == comm.rank)
        rows = [graph.indices[graph.indptr[n] : graph.indptr[n + 1]] for n in own]
        offsets = np.cumsum([0, *map(len, rows)])
        return balance.exchange(comm, own, offsets, np.concatenate(rows), weights=weights[own])

    moves = together(5, each)
    assert all(isinstance(one, balance.Exchange) for one in moves), moves
    parts = start.copy()
    for rank, one in enumerate(moves):
        assert np.all(start[one.exports] == rank)
        parts[one.exports] = one.exports_to
    for rank, one in enumerate(moves):
        assert np.array_equal(
            np.sort(one.imports), np.flatnonzero((parts == rank) & (start != rank))
        )
        assert np.array_equal(one.imports_from, start[one.imports])
    loads = np.bincount(parts, weights, 5)
    assert moves[0].imbalance == pytest.approx(loads.max() / loads.mean() - 1)
    assert moves[0].imbalance < 0.1 < moves[0].imbalance_before


def test_what_one_process_refuses_all_refuse() -> None:
    def each(comm: Threads) -> balance.Exchange:
        names = [comm.rank, comm.rank] if comm.rank == 1 else [comm.rank]
        return balance.exchange(comm, names, [0] * (len(names) + 1), np.zeros(0, np.uint64))

    found = together(3, each)
    assert all(isinstance(error, outlive.Error) and error.code == 100 for error in found), found
    assert "twice" in found[1].reason and found[0].entity == "rank 1"


def test_what_python_refuses_on_one_process_and_doubled_numbers_all_refuse() -> None:
    def wrong(comm: Threads, **named: object) -> balance.Exchange:
        return balance.exchange(comm, [comm.rank], [0, 0], np.zeros(0, np.uint64), **named)

    cases = [
        {"weights": [np.nan]},
        {"weights": "heavy"},
        {"speed": "fast"},
        {"speed": -1.0},
        {"background": np.inf},
        {"tolerance": np.nan},
        {"tolerance": 0.5},  # not that of the others
        {"seed": -1},
        {"coordinates": [[1.0, 2.0, 3.0, 4.0]]},
    ]
    for case in cases:
        found = together(3, lambda comm, case=case: wrong(comm, **(case if comm.rank == 1 else {})))
        assert all(isinstance(error, outlive.Error) and error.code == 100 for error in found), found
        assert all(error.remedy for error in found), found
    # One number on two processes would be in the balance twice.
    none = np.zeros(0, np.uint64)
    found = together(3, lambda comm: balance.exchange(comm, [comm.rank // 2], [0, 0], none))
    assert all(isinstance(error, outlive.Error) and error.code == 100 for error in found), found
    assert any("task 0" in error.reason and "rank 0" in error.reason for error in found), found


def test_an_exception_of_the_communicator_comes_through() -> None:
    class Broken(Threads):
        def allgather(self, value: object) -> list:
            raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        balance.exchange(Broken(0, 1, {}), [0], [0, 0], np.zeros(0, np.uint64))


def test_under_mpi4py() -> None:
    if importlib.util.find_spec("mpi4py") is None:
        skip("mpi4py", "mpi4py is not installed")
    command = [*mpich(4), sys.executable, str(PROGRAMS / "exchange.py")]
    # The wheel of mpi4py takes the MPI that it is told, else the first it finds.
    library = str(ROOT / ".deps" / "mpich" / "lib")
    environment = os.environ | {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": library}
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, env=environment)
    assert done.returncode == 0 and "balanced over 4" in done.stdout, done.stderr
