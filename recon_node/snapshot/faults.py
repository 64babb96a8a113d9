"""What can be wrong with a snapshot: all of it, or a part that is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class SnapshotError(Exception):
    """A snapshot cannot be read, written or trusted. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class SnapshotFault:
    """Something of a snapshot that cannot be used."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


OnFault = Callable[[SnapshotFault], None]
