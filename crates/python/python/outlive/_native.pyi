"""The compiled part; private. ``outlive`` is the public face."""

from os import PathLike
from typing import Any, Literal, final

from outlive import Job as Job

_Kind = Literal["plain", "ring"]
_Stat = tuple[str, _Kind, int, int, int, int, list[tuple[int, int]]]

__all__ = [
    "Job",
    "NetworkMemory",
    "balance",
    "balance_over",
    "balance_refused",
    "code_text",
    "open",
    "version",
]

def balance(
    arrays: dict[str, bytes | None],
    speeds: bytes,
    background: bytes,
    start: bytes | None,
    choice: dict[str, Any],
) -> tuple[bytes, dict[str, float]]:
    """Balance a whole graph; see ``outlive.balance.balance``."""

def balance_over(
    comm: Any,
    names: bytes,
    arrays: dict[str, bytes | None],
    speed: float,
    background: float,
    choice: dict[str, Any],
) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes], tuple[float, float], tuple[int, int, bool]]:
    """Balance between processes; see ``outlive.balance.exchange``."""

def balance_refused(comm: object, reason: str) -> None:
    """Take part in a balancing as a process that cannot: the others refuse, too."""

def version() -> str:
    """The version of the package."""

def code_text(code: int) -> str:
    """The short phrase of an error code; empty for an unknown one."""

def open(rank: int | None, ranks: int | None, timeout: float) -> Job:
    """Join the job; see ``outlive.open``."""

@final
class NetworkMemory:
    """A connection to a memory server; see ``outlive.memory.Memory``."""

    def __new__(
        cls,
        address: str,
        job: str,
        key: str | PathLike[str],
        way: str,
        bounds: tuple[float, float],
        encrypt: bool,
    ) -> NetworkMemory: ...
    def close(self) -> None: ...
    def is_direct(self) -> bool: ...
    def about(self) -> tuple[int, int, int, int]: ...
    def allocate(self, name: str, size: int, ring: bool) -> bool: ...
    def delete(self, name: str) -> None: ...
    def put(self, name: str, data: bytes, offset: int) -> None: ...
    def get(self, name: str, offset: int, length: int) -> bytes: ...
    def stat(self, name: str) -> _Stat: ...
    def regions(self) -> list[_Stat]: ...
    def wait(self, name: str, after: int, timeout: float) -> int: ...
    def push(self, name: str, data: bytes, timeout: float) -> None: ...
    def pop(self, name: str, timeout: float) -> bytes: ...
    def sum(
        self,
        name: str,
        offset: int,
        length: int,
        sources: list[tuple[str | None, str, int, int]],
    ) -> None: ...
