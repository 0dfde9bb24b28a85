"""Memory on the network: the client of ``outlive memory-server``.

::

    import outlive.memory

    with outlive.memory.connect("10.0.0.5:7070", "heat", "heat.key") as memory:
        memory.allocate("state", array.nbytes)
        memory.put("state", array)
        again = numpy.frombuffer(memory.get("state"))

Calls may come from any thread; one at a time is served. They raise :class:`outlive.Error`; when
the server is lost its code is 310, also for calls that wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import Any, Literal

from outlive import _native

__all__ = ["About", "Memory", "Region", "Source", "connect"]


@dataclass(frozen=True)
class About:
    """What a server has, and what of it the job; in bytes."""

    memory: int
    free: int
    quota: int
    used: int


@dataclass(frozen=True)
class Region:
    """What is known of a region."""

    name: str
    kind: Literal["plain", "ring"]
    bytes: int
    puts: int
    waiting: int
    writers: int
    incomplete: list[tuple[int, int]]


@dataclass(frozen=True)
class Source:
    """What a sum is made of: a region of the server or, at ``address``, of another process."""

    name: str
    length: int
    offset: int = 0
    address: str | None = None


def _bytes(data: Any) -> bytes:
    """The bytes of a buffer; only what is no ``bytes`` is copied."""
    return data if isinstance(data, bytes) else memoryview(data).cast("B").tobytes()


class Memory:
    """A connection to a memory server, from :func:`connect`."""

    def __init__(self, native: _native.NetworkMemory) -> None:
        self._native = native

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; what was put stays with the server."""
        self._native.close()

    @property
    def direct(self) -> bool:
        """Whether bytes are accessed directly, and not over TCP."""
        return self._native.is_direct()

    def about(self) -> About:
        """What the server has, and what of it the job."""
        return About(*self._native.about())

    def allocate(self, name: str, size: int, *, ring: bool = False) -> bool:
        """Make a region of ``size`` bytes, all zero; false if it is there with that size."""
        return self._native.allocate(name, size, ring)

    def delete(self, name: str) -> None:
        """Remove a region, whoever uses it."""
        self._native.delete(name)

    def put(self, name: str, data: Any, offset: int = 0) -> None:
        """Write the bytes of a buffer (bytes, an array) at ``offset``; nobody reads half of it."""
        self._native.put(name, _bytes(data), offset)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Give ``length`` bytes from ``offset``, or all to the region's end."""
        if length is None:
            length = max(self.stat(name).bytes - offset, 0)
        return self._native.get(name, offset, length)

    def stat(self, name: str) -> Region:
        """Tell what is known of a region."""
        return Region(*self._native.stat(name))

    def regions(self) -> list[Region]:
        """List the job's regions; of what is incomplete in each the first range alone."""
        return [Region(*one) for one in self._native.regions()]

    def wait(self, name: str, after: int, timeout: float = 30.0) -> int:
        """Wait until a region had more puts than ``after``; give their number."""
        return self._native.wait(name, after, timeout)

    def push(self, name: str, data: Any, timeout: float = 30.0) -> None:
        """Add a message to a ring, waiting for room."""
        self._native.push(name, _bytes(data), timeout)

    def pop(self, name: str, timeout: float = 30.0) -> bytes:
        """Take the oldest message of a ring, waiting for one."""
        return self._native.pop(name, timeout)

    def sum(self, name: str, sources: Sequence[Source], length: int, offset: int = 0) -> None:
        """Have the server add up (XOR) sources into a part of a region."""
        words = [(one.address, one.name, one.offset, one.length) for one in sources]
        self._native.sum(name, offset, length, words)


def connect(
    address: str,
    job: str,
    key: str | PathLike[str],
    *,
    transport: Literal["auto", "shared", "tcp"] = "auto",
    timeout: float = 30.0,
    silence: float = 10.0,
    encrypt: bool = False,
) -> Memory:
    """Connect to the server at ``address`` (``host:port``) as a client of ``job``.

    ``key`` is the file of the job's key. ``timeout`` bounds the wait for others who read or write
    the same bytes; a server that is silent for ``silence`` seconds is lost. ``encrypt`` is for the
    bytes on TCP; requests always are.
    """
    return Memory(_native.NetworkMemory(address, job, key, transport, (timeout, silence), encrypt))
