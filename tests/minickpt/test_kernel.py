"""The module alone: what a dying kernel saves, read by the next one.

Registers are compared by tests/minickpt/programs/omkctl.c, which shares no code
with the product's reader. Restored programs are in test_survive.py.
"""

import os
import re
from collections.abc import Callable

import pytest
from conftest import LONG, SOAK
from machine import Machine

Make = Callable[..., Machine]

# Two processes: every register in a pattern, and a thread in each state.
START = """
regstress 2 0 200000000 &
REGS=$!
states &
STATES=$!
until [ -s /dax/states.txt ]; do usleep 100000; done
usleep 300000
omkctl register $REGS
omkctl register $STATES
"""


def image(m: Machine, timeout_s: float = 90.0) -> list[str]:
    """The lines that `omkctl dump` prints between DUMP and END."""
    m.expect("^DUMP$", timeout_s)
    start = m.read_to
    m.expect("^DUMP END$", 30)
    return [line for _, line in m.lines[start : m.read_to - 1]]


def one(lines: list[str], pattern: str) -> re.Match[str]:
    """The only line that holds it."""
    found = [match for line in lines if (match := re.search(pattern, line))]
    assert len(found) == 1, f"{pattern}: {len(found)} in\n" + "\n".join(lines)
    return found[0]


def check_image(lines: list[str], message: str, more: int = 0) -> None:
    """What every image of START must hold, however the kernel died, and `more`
    processes of one thread.
    """
    text = "\n".join(lines)
    head = one(
        lines, r"^IMAGE \d+ cause \d flags (\w+) processes (\d+) threads (\d+) .* message (.*)"
    )
    assert head[1] == "0", text
    assert (int(head[2]), int(head[3])) == (2 + more, 6 + more), text
    assert re.search(message, head[4]), text
    assert not re.search("^RECORD", text, re.M), text
    # No pattern may be wrong; a thread may have been between two rounds.
    assert "pattern WRONG" not in text
    assert "pattern right" in text
    spin = one(lines, r"^THREAD .* st-spin cpu \d+ flags (\w+) ")
    assert int(spin[1], 16) & 0x40, text
    assert one(lines, r"^THREAD .* st-sleep .* orig_ax (\d+) ")[1] == "230"
    assert one(lines, r"^THREAD .* st-read .* orig_ax (\d+) ")[1] == "0"
    assert one(lines, r"^THREAD .* st-calls .* mask (\w+) ")[1] == "800"
    file = one(lines, r"^FD \d+ cloexec 1 pos (\d+) .* /dax/states.txt$")
    assert file[1] == "7", text
    one(lines, r"^SIGNAL 10 handler \w+ flags 1c000000 ")
    assert one(lines, r"^PROCESS \d+ st-calls .* umask (\d+) .* cwd (\S+) ").groups() == (
        "27",
        "/tmp",
    )
    # The whole map, in order, without overlap, down to the stack.
    spans = [(int(a, 16), int(b, 16)) for a, b in re.findall(r"^VMA (\w+)-(\w+) ", text, re.M)]
    starts = [n for n in range(1, len(spans)) if spans[n][0] < spans[n - 1][1]]
    assert len(starts) == 1 + more, text  # there the next process begins
    assert len(re.findall(r"^VMA .* flags 1?8\w ", text, re.M)) == 2 + more, text


def test_registers_survive_and_a_panic_during_restore_keeps_the_image(machine: Make) -> None:
    """A null pointer kills the kernel; the next one dies before it restored;
    the third finds the same image. Then a bit is flipped in it.
    """
    scenario = START.join(
        [
            "if [ $BOOT = 1 ]; then\n",
            """
    omkctl check
    arm
    outlive-inject null
else
    echo DUMP; omkctl dump; echo DUMP END
    omkctl times
fi
if [ $BOOT = 2 ]; then arm; outlive-inject panic; fi
# The body of image 1, then the superblock's generation.
rmmod outlive_minickpt
devmem 0x2f803100 32 0x12345678
insmod /modules/outlive_minickpt.ko area_addr=$addr area_size=$size; omkctl query
omkctl dump
rmmod outlive_minickpt
devmem 0x2f800030 32 77
insmod /modules/outlive_minickpt.ko area_addr=$addr area_size=$size; omkctl query
omkctl format; omkctl query
rmmod outlive_minickpt
insmod /modules/outlive_minickpt.ko area_addr=0x1000000 area_size=$size 2>&1 || echo REFUSED RAM
""",
        ]
    )
    with machine(scenario) as m:
        used = int(m.expect(r"omk check (\d+)")[1])
        assert used > 20000
        m.expect("BOOT 2")
        m.expect("omk state ready generation 1 registered 0 armed 1 retries 0")
        first = image(m)
        check_image(first, "Fatal exception")
        assert one(first, "^IMAGE 1 cause (\\d)")[1] == "2"
        m.expect("BOOT 3")
        m.expect("omk state ready generation 1 registered 0 armed 1 retries 1 panics 2")
        assert image(m) == first
        m.expect(r"omk state damaged generation 1 .* damage 3")
        m.expect("omk no image: damaged")
        m.expect(r"omk state damaged generation 0 .* damage 1")
        m.expect(r"omk state empty generation 0 .* damage 0")
        m.expect("REFUSED RAM")
        m.expect("SCENARIO END")


