"""Ranks under mpi4py balance a row of objects, move them, and compare sums."""

import numpy as np
from mpi4py import MPI
from outlive import balance

SIZE = 400

comm = MPI.COMM_WORLD
rank, ranks = comm.Get_rank(), comm.Get_size()
own = [n for n in range(SIZE) if n * ranks // SIZE == rank]
weight = {n: 5.0 if n < SIZE // 8 else 1.0 for n in own}
leaver = ranks - 1
for step in range(4):
    ends = [[m for m in (n - 1, n + 1) if 0 <= m < SIZE] for n in own]
    offsets = np.cumsum([0] + [len(e) for e in ends])
    moves = balance.exchange(
        comm,
        own,
        offsets,
        [m for e in ends for m in e],
        weights=[weight[n] for n in own],
        speed=0.0 if step == 3 and rank == leaver else 1.0,
    )
    gone = [{} for _ in range(ranks)]
    for number, to in zip(moves.exports.tolist(), moves.exports_to.tolist()):
        gone[to][number] = weight.pop(number)
    for source, came in enumerate(comm.alltoall(gone)):
        for number, value in came.items():
            assert number in moves.imports and moves.imports_from[moves.imports == number] == source
            weight[number] = value
    own = sorted(weight)
assert comm.allreduce(len(own)) == SIZE
loads = comm.allgather(sum(weight.values()))
assert loads.pop(leaver) == 0.0
assert max(loads) <= 1.1 * sum(loads) / len(loads), loads
if rank == 0:
    print("balanced over", ranks)
