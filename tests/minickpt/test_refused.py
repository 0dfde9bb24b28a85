"""What the commands say of a machine, a program or an image that is not as it must be: a
coded error before the program starts, or a report and an ordinary boot.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LONG
from machine import AREA_AT_MIB, AREA_MIB, Machine

Make = Callable[..., Machine]

# Each line that begins with a name is followed by the exit status.
SCENARIO = f"""
area="{AREA_AT_MIB << 20} {AREA_MIB << 20}"
module() {{ insmod /modules/outlive_minickpt.ko area_addr=${{area% *}} area_size=${{area#* }}; }}
NEXT="--kernel /dax/boot/vmlinuz --initrd /dax/boot/initrd"
RUN="outlive minickpt run --memory /dax/memory"
BACK="outlive minickpt restore --memory /dax/memory"
case $BOOT in
1)
    rmmod outlive_minickpt
    $RUN $NEXT -- /bin/true; echo "NO MODULE $?"
    $BACK; echo "NO MODULE, RESTORE $?"
    module
    $RUN -- /bin/true; echo "NO NEXT KERNEL $?"
    $RUN --kernel /bin/busybox --initrd /dax/boot/initrd -- /bin/true; echo "NO KERNEL FILE $?"
    echo "console=ttyS0 quiet" >/tmp/line
    mount --bind /tmp/line /proc/cmdline
    $RUN $NEXT -- /bin/true; echo "NO RESERVATION $?"
    umount /proc/cmdline
    outlive minickpt run --memory /tmp/memory $NEXT -- /bin/true; echo "NO DAX $?"
    $RUN $NEXT -- /bin/absent; echo "NO PROGRAM $?"
    $BACK; echo "NO IMAGE $?"
    $RUN $NEXT -- /bin/busybox sh -c "(echo BAD child); echo BAD on"; echo "FORKS $?"
    $RUN $NEXT -- /bin/eat; echo "EATS $?"
    dd if=/dev/zero of=/dax/full bs=64k 2>/dev/null
    $RUN $NEXT -- /bin/regstress 1 1 1000; echo "FULL $?"
    rm /dax/full
    ;;
2)
    rmmod outlive_minickpt
    # In the body of the image.
    devmem 0x{(AREA_AT_MIB << 20) + 0x3100:x} 32 0x12345678
    module
    $BACK; echo "DAMAGED $?"
    cat /dax/memory/last.json
    $BACK; echo "GIVEN UP $?"
    ;;
3)
    rmmod outlive_minickpt
    foreign $area
    module
    omkctl query
    $BACK; echo "FOREIGN $?"
    cat /dax/memory/last.json
    rmmod outlive_minickpt
    # The generation in the superblock.
    devmem 0x{(AREA_AT_MIB << 20) + 0x30:x} 32 77
    module
    $BACK; echo "SUPERBLOCK $?"
    ;;
esac
if [ $BOOT != 3 ]; then
    $RUN $NEXT -- /bin/regstress 1 0 300000 /dax/stop & P=$!
    until omkctl query | grep -q "registered 1"; do kill -0 $P || echo BAD; usleep 200000; done
    outlive-inject panic
fi
$RUN $NEXT -- /bin/regstress 1 1 1000; echo "ORDINARY $?"
"""


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
def test_what_cannot_be_kept_is_told(machine: Make, outlive: dict[str, Path]) -> None:
    """One machine without each thing that is needed, in turn; then images that are damaged
    and of another kernel: told, given up, and the machine goes on.
    """
    with machine(SCENARIO, extra=outlive) as m:

        def told(what: str, code: str, status: str, more: str = "") -> None:
            """The lines up to `what STATUS` hold the code, once."""
            start = m.read_to
            assert m.expect(rf"^{what} (\d+)$", 120)[1] == status, m.tail()
            lines = [line for _, line in m.lines[start : m.read_to]]
            found = [line for line in lines if line.startswith("outlive: OL-")]
            assert len(found) == 1 and code in found[0], "\n".join(lines)
            assert re.search(more, "\n".join(lines)), "\n".join(lines)

        m.expect("BOOT 1 ", 120)
        told("NO MODULE", "OL-309", "69")
        told("NO MODULE, RESTORE", "OL-309", "69")
        told("NO NEXT KERNEL", "OL-309", "69", "ordinary boot")
        told("NO KERNEL FILE", "OL-309", "69", "bzImage")
        told("NO RESERVATION", "OL-309", "69", "crashkernel=")
        told("NO DAX", "OL-309", "69", "dax=always")
        told("NO PROGRAM", "OL-505", "127")
        told("NO IMAGE", "OL-404", "74")
        told("FORKS", "OL-110", "2", "can't fork: Function not implemented")
        told("EATS", "OL-401", "0", "ATE .* MiB, then Cannot allocate memory")
        told("FULL", "OL-401", "74")
        m.expect("BOOT 2 ", 120)
        told("DAMAGED", "OL-403", "65", "image 1 does not match its checksums")
        # What stands in last.json, of the attempt before.
        told("GIVEN UP", "OL-404", "74", '"error": "OL-403(?s:.*)"waits": false')
        m.expect("BOOT 3 ", 120)
        told("FOREIGN", "OL-407", "65")
        m.expect('"error": "OL-407', 30)
        m.expect('"waits": false', 30)
        told("SUPERBLOCK", "OL-403", "65", "its images are lost")
        m.expect("^ORDINARY 0", 120)
        m.expect("SCENARIO END")
