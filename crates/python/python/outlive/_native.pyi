"""The compiled part; private. ``outlive`` is the public face."""

from outlive import Job

def version() -> str: ...
def code_text(code: int) -> str:
    """The short phrase of an error code; empty for an unknown one."""

def open(rank: int | None, ranks: int | None, timeout: float) -> Job: ...
