"""Unmodified programs outlive their kernel: `outlive minickpt run`, panic, `restore`."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LONG, ROOT, SOAK
from machine import WORK, Machine, with_libraries
from skip import skip

Make = Callable[..., Machine]

# The program is protected at the first boot and restored at each later one;
# then the kernel dies, DEATHS times.
SCENARIO = """
mkdir -p /dax/memory
NEXT="--kernel /dax/boot/vmlinuz --initrd /dax/boot/initrd --line-from /next-line"
NEXT="--memory /dax/memory $NEXT"
{early}
if [ $BOOT = 1 ]; then
    outlive minickpt run $NEXT -- {words} & P=$!
else
    outlive minickpt restore $NEXT & P=$!
fi
until omkctl query | grep -qE "state (empty|acked).* registered [1-9]"; do
    usleep 200000
    kill -0 $P 2>/dev/null || break
done
[ $BOOT = 1 ] || omkctl times
if [ $BOOT -le {deaths} ]; then
    kill -0 $P && usleep 1500000 && outlive-inject $(echo "{kinds}" | cut -d' ' -f$BOOT)
    echo "BAD not dead"
fi
usleep 1500000; touch /dax/stop
wait $P; echo "EXIT $?"
rm /dax/stop
{after}
"""
# A restore before the file system of the memory is mounted.
EARLY = """
if [ $BOOT = 2 ]; then
    umount /dax
    for i in 1 2; do outlive minickpt restore --memory /dax/memory; echo "EARLY $?"; done
    outlive minickpt run --memory /dax/memory -- /bin/true; echo "EARLY RUN $?"
    rm -r /dax/memory
    mount -t ext4 -o dax=always /dev/pmem0 /dax
