"""On a machine with two NUMA nodes a program runs near its memory, also after a death."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LONG
from machine import Machine, two_nodes
from survival import WAIT, scenario, survive

Make = Callable[..., Machine]
pytestmark = pytest.mark.skipif(not LONG, reason="in make test-minickpt")

# Programs that only say where they may run; then the one that is to die has two threads.
EARLY = """
if [ $BOOT = 1 ]; then
    echo "NODE $(cat /sys/block/pmem0/device/numa_node)"
    outlive minickpt setup --reserve-mib 16 --crash-mib 64 --memory /dax/memory
    said() {
        name=$1
        shift
        outlive minickpt run --memory /dax/memory "$@" -- \\
            /bin/grep Cpus_allowed_list /proc/self/status >/tmp/said 2>&1
        echo "SAID $name $? $(tr '\\n\\t' '  ' </tmp/said)"
    }
    arm
    OMP_NUM_THREADS=2 said fits
    OMP_NUM_THREADS=2 said any --placement any
    OMP_NUM_THREADS=4 said large
    OMP_NUM_THREADS=4 said near --placement near
    unset OMP_NUM_THREADS
    taskset -p 3 $$ >/tmp/mask && said refused --placement near
    taskset -p f $$ >/tmp/mask
    said unsaid --native
    export OMP_NUM_THREADS=2
fi
"""
# Of each thread of the program.
WHERE = """
for status in /proc/$(pidof regstress)/task/*/status; do
    echo "ALLOWED $BOOT $(sed -n 's/Cpus_allowed_list:.//p' $status)"
done
"""


def test_a_program_stays_near_its_memory(machine: Make, outlive: dict[str, Path]) -> None:
    """Two threads fit on the node of the memory: all their processors are its two, before
    the death and after it. What does not fit, or shall not, is left alone.
    """
    words = "/bin/regstress 2 0 3000000 /dax/stop"
    text = scenario(words, ["panic"], early=EARLY, before=WAIT + WHERE, last=WAIT + WHERE)
    with machine(text, cpus=4, extra=outlive, options=two_nodes()) as m:
        assert m.expect(r"^NODE (.*)", 240)[1] == "1"
        m.expect(r"NUMA node .* ok .* the memory lies on node 1 of 2, CPUs 2-3", 60)
        m.expect(r"this is memory of NUMA node [01]$", 60)

        def said(name: str, status: int = 0) -> tuple[str, str]:
            """What was told, and where the program may run."""
            line = m.expect(rf"^SAID {name} {status} (.*)", 120)[1]
            told, _, cpus = line.partition("Cpus_allowed_list:")
            return told.strip(), cpus.strip()

        assert said("fits") == ("", "2-3")
        assert said("any") == ("", "0-3")
        told, cpus = said("large")
        assert cpus == "0-3"
        assert "node 1 (CPUs 2-3)" in told and "OMP_NUM_THREADS=4" in told, told
        assert "node 0 too" in told and "--placement near" in told, told
        assert said("near") == ("", "2-3")
        told, cpus = said("refused", 64)
        assert "OL-100" in told and "only CPUs 0-1 are allowed" in told, told
        told, cpus = said("unsaid")
        assert cpus == "0-3" and "OMP_NUM_THREADS does not say" in told, told
        survive(m, 1)
        lists = re.findall(r"ALLOWED (\d) (\S+)", "\n".join(line for _, line in m.lines))
        threads = lists.count(("1", "2-3"))
        assert threads >= 2 and lists == [("1", "2-3")] * threads + [("2", "2-3")] * threads
