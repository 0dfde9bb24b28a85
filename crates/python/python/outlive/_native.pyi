"""The compiled part; private. ``outlive`` is the public face."""

from outlive import Job as Job

__all__ = ["Job", "code_text", "open", "version"]

def version() -> str:
    """The version of the package."""

def code_text(code: int) -> str:
    """The short phrase of an error code; empty for an unknown one."""

def open(rank: int | None, ranks: int | None, timeout: float) -> Job:
    """Join the job; see ``outlive.open``."""
