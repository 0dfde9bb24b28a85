"""What the calls of Outlive give back and raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outlive import _native

Survives = Literal["process", "node-crash", "node-loss", "domain", "all-nodes"]


class Error(Exception):
    """An error of Outlive; its codes are stable, see ``docs/errors.md``."""

    def __init__(self, code: int, entity: str, reason: str, remedy: str) -> None:
        super().__init__(code, entity, reason, remedy)
        self.code = code
        self.entity = entity
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        text = _native.code_text(self.code)
        return f"OL-{self.code} {text}: {self.entity}: {self.reason}; {self.remedy}"


@dataclass(frozen=True)
class Level:
    """A level of a job: where versions are kept."""

    name: str
    survives: Survives
    version: int | None


@dataclass(frozen=True)
class Status:
    """What a job knows without waiting."""

    is_protected: bool
    rank: int
    ranks: int
    node: int
    incarnation: int
    regions: int
    bytes: int
    taken: int
    failed: int
    blocked_ns: int
    version_taken: int | None
    version_surviving: dict[Survives, int | None]
    version_restored: int | None
    levels: dict[str, Level]
