"""A thread that the death's NMI meets on its way into the kernel, out of it, or between two
threads: the emulator's debugger stops the processor at the instruction, the other one (or an
NMI from outside) kills the kernel, and the program must go on as if nothing had been.
"""

import json
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LONG
from debugger import Debugger
from machine import Machine
from survival import scenario

Make = Callable[..., Machine]

WOUND, GS_OTHER, CHANGING = 1 << 9, 1 << 10, 1 << 11

# Where the processor first stops, how many instructions further it stands when the NMI
# comes (from 100 on: after the base of FS is another), and what the image must say of some
# thread of the program.
PLACES: dict[str, tuple[str, int, int]] = {
    "call": ("entry_SYSCALL_64", 0, WOUND | GS_OTHER),
    "call, GS swapped": ("entry_SYSCALL_64", 1, WOUND),
    "call, RSP kept": ("entry_SYSCALL_64", 2, WOUND),
    "call, other stack": ("entry_SYSCALL_64", 4, WOUND),
    "call, half pushed": ("entry_SYSCALL_64", 12, WOUND),
    "call, but one pushed": ("entry_SYSCALL_64", 24, WOUND),
    "call, all pushed": ("entry_SYSCALL_64", 26, 0),
    "call ends": ("entry_SYSRETQ_unsafe_stack", 0, 0),
    "call ends, GS swapped": ("entry_SYSRETQ_unsafe_stack", 1, GS_OTHER),
    "interrupt": ("asm_sysvec_apic_timer_interrupt", 0, WOUND | GS_OTHER),
    "interrupt, RSI pushed": ("asm_sysvec_apic_timer_interrupt", 5, WOUND | GS_OTHER),
    "interrupt, RSI changed": ("asm_sysvec_apic_timer_interrupt", 6, WOUND | GS_OTHER),
    "interrupt, half pushed": ("asm_sysvec_apic_timer_interrupt", 12, WOUND | GS_OTHER),
    "interrupt, all pushed": ("asm_sysvec_apic_timer_interrupt", 24, WOUND | GS_OTHER),
    "interrupt, GS swapped": ("asm_sysvec_apic_timer_interrupt", 38, WOUND),
    "interrupt, half copied": ("asm_sysvec_apic_timer_interrupt", 60, WOUND),
    "interrupt ends": ("native_irq_return_iret", 0, GS_OTHER),
    "threads change": ("__switch_to", 6, CHANGING),
    "threads change, vectors kept": ("__switch_to", 18, CHANGING),
    "threads change, in a call": ("__switch_to", 30, 0),
    # After the base of FS has changed.
    "threads change, other FS": ("__switch_to", 100, CHANGING),
    "threads change, GS swapped": ("__switch_to", 105, CHANGING),
    "threads change, other GS": ("__switch_to", 106, CHANGING),
    "threads change, other current": ("__switch_to", 117, CHANGING),
}
SHORT = ("call", "call, half pushed", "threads change, other FS")

STOPS = ("nmi_shootdown_cpus", "__const_udelay", "atomic_notifier_call_chain")
SIGNAL = "arch_do_signal_or_restart"
SYMBOLS = sorted({place[0] for place in PLACES.values()} | {*STOPS, SIGNAL})
EARLY = f"""
taskset -p {{}} $$ >/dev/null
[ $BOOT != 1 ] || grep -E " ({"|".join(SYMBOLS)})$" /proc/kallsyms | sed 's/^/SYMBOL /'
[ $BOOT = 1 ] || omkctl dump | grep "^THREAD.* cs-"
"""
KERNEL = 1 << 63


def in_program(where: str, words: dict[str, int]) -> bool:
    """True if the processor works for one of the program's threads there."""
    if where == "__switch_to":
        return words["fs_base"] != 0
    # The way in and out of the program, not of the kernel: the base says which.
    ours = words["r15"] >> 48 == 0x5EED
    return ours and (where == "entry_SYSRETQ_unsafe_stack" or words["gs_base"] < KERNEL)


def stop(debugger: Debugger, cpu: int, address: int, where: str, further: int) -> None:
    """Brings the processor to the place."""
    debugger.stop_at(address)
    while True:
        at = debugger.go()
        words = debugger.registers(at)
        assert words["rip"] == address, f"{words['rip']:x}"
        if at == cpu and in_program(where, words):
            break
        debugger.stop_no_more_at(address)
        debugger.go(at, step=True)
        debugger.stop_at(address)
    debugger.stop_no_more_at(address)
    if further >= 100:
        further -= 100
        while (fs_base := debugger.registers(cpu)["fs_base"]) == words["fs_base"]:
            debugger.go(cpu, step=True)
        if not fs_base:
            # The next one is a thread of the kernel.
            return stop(debugger, cpu, address, where, further + 100)
    for _ in range(further):
        debugger.go(cpu, step=True)
    return print(f"{where}+{debugger.registers(cpu)['rip'] - address:x}", end=" ")


