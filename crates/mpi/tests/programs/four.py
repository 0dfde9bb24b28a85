"""A program in mpi4py. Rank VICTIM (-1: nobody) kills itself; the others go on with every
collective that survives, and leave as any program does: by the end of the interpreter."""

import ctypes
import os
import signal
import sys
from array import array

from mpi4py import MPI

comm, victim = MPI.COMM_WORLD, int(sys.argv[1])
layer = ctypes.CDLL(None)  # it was preloaded
layer.outlive_mpi_absent.argtypes = [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int]
assert layer.outlive_mpi_active() == 1
rank, size = comm.rank, comm.size
root = 0 if victim != 0 else 1


def add(value: int) -> int:
    total = array("q", [0])
    comm.Allreduce(array("q", [value]), total)
    return total[0]


def absent() -> list[int]:
    ranks = (ctypes.c_int * size)()
    return ranks[: layer.outlive_mpi_absent(comm.handle, ranks, size)]


everyone = size * (size + 1) // 2
assert add(rank + 1) == everyone
if rank == victim:
    os.kill(os.getpid(), signal.SIGKILL)
missing = [] if victim < 0 else [victim]
for _ in range(3):
    assert add(rank + 1) == everyone - sum(other + 1 for other in missing)
    assert absent() == missing
    comm.Barrier()
    comm.barrier()
    assert comm.bcast({"from": rank} if rank == root else None, root=root) == {"from": root}
    buffer = array("d", [rank] * 1000)
    comm.Bcast(buffer, root=root)
    assert buffer[999] == root
    result = array("i", [0])
    comm.Reduce(array("i", [rank + 1]), result, root=root)
    if rank == root:
        assert result[0] == everyone - sum(other + 1 for other in missing)
    parts = [-1 if other in missing else other for other in range(size)]
    gathered = array("i", [-1] * size)
    comm.Allgather(array("i", [rank]), gathered)
    assert gathered.tolist() == parts
    # Rank r gives r + 1 numbers.
    counts = [other + 1 for other in range(size)]
    gathered = array("i", [-1] * everyone)
    comm.Gatherv(array("i", [rank] * (rank + 1)), (gathered, counts), root=root)
    if rank == root:
        assert gathered.tolist() == [
            part for part, times in zip(parts, counts, strict=True) for _ in range(times)
        ]
os.write(1, f"rank {rank}: right\n".encode())
if len(sys.argv) > 2:  # ends MPI by its own call; the interpreter's end then finds it ended
    MPI.Finalize()
    assert MPI.Is_finalized()
    os.write(1, f"rank {rank}: finalized\n".encode())
