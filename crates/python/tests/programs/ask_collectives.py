"""A rank without mpi4py: MPI by ctypes, MPICH's handles. Rank VICTIM kills itself; the
others add up who is left, and ask who is missing."""

import ctypes
import os
import signal
import sys
import time

from outlive import collectives

WORLD, INT, SUM = 0x44000000, 0x4C000405, 0x58000003  # of MPICH's mpi.h

mpi = ctypes.CDLL("libmpi.so.12", mode=ctypes.RTLD_GLOBAL)
assert not collectives.active()
calls = ctypes.CDLL(None)  # what was preloaded stands before MPI
victim = int(sys.argv[1])
assert calls.MPI_Init(None, None) == 0
rank, value, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))
if rank.value == victim:
    os.kill(os.getpid(), signal.SIGKILL)
value.value = rank.value + 1
send, receive = ctypes.byref(value), ctypes.byref(total)
assert calls.MPI_Allreduce(send, receive, 1, INT, SUM, WORLD) == 0
assert collectives.active() and collectives.library() is not None
end = time.monotonic() + 20
while not collectives.dead() and time.monotonic() < end:
    time.sleep(0.01)
missing, dead = collectives.absent(WORLD), collectives.dead()
os.write(1, f"rank {rank.value}: {total.value} without {missing}, dead {dead}\n".encode())
calls.MPI_Finalize()
os._exit(0)
