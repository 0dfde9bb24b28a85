"""Two threads take two locks, each in its own order, once both hold one. Only in the first start:
after it the program comes to its end."""

import os
import threading

import outlive

STEPS, AT = 20, 7
first, second = threading.Lock(), threading.Lock()
both = threading.Barrier(2)


def takes(one: threading.Lock, other: threading.Lock) -> None:
    """Holds one, and waits for the other."""
    with one:
        both.wait()
        waits_for_the_other(other)


def waits_for_the_other(lock: threading.Lock) -> None:
    """Never comes back."""
    with lock:
        pass


job = outlive.open()
state = {"sum": 0}
for step in job.steps(state, STEPS):
    if step == AT and os.environ["OUTLIVE_INCARNATION"] == "1":
        threading.Thread(target=takes, args=(second, first), daemon=True).start()
        takes(first, second)
    state["sum"] += step
print("sum", state["sum"])
job.close()
