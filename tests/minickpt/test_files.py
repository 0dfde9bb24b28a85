"""Files that a program writes to: nothing that a call gave is gone after a death, and what
cannot be kept is refused by name when it is opened.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from machine import Machine, disk_modules
from survival import scenario

Make = Callable[..., Machine]

# A disk of its own, not on DAX: what the kernel holds of it goes with the kernel.
DISK = """
mkdir -p /disk
for module in /modules/disk/*.ko; do insmod $module; done
until [ -b /dev/vda ]; do usleep 50000; done
mount -t ext4 -o commit=300 /dev/vda /disk || echo "BAD mount"
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An ext4 in a file."""
    image = tmp_path / "disk"
    with image.open("wb") as out:
        out.truncate(64 << 20)
    subprocess.run(["/sbin/mke2fs", "-q", "-t", "ext4", image], check=True)
    return image


def test_what_a_call_gave_is_there(machine: Make, outlive: dict[str, Path], disk: Path) -> None:
    """Appending, replacing by rename, making and removing on an ext4 that writes back every
    300 s, over two deaths. tmpfs, /dev/shm and a shared mapping off DAX are refused; a pipe
    still holds what it held.
    """
    text = scenario("/bin/written /disk /dax/stop", ["null", "panic"], early=DISK)
    # The host keeps what the guest wrote, as a disk with a battery does.
    options = ("-drive", f"file={disk},if=virtio,format=raw,cache=unsafe")
    with machine(text, extra={**outlive, **disk_modules()}, options=options) as m:
        for what, name in (
            ("a pseudo-terminal: No such device", "/dev/ptmx"),
            ("a namespace: Operation not permitted", "unshare"),
            ("a file of tmpfs: Read-only", "/tmp/volatile"),
            ("shared memory: Read-only", "/dev/shm/volatile"),
            ("a shared mapping: No such device", "/disk/map"),
        ):
            m.expect(f"OL-110.*{name}", 120)
            m.expect(f"written refused {what}", 30)
        for boot in (2, 3):
            m.expect(f"BOOT {boot} ", 240)
            m.expect("^TIMES", 240, never="^BAD")
        m.expect("EXIT 0", 240, never="^BAD|EXIT [1-9]")
        rounds = [int(n) for _, line in m.lines for n in re.findall(r"written ok (\d+)", line)]
        assert rounds and rounds == sorted(rounds), rounds
