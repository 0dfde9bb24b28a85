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
if [ $BOOT = 1 ]; then
    outlive minickpt run $NEXT -- {words} & P=$!
else
    outlive minickpt restore $NEXT & P=$!
fi
until omkctl query | grep -qE "state (empty|acked).* registered [1-9]"; do
    usleep 200000
    kill -0 $P 2>/dev/null || break
done
if [ $BOOT -le {deaths} ]; then
    kill -0 $P && usleep 1500000 && outlive-inject $(echo "{kinds}" | cut -d' ' -f$BOOT)
    echo "BAD not dead"
fi
omkctl times
usleep 1500000; touch /dax/stop
wait $P; echo "EXIT $?"
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


def scenario(words: str, kinds: list[str]) -> str:
    """The program `words` through the deaths `kinds`."""
    return SCENARIO.format(words=words, deaths=len(kinds), kinds=" ".join(kinds))


def survive(m: Machine, boots: int, timeout_s: float = 240.0) -> None:
    """Through all boots to the end of the program; prints the times."""
    for boot in range(2, boots + 2):
        m.expect(f"BOOT {boot} ", timeout_s)
    times = m.expect("^TIMES (.*)", timeout_s, never="BAD|OL-")[1]
    m.expect("EXIT 0", timeout_s, never="BAD|EXIT [1-9]|OL-")
    print(f"bare boot {m.when('^BOOT 1'):.1f} s to /dax; the last survival, s: {times}")


def test_four_panics_in_a_row(machine: Make, outlive: dict[str, Path]) -> None:
    """Two threads with a pattern in every register, through four deaths."""
    kinds = ["null", "panic", "null", "panic"] if LONG else ["null", "panic"]
    with machine(scenario("/bin/regstress 2 0 3000000 /dax/stop", kinds), extra=outlive) as m:
        m.expect("regs ok", 120)
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
