"""Tells where this program's Python threads are, when it is asked by ``outlive stacks``."""

from __future__ import annotations

import faulthandler
import os
import signal

#: Asks for it. Real-time, so that no other use of signals is disturbed.
SIGNAL = signal.SIGRTMIN + 11
#: The memory file that takes the answers; ``outlive stacks`` finds it by this name.
NAME = f"outlive-python-stacks-{SIGNAL}"

_file: int | None = None


def answer() -> None:
    """From now on that signal writes the stacks of all Python threads into a memory file.

    ``faulthandler`` does it without any lock of Python's, so a program in a deadlock answers too.
    Where the signal is in use, or memory files are not allowed, nothing is changed.
    """
    global _file
    if _file is not None or signal.getsignal(SIGNAL) != signal.SIG_DFL:
        return
    try:
        _file = os.memfd_create(NAME)
    except OSError:
        return
    faulthandler.register(SIGNAL, file=_file, all_threads=True, chain=False)