fi
"""


@pytest.fixture(scope="session")
def outlive() -> dict[str, Path]:
    """The command with its libraries, as files of the machine."""
    named = os.environ.get("OUTLIVE_BIN")
    places = (
        [Path(named)] if named else [ROOT / f"target/{k}/outlive" for k in ("release", "debug")]
    )
    for place in places:
        if place.exists():
            small = WORK / "command/outlive"
            small.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["strip", "-o", small, place], check=True)
            return with_libraries(small)
    skip("minickpt", "the command is not built; make build")
    raise AssertionError("skip() ends the test")


def scenario(words: str, kinds: list[str], early: str = "", after: str = "") -> str:
    """The program `words` through the deaths `kinds`."""
    return SCENARIO.format(
        words=words, deaths=len(kinds), kinds=" ".join(kinds), early=early, after=after
    )


def survive(m: Machine, boots: int, timeout_s: float = 240.0) -> None:
    """Through all boots to the end of the program; prints the times."""
    for boot in range(2, boots + 2):
        m.expect(f"BOOT {boot} ", timeout_s)
    m.expect("^TIMES", timeout_s, never="BAD|OL-")
    m.expect("EXIT 0", timeout_s, never="BAD|EXIT [1-9]|OL-")
    print(table(m))


PARTS = ("saved", "kernel", "module", "files", "restored", "armed", "resumed")


def table(m: Machine) -> str:
    """Times by part of each survival beside the bare boot of the same machine, whose
    first boot made the file system: that time is taken off.
    """
    boot = m.expect_past(r"BOOT 1 uptime (\S+), of it (\S+) to (\S+) for")
    clock, before, after = (float(value) for value in boot.groups())
    bare = m.when("BOOT 1 ") - (after - before)
    rows = ["from the panic to, in s: " + " ".join(f"{name:>8}" for name in PARTS)]
    rows[0] += "    image rebuild  rearm  sum, of a bare boot"
    for _, line in m.lines:
        if not (said := re.search(r"^TIMES generation (\d+) (.*)", line)):
            continue
        values = said[2].split()
        at = {name: float(s) for name, s in zip(values[::2], values[1::2], strict=True)}
        ours = (at["saved"], at["restored"] - at["files"], at["resumed"] - at["restored"])
        rows.append(
            f"death {said[1]:>3}                 "
            + " ".join(f"{at[name]:8.3f}" for name in PARTS)
            + "".join(f"  {value:6.3f}" for value in ours)
            + f"  {sum(ours):.3f}  {100 * sum(ours) / bare:.0f} %"
        )
    rows.append(
        f"a bare boot: {bare:.2f} s from power-on to the mounted file system,"
        f" {clock - (after - before):.2f} of them by the kernel's clock"
    )
    return "\n".join(rows)


def lines_of(m: Machine) -> tuple[dict[int, str], dict[int, str]]:
    """What the program printed, by number of the line: over its deaths, and undisturbed.
    A write that a death interrupted is made again, so a line may come twice, but not
    with two values.
    """
    found: tuple[dict[int, str], dict[int, str]] = ({}, {})
    part = 0
    for _, line in m.lines:
        part = 1 if "UNDISTURBED" in line else part
        if said := re.search(r"line (\d+) (\S.*?) end\b", line):
            assert found[part].setdefault(int(said[1]), said[2]) == said[2], line
    return found


def same_as_undisturbed(m: Machine, words: str, timeout_s: float = 240.0) -> None:
    """What a program printed over its two deaths is what it prints without any."""
    m.expect("^UNDISTURBED", timeout_s)
    last = max(lines_of(m)[0])
    m.expect(f"line {last} .* end", timeout_s)
    kept, alone = lines_of(m)
    # Characters that the serial driver held died with the kernel, and the kernel's own
    # cut into lines: a gap for each death. Each value depends on all before it.
    gaps = [n for n in range(1, last) if n not in kept and n + 1 in kept]
    assert len(gaps) <= 2 and last > 20, (words, gaps)
    assert kept == {number: alone[number] for number in kept}


def test_four_panics_in_a_row(machine: Make, outlive: dict[str, Path]) -> None:
    """Two threads with a pattern in every register, through four deaths. The first
    restore comes before the file system is mounted, and harms nothing.
    """
    kinds = ["null", "panic", "null", "panic"] if LONG else ["null", "panic"]
    words = "/bin/regstress 2 0 3000000 /dax/stop"
    with machine(scenario(words, kinds, early=EARLY), extra=outlive) as m:
        m.expect("regs ok", 120)
        for attempt in (1, 2):
            m.expect(f"OL-309.*attempt {attempt} to restore image 1, which still waits", 120)
            m.expect("EARLY 69", 30)
        m.expect("OL-502.*image 1 waits to be restored", 30)
        m.expect("EARLY RUN 75", 30)
        m.read_to = 0
        survive(m, len(kinds))
        rounds = [int(n) for _, line in m.lines for n in re.findall(r"regs ok (\d+)", line)]
        # It went on where it was: no round came twice, none was left out.
        assert rounds == list(range(16, rounds[-1] + 1, 16))


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
@pytest.mark.parametrize(
    "words", ["/bin/regstress 2 0 3000000 /dax/stop", "/bin/fpustress 0 100000 /dax/stop"]
)
def test_stress_by_ten_injections(machine: Make, outlive: dict[str, Path], words: str) -> None:
    """Ten deaths each (a hundred in the soak), all survived: the figure of the
    mini-ckpts study is 100 of 100.
    """
    kinds = ["null", "panic", "no-memory", "panic", "spin-panic"] * (20 if SOAK else 2)
    with machine(scenario(words, kinds), extra=outlive) as m:
        survive(m, len(kinds))


def debian_python() -> dict[str, Path]:
    """Debian's python3 and those of its modules that the program imports."""
    python = Path("/usr/bin/python3")
    if not python.exists():
        skip("minickpt", "Debian's python3 is not installed")
    ask = "import sys, os, math, encodings.latin_1, encodings.ascii\n"
    ask += "for m in list(sys.modules.values()): print(getattr(m, '__file__', None) or '')"
    said = subprocess.run(
        [python, "-I", "-S", "-c", ask], capture_output=True, text=True, check=True
    ).stdout
    modules = {path.lstrip("/"): Path(path) for path in said.split()}
    return {**with_libraries(python.resolve()), **modules}


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
@pytest.mark.parametrize("program", ["shell", "python", "openmp"])
def test_programs_of_debian_print_what_they_would(
    machine: Make, outlive: dict[str, Path], program: str
) -> None:
    """Unmodified, dynamically linked programs, through two deaths: a shell, Python
    with floats, OpenMP with eight threads.
    """
    programs = ROOT / "tests/minickpt/programs"
    if program == "shell":
        words, extra = "/bin/dash /loop.sh /dax/stop", with_libraries(Path("/bin/dash"))
        extra["loop.sh"] = programs / "loop.sh"
    elif program == "python":
        extra = debian_python()
        binary = Path("/usr/bin/python3").resolve().name
        words = f"/bin/{binary} -S /floats.py /dax/stop"
        extra["floats.py"] = programs / "floats.py"
    else:
        words, extra = "/bin/omp 8 /dax/stop", with_libraries(WORK / "dynamic/omp")
    run = f"export PYTHONHOME=/usr\necho UNDISTURBED; {words}"
    text = scenario(words, ["null", "panic"], "export PYTHONHOME=/usr", run)
    with machine(text, extra={**outlive, **extra}) as m:
        survive(m, 2)
        same_as_undisturbed(m, words)
