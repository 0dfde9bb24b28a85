"""A kernel that dies while another processor is half way through something for a thread of the
program: a signal that is no longer waiting and not yet handled, registers of which some are put
back, the end of a thread that others know of already. The emulator's debugger stops it there.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LONG
from debugger import Debugger
from machine import Machine
from survival import scenario
from test_entry import first_alone, inject_nmi

Make = Callable[..., Machine]

# The program, where the second processor stands, and what the second argument must be there,
# if anything.
PLACES: dict[str, tuple[str, str, int | None]] = {
    # The frame of a signal that was taken from the queue is being written.
    "signal": ("signals 1 300000", "copy_fpstate_to_sigframe", None),
    # General registers are put back, vector registers are still those of the handler. In long
    # rounds most signals are the timer's, which comes while the registers hold something.
    "return": ("signals 1 20000000", "fpu__restore_sig", None),
    # FUTEX_WAKE for all processes: the word of an ending thread is cleared.
    "end": ("ended 1", "do_futex", 1),
}
# The maple tree of mappings is about to get new nodes. The old ones, still linked, are a list.
REPLACE = "mas_wmb_replace"
# How far the dying processor goes alone: to where it waits after it has asked the other one to
# stop; or further, so that only the kernel's NMI is left.
ASKED = ("crash_smp_send_stop", "smp_call_function_single_async", "__const_udelay")
NMI_SENT = ("nmi_shootdown_cpus", "__const_udelay")
STOPS = {"signal": ASKED, "return": ASKED, "end": NMI_SENT}
SYMBOLS = sorted({symbol for _, symbol, _ in PLACES.values()} | {REPLACE, *ASKED, *NMI_SENT})
# All but the program is on the first processor.
EARLY = f"""
taskset -p 1 $$ >/dev/null
[ $BOOT != 1 ] || grep -E " ({"|".join(SYMBOLS)})$" /proc/kallsyms | sed 's/^/SYMBOL /'
"""


def stop(debugger: Debugger, address: int, second: int | None) -> None:
    """Brings the second processor to the place."""
    debugger.stop_at(address)
    while True:
        at = debugger.go()
        words = debugger.registers(at)
        assert words["rip"] == address, f"{words['rip']:x}"
        if at == 1 and second in (None, words["rsi"]):
            break
        debugger.stop_no_more_at(address)
        debugger.go(at, step=True)
        debugger.stop_at(address)
    debugger.stop_no_more_at(address)


def word(debugger: Debugger, address: int) -> int:
    """Eight bytes of the kernel's memory."""
    return int.from_bytes(bytes.fromhex(debugger.ask(f"m{address:x},8")), "little")


def stop_in_change(debugger: Debugger, address: int) -> None:
    """Brings the second processor to where two old nodes or more are a list."""
    while True:
        stop(debugger, address, None)
        first = word(debugger, debugger.registers(1)["rsi"]) & ~255
        # The second word of a node: its first pivot, or the next node of the list.
        if word(debugger, first + 8) >> 56 == 0xFF:
            return
        debugger.go(1, step=True)


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
@pytest.mark.parametrize("asked", [True, False])
def test_a_death_while_mappings_change(
    machine: Make, outlive: dict[str, Path], asked: bool, tmp_path: Path
) -> None:
    """In a list of old nodes a link takes the place of a pivot, so that the mappings behind it
    were not saved, and the program went on without their memory (a SIGSEGV after the 90th death
    of a soak). If the processor can be asked to stop, all mappings are there. If only the NMI
    reaches it, the program is lost, and that is told.
    """
    gdb, qmp = tmp_path / "gdb", tmp_path / "qmp"
    script = scenario(
        "/bin/tree 1 200 /dax/stop",
        ["panic"],
        early=EARLY,
        before="usleep 500000; echo 1 >/proc/sys/kernel/unknown_nmi_panic; echo FREEZE; sleep 60",
    )
    options = (
        *("-chardev", f"socket,path={gdb},server=on,wait=off,id=gdb", "-gdb", "chardev:gdb"),
        *("-qmp", f"unix:{qmp},server=on,wait=off"),
    )
    with machine(script, extra=outlive, options=options) as m:
        m.expect("FREEZE", 240, never="BAD|OL-")
        symbols = {s: int(m.expect_past(f"^SYMBOL (\\w+) . {s}$")[1], 16) for s in SYMBOLS}
        debugger = Debugger(gdb)
        stop_in_change(debugger, symbols[REPLACE])
        inject_nmi(qmp)
        first_alone(debugger, symbols, ASKED if asked else NMI_SENT)
        debugger.close()
        m.expect("BOOT 2 ", 240, never="BAD|OL-")
        if not asked:
            m.expect("OL-404.*its tables did not fit or could not be read", 240, never="BAD")
            return
        m.expect("^TIMES", 240, never="BAD|OL-")
        m.expect("tree ok", 240, never="BAD|OL-|EXIT")
        m.expect("tree done", 120, never="BAD|OL-")
        m.expect("EXIT 0", 120)


@pytest.mark.parametrize("place", PLACES)
def test_a_death_half_way(
    machine: Make, outlive: dict[str, Path], place: str, tmp_path: Path
) -> None:
    """The program finds each of its registers and its memory as they must be, and each signal
    once.
    """
    words, symbol, second = PLACES[place]
    program = words.split()[0]
    gdb, qmp = tmp_path / "gdb", tmp_path / "qmp"
    deaths = 3 if LONG else 1
    script = scenario(
        f"/bin/{words} /dax/stop",
        ["panic"] * deaths,
        early=EARLY,
        before="usleep 500000; echo 1 >/proc/sys/kernel/unknown_nmi_panic; echo FREEZE; sleep 60",
    )
    options = (
        *("-chardev", f"socket,path={gdb},server=on,wait=off,id=gdb", "-gdb", "chardev:gdb"),
        *("-qmp", f"unix:{qmp},server=on,wait=off"),
    )
    with machine(script, extra=outlive, options=options) as m:
        for death in range(deaths):
            m.expect("FREEZE", 240, never="BAD|OL-")
            symbols = {s: int(m.expect_past(f"^SYMBOL (\\w+) . {s}$")[1], 16) for s in SYMBOLS}
            debugger = Debugger(gdb)
            stop(debugger, symbols[symbol], second)
            inject_nmi(qmp)
            first_alone(debugger, symbols, STOPS[place])
            debugger.close()
            m.expect(f"BOOT {death + 2} ", 240, never="BAD|OL-")
            m.expect("^TIMES", 240, never="BAD|OL-")
            m.expect(f"{program} ok", 240, never="BAD|OL-|EXIT")
        m.expect(f"{program} done", 120, never="BAD|OL-")
        m.expect("EXIT 0", 120)
