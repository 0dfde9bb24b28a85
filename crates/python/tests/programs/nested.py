"""A nested state that changes at every step; the last line is a digest of all of it.

nested.py STEPS SLEEP_MS [threads]
"""

import array
import hashlib
import struct
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import outlive
from likeness import Module, Optimizer, Tensor
from outlive import _state

steps, sleep_ms = int(sys.argv[1]), float(sys.argv[2])


def make(rank: int) -> dict:
    """The state before the first step."""
    weights = np.linspace(0.0, 1.0 + rank, 257)
    optimizer = Optimizer(weights, 0.01)
    return {
        "model": {"layers": [{"weight": weights}, {"weight": np.zeros((3, 5), order="F")}]},
        "module": Module(w=Tensor(np.zeros(7, np.uint16), "torch.bfloat16")),
        "turned": Tensor(np.zeros((4, 3)).T),
        "optimizer": optimizer,
        "nan": np.array([0x7FF4_0000_DEAD_BEEF], np.uint64).view("<f8"),
        "scalar": np.array(0.0),
        "empty": np.zeros((0, 2)),
        "bytes": bytearray(16),
        "view": memoryview(bytearray(8)),
        "typed": array.array("q", [0, 0]),
        "big": 1,
        "float": 0.1,
        "history": [],
        "pair": (0, np.zeros(2)),
        "text": "",
    }


def step_once(state: dict, step: int) -> None:
    """Changes every part of the state."""
    weights = state["model"]["layers"][0]["weight"]
    state["optimizer"].step(np.sin(weights * (step + 1)))
    state["model"]["layers"][1]["weight"] += np.arange(15.0).reshape(3, 5) * step
    state["module"].tensors["w"].array[:] += step
    state["turned"].array += np.arange(12.0).reshape(3, 4) + step
    state["nan"].view(np.uint64)[0] ^= step << 8
    state["scalar"] += 0.1
    state["bytes"][step % 16] = step % 256
    state["view"][step % 8] = (step * 7) % 256
    state["typed"][step % 2] += step
    state["big"] = (state["big"] * 1_000_003 + step) % (1 << 4000)
    state["float"] = state["float"] * 1.1 % 3.0
    state["history"].append(state["float"])
    state["pair"] = (step, state["pair"][1])
    state["pair"][1][:] += step
    state["text"] = f"step {step} \N{GREEK SMALL LETTER PI}"


def digest(state: dict) -> str:
    """Of every byte of the state: the plain values and all arrays."""
    tree, regions, holds = _state.capture(state)
    found = hashlib.sha256(tree)
    for name, address, count, _ in regions:
        import ctypes

        found.update(name.encode() + struct.pack("<Q", count))
        found.update(ctypes.string_at(address, count))
    del holds
    return found.hexdigest()


stop = threading.Event()
if "threads" in sys.argv:  # others work, and look at the job, all the time

    def look(job: outlive.Job) -> None:
        while not stop.is_set():
            assert job.status().rank == job.rank
            sum(range(200))


job = outlive.open()
state = make(job.rank)
others = [threading.Thread(target=look, args=(job,)) for _ in range(3 * ("threads" in sys.argv))]
for other in others:
    other.start()
for step in job.steps(state, steps):
    step_once(state, step)
    time.sleep(sleep_ms / 1000)
stop.set()
for other in others:
    other.join()
status = job.status()
print(
    f"rank {job.rank} restored {status.version_restored} failed {status.failed} "
    f"error {job.last_error}"
)
print(f"digest {job.rank} {digest(state)}")
job.close()