# kind, message of the panic, whether it overwrites a member of a registered task
KINDS = {
    "panic": ("asked to", 0),
    "null": ("Fatal exception", 0),
    "fs": ("Fatal exception", 2),
    "sighand": ("Fatal exception|Attempted to kill", 4),
    "parent": ("Fatal exception", 8),
    "files": ("Fatal exception", 1),
    "lockup": ("silent processor|Hard LOCKUP", 0),
    "soft-lockup": ("softlockup", 0),
    "hung": ("hung_task", 0),
    "no-memory": ("no memory", 0),
    "spin-panic": ("while another processor spins", 0),
}
CAUSES = {"panic": 1, "null": 2, "lockup": 3, "soft-lockup": 4, "hung": 5, "fs": 2, "files": 2}


@pytest.mark.skipif(not LONG, reason="the whole matrix is in make test-minickpt")
@pytest.mark.parametrize("cpu", ["0", "1"])
def test_every_way_to_die(machine: Make, cpu: str) -> None:
    """One machine, a death after the other: kind by kind on one processor,
    with threads in user mode, asleep, in calls and (spin-panic) with
    interrupts off.
    """
    kinds = os.environ.get("OUTLIVE_MINICKPT_KINDS", " ".join(KINDS)).split() * (5 if SOAK else 1)
    scenario = f"""
KIND=$(echo "{" ".join(kinds)} end" | cut -d' ' -f$BOOT)
if [ $BOOT != 1 ]; then
    echo DUMP; omkctl dump; echo DUMP END
    omkctl ack
fi
if [ "$KIND" != end ]; then
    rm -f /dax/states.txt
    {START}
    arm
    # Only now: loading a kernel takes an emulated processor seconds.
    echo 3 >/proc/sys/kernel/watchdog_thresh
    echo 4 >/proc/sys/kernel/hung_task_timeout_secs
    case $KIND in
    fs|sighand|parent|files) outlive-inject $KIND {cpu} 0 $STATES;;
    hung) outlive-inject hung;;
    spin-panic)
        # A registered thread that spins where only an NMI reaches it.
        outlive-inject spin-panic {cpu} 2000 & SPIN=$!
        usleep 300000
        omkctl register $SPIN;;
    *) outlive-inject $KIND {cpu};;
    esac
    sleep 60
fi
"""
    with machine(scenario, line="omk=watch_s=8") as m:
        for number, kind in enumerate(kinds, 1):
            message, flag = KINDS[kind]
            m.expect(f"BOOT {number + 1} ", 120)
            lines = image(m)
            check_image(lines, message, more=int(kind == "spin-panic"))
            if kind == "spin-panic":
                spin = one(lines, r"^THREAD .* outlive-inject cpu \d flags (\w+) .* orig_ax 16 ")
                assert int(spin[1], 16) & 3 == 3, "\n".join(lines)
            flags = int(one(lines, r"^PROCESS \d+ st-calls .* flags (\w+) ")[1], 16)
            assert flags & flag == flag, "\n".join(lines)
            if kind in CAUSES:
                assert one(lines, r"^IMAGE \d+ cause (\d)")[1] == str(CAUSES[kind])
            m.expect(f"omk state acked generation {number} ")
        m.expect("SCENARIO END")


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
def test_the_environment_says_which_rank_and_iteration_die(machine: Make) -> None:
    """Rank 0 passes, rank 1 dies at iteration 2; words that make no sense are
    told, and the device refuses what it does not know.
    """
    scenario = """
if [ $BOOT = 1 ]; then
    sleep 1000 & omkctl register $!
    OUTLIVE_INJECT=1:2:what iterate 1 1
    outlive-inject nonsense; echo "USAGE $?"
    outlive-inject panic 77; echo "CPU $?"
    arm
    export OUTLIVE_INJECT=1:2:panic:any,5:1:null
    iterate 0 4
    iterate 1 4
fi
omkctl dump | head -1
"""
    with machine(scenario) as m:
        m.expect("rank 1 iteration 0 inject -22")
        m.expect("USAGE 64")
        m.expect("CPU 69")
        m.expect("rank 0 iteration 3 inject 0")
        m.expect("rank 1 iteration 1 inject 0")
        m.expect("BOOT 2 ", never="rank 1 iteration 2")
        m.expect("^IMAGE 1 cause 1 .* message outlive-inject: asked to")
        m.expect("SCENARIO END")