def inject_nmi(path: Path) -> None:
    """An NMI from outside, which the first processor gets."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(30)
        monitor.connect(str(path))
        lines = monitor.makefile("rw")
        lines.readline()
        for command in ("qmp_capabilities", "inject-nmi"):
            lines.write(json.dumps({"execute": command}) + "\n")
            lines.flush()
            while "return" not in json.loads(lines.readline()):
                pass


def first_alone(debugger: Debugger, symbols: dict[str, int], stops: tuple[str, ...]) -> None:
    """The first processor runs alone, until it has sent its NMI, or longer."""
    for symbol in stops:
        debugger.stop_at(symbols[symbol])
        assert debugger.go(0) == 0
        debugger.stop_no_more_at(symbols[symbol])


@pytest.mark.parametrize("dying", ["0", "1", "late"])
def test_an_nmi_meets_a_thread_on_its_way(
    machine: Make, outlive: dict[str, Path], dying: str, tmp_path: Path
) -> None:
    """Place by place, a death at each, by an NMI that nobody knows. `dying` 0: it meets the
    first processor, and the crash NMI of that the program on the second, which stands and
    answers nothing before. 1: it meets the program itself. late: the second processor stands
    until the kernel no longer waits for it, as if its host had not let it run. On such hosts a
    kernel measures its loops wrongly too: there udelay() returns at once.
    """
    names = list(PLACES)[:: 1 if dying == "0" else 3] if LONG else list(SHORT)
    names = names[:1] if dying == "late" else names
    # One place again, by hand.
    if only := os.environ.get("OUTLIVE_MINICKPT_PLACES"):
        names = [name for name in PLACES if re.search(only, name)]
    if dying == "1":
        names = [name for name in names if PLACES[name][0] != "asm_sysvec_apic_timer_interrupt"]
    cpu = 0 if dying == "1" else 1
    gdb, qmp = tmp_path / "gdb", tmp_path / "qmp"
    script = scenario(
        f"/bin/callstress 2 {cpu} /dax/stop",
        ["panic"] * len(names),
        early=EARLY.format(2 - cpu),
        before="usleep 500000; echo 1 >/proc/sys/kernel/unknown_nmi_panic; echo FREEZE; sleep 60",
    )
    options = (
        *("-chardev", f"socket,path={gdb},server=on,wait=off,id=gdb", "-gdb", "chardev:gdb"),
        *("-qmp", f"unix:{qmp},server=on,wait=off"),
    )
    line = "lpj=300" if dying == "late" else ""
    with machine(script, extra=outlive, options=options, line=line) as m:
        for number, name in enumerate(names, 1):
            where, further, flags = PLACES[name]
            m.expect("FREEZE", 120, never="CALLS BAD|OL-")
            symbols = {s: int(m.expect_past(f"^SYMBOL (\\w+) . {s}$")[1], 16) for s in SYMBOLS}
            debugger = Debugger(gdb)
            stop(debugger, cpu, symbols[where], where, further)
            inject_nmi(qmp)
            if cpu == 1:
                first_alone(debugger, symbols, STOPS[: 3 if dying == "late" else 2])
            if dying == "late":
                # Longer than a notifier takes, shorter than the module waits.
                debugger.run(0)
                time.sleep(1)
                debugger.halt()
            debugger.close()
            m.expect(f"BOOT {number + 1} ", 120, never="CALLS BAD|OL-")
            start = m.read_to
            m.expect("^TIMES", 120, never="CALLS BAD|BAD|OL-")
            said = [line for _, line in m.lines[start : m.read_to] if line.startswith("THREAD")]
            found = [int(f, 16) for line in said for f in re.findall(r" flags (\w+) ", line)]
            print(f"{name}: flags {' '.join(f'{f:x}' for f in found)}")
            assert found, said
            ways = WOUND | GS_OTHER | CHANGING
            assert any(f & ways == flags for f in found), f"{name}: {said}"
        m.expect("calls done", 60, never="CALLS BAD|OL-")
        m.expect("EXIT 0", 60)


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
def test_a_death_between_the_trap_of_the_gate_and_its_stop(
    machine: Make, outlive: dict[str, Path], tmp_path: Path
) -> None:
    """The signal of the supervisor's own trap waits for the thread then, but is not the
    program's. On the second processor only the program runs, and takes signals.
    """
    gdb, qmp = tmp_path / "gdb", tmp_path / "qmp"
    script = scenario(
        "/bin/busybox taskset 2 /bin/churn 0 /dax/stop",
        ["panic"],
        early=EARLY.format(1).replace(" cs-", ""),
        before="usleep 500000; echo 1 >/proc/sys/kernel/unknown_nmi_panic; echo FREEZE; sleep 60",
    )
    options = (
        *("-chardev", f"socket,path={gdb},server=on,wait=off,id=gdb", "-gdb", "chardev:gdb"),
        *("-qmp", f"unix:{qmp},server=on,wait=off"),
    )
    with machine(script, extra=outlive, options=options) as m:
        m.expect("FREEZE", 120, never="BAD|OL-")
        symbols = {s: int(m.expect_past(f"^SYMBOL (\\w+) . {s}$")[1], 16) for s in SYMBOLS}
        debugger = Debugger(gdb)
        debugger.stop_at(symbols[SIGNAL])
        while debugger.go() != 1:
            debugger.stop_no_more_at(symbols[SIGNAL])
            debugger.go(0, step=True)
            debugger.stop_at(symbols[SIGNAL])
        debugger.stop_no_more_at(symbols[SIGNAL])
        inject_nmi(qmp)
        first_alone(debugger, symbols, STOPS[:2])
        debugger.close()
        m.expect("BOOT 2 ", 120, never="BAD|OL-")
        m.expect(" ip 1a7e00000036 ", 60, never="BAD|OL-")
        m.expect("^TIMES", 120, never="BAD|OL-")
        m.expect("churn done", 60, never="BAD|OL-")
        m.expect("EXIT 0", 60, never="BAD|OL-")
