"""A second handle in one process, a forked child that opens anew, and one after the first
was closed. Says which process the holder is, and what each attempt gave."""

import os

import outlive


def attempt(what: str) -> outlive.Job | None:
    """Opens a job and says how that ended."""
    try:
        job = outlive.open()
    except outlive.Error as error:
        print(what, error.code, error.reason, flush=True)
        return None
    print(what, 0, flush=True)
    return job


first = attempt(f"first {os.getpid()}")
attempt("second")
child = os.fork()
if child == 0:
    attempt("child")
    os._exit(0)
os.waitpid(child, 0)
assert first is not None
first.close()
third = attempt("third")
assert third is not None
third.close()
