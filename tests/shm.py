"""A /dev/shm of one's own (a mount namespace), so that everything in it is one's own."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from skip import skip


@dataclass
class Shm:
    """A /dev/shm that only the processes started through it see."""

    holder: int

    def inside(self, *words: object) -> list[str]:
        enter = ["nsenter", "-t", self.holder, "-U", "-m", "--preserve-credentials", "--"]
        return [str(word) for word in (*enter, *words)]

    @property
    def dir(self) -> Path:
        return Path(f"/proc/{self.holder}/root/dev/shm")

    def names(self) -> list[str]:
        return sorted(path.name for path in self.dir.iterdir())


@pytest.fixture
def shm() -> Iterator[Shm]:
    script = "mount -t tmpfs -o mode=1777 shm /dev/shm && echo up && exec cat"
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if holder.stdout.readline() != "up\n":
            skip("mount-namespace", "no mount namespace of one's own here")
        yield Shm(holder.pid)
    finally:
        holder.stdin.close()
        holder.wait(10)
