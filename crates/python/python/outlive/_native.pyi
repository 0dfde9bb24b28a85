"""The compiled part; private. ``outlive`` is the public face."""

from typing import Any

from outlive import Job as Job

__all__ = ["Job", "balance", "balance_over", "balance_refused", "code_text", "open", "version"]

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
