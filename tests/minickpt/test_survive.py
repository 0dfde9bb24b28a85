"""Unmodified programs outlive their kernel: `outlive minickpt run`, panic, `restore`."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LONG, SOAK
from machine import WORK, Failure, Machine, with_libraries
from survival import EARLY, WAIT, scenario, survive

Make = Callable[..., Machine]


def test_four_panics_in_a_row(machine: Make, outlive: dict[str, Path]) -> None:
    """Two threads with a pattern in every register, through four deaths. The first
    restore comes before the file system is mounted, and harms nothing.
    """
    kinds = ["null", "panic", "null", "panic"] if LONG else ["null", "panic"]
    words = "/bin/regstress 2 0 3000000 /dax/stop"
    with machine(scenario(words, kinds, early=EARLY), extra=outlive) as m:
        for attempt in (1, 2):
            m.expect(f"OL-309.*attempt {attempt} to restore image 1, which still waits", 240)
            m.expect("EARLY 69", 30)
        m.expect("OL-502.*image 1 waits to be restored", 30)
        m.expect("EARLY RUN 75", 30)
        m.read_to = 0
        survive(m, len(kinds))
        rounds = [int(n) for _, line in m.lines for n in re.findall(r"regs ok (\d+)", line)]
        # It went on where it was: no round came twice, none was left out.
        assert rounds == list(range(16, rounds[-1] + 1, 16))


def test_groups_timers_terminals_and_queued_signals(
    machine: Make, outlive: dict[str, Path]
) -> None:
    """They are as they were; `kept` compares."""
    kinds = ["null", "panic"] if LONG else ["panic"]
    with machine(scenario("/bin/kept /dax/stop", kinds), extra=outlive) as m:
        survive(m, len(kinds))
        m.expect_past("^KEPT")


# The second and the third kernel die while they restore: when the restorer starts, and when
# the program's process is there again.
TWICE = """
if [ $BOOT = 2 ] || [ $BOOT = 3 ]; then
    arm
    {
        [ $BOOT = 2 ] || until [ -d /proc/$(cat /dax/pid) ]; do :; done
        outlive-inject panic
    } &
fi
"""


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
def test_panics_during_the_restore(machine: Make, outlive: dict[str, Path]) -> None:
    """The same image is restored by the fourth kernel: no round is left out."""
    words = "/bin/regstress 2 0 3000000 /dax/stop"
    text = scenario(words, ["null"], early=TWICE, before=WAIT + "; pidof regstress >/dax/pid")
    with machine(text, extra=outlive) as m:
        for retries in range(3):
            state = f"omk state ready generation 1 .* retries {retries} panics {retries + 1} "
            m.expect(state, 240, never="BAD|OL-|EXIT")
        m.expect("^TIMES generation 1 ", 240, never="BAD|OL-|EXIT")
        m.expect("EXIT 0", 240, never="BAD|EXIT [1-9]|OL-")
        rounds = [int(n) for _, line in m.lines for n in re.findall(r"regs ok (\d+)", line)]
        assert rounds == list(range(16, rounds[-1] + 1, 16))


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
@pytest.mark.parametrize(
    "words",
    [
        "/bin/regstress 2 0 3000000 /dax/stop",
        "/bin/fpustress 0 100000 /dax/stop",
        "/bin/churn 0 /dax/stop",
    ],
    ids=["regstress", "fpustress", "churn"],
)
def test_stress_by_ten_injections(machine: Make, outlive: dict[str, Path], words: str) -> None:
    """Ten deaths each (a hundred in the soak), all survived: the figure of the
    mini-ckpts study is 100 of 100.
    """
    # A kernel without memory ends a program that asks for some before it dies itself.
    starved = "null" if "churn" in words else "no-memory"
    kinds = ["null", "panic", starved, "panic", "spin-panic"] * (20 if SOAK else 2)
    with machine(scenario(words, kinds), extra=outlive) as m:
        survive(m, len(kinds))


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
@pytest.mark.parametrize("threads", [1, 512])
def test_our_share_of_a_bare_boot(machine: Make, outlive: dict[str, Path], threads: int) -> None:
    """In instructions (the emulator's clock counts them, a nanosecond each), so that other
    load on this machine changes nothing: image, rebuilding and arming again take at most a
    fifth of a bare boot.
    """
    kinds = ["null", "panic"]
    words, files = "/bin/regstress 1 0 300000 /dax/stop", outlive
    if threads > 1:
        words = f"/bin/omp {threads} /dax/stop"
        files = {**outlive, **with_libraries(WORK / "dynamic/omp")}
    counting = ("-icount", "shift=0,sleep=off")
    # A second of this clock costs many of ours while a program runs.
    short = {"before": "usleep 100000", "last": "usleep 100000"}
    short["early"] = "export OMP_WAIT_POLICY=passive"
    # One processor: the emulator's counting clock makes two wait for each other.
    text = scenario(words, kinds, **short)
    with machine(text, cpus=1, extra=files, options=counting) as m:
        shares = survive(m, len(kinds), 600)
    assert len(shares) == len(kinds)
    assert max(shares) < 0.2, shares


def flip(port: int, address: int) -> None:
    """Changes a bit of the machine's memory through the emulator's debugger port."""
    with socket.create_connection(("127.0.0.1", port), 30) as wire:

        def ask(text: str) -> str:
            said = f"${text}#{sum(text.encode()) % 256:02x}".encode()
            wire.sendall(said)
            # It tells, unasked, that the machine stopped when we came.
            got = b""
            while not (found := re.search(rb"\$((?!T02)[^#]*)#..", got)):
                got += wire.recv(4096)
            wire.sendall(b"+")
            return found[1].decode()

        assert ask("Qqemu.PhyMemMode:1") == "OK"
        byte = int(ask(f"m{address:x},1"), 16)
        assert ask(f"M{address:x},1:{byte ^ 4:02x}") == "OK"
        assert ask("D") == "OK"


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
def test_a_damaged_next_kernel_is_not_started(machine: Make, outlive: dict[str, Path]) -> None:
    """A bit flips in the next kernel after it was loaded: the machine is reset, for an
    ordinary boot, instead of running it. (The emulator ends at a reset; a kernel that
    cannot unpack itself would hang.)
    """
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    pause = 'grep "Crash kernel" /proc/iomem; read -r word </dev/console'
    text = scenario("/bin/regstress 2 0 3000000 /dax/stop", ["panic"], before=pause)
    with machine(text, extra=outlive, options=("-gdb", f"tcp:127.0.0.1:{port}")) as m:
        start = int(m.expect(r"(\w+)-\w+ : Crash kernel", 120)[1], 16)
        flip(port, start + (8 << 20))
        m.send("go\n")
        m.expect("asked to", 60)
        with pytest.raises(Failure, match="did not come"):
            m.expect("BOOT 2 ", 60)
        assert m.process.wait(30) == 0
