"""What goes wrong in this package, or is left out. The texts are user-facing."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from recon_node.ipld import IpldError

MAX_NAMED: Final = 10
"""CIDs or paths that an error or a note names."""


class DagError(Exception):
    """A DAG or its source does not fit the request."""


class IncompleteDagError(DagError):
    """Blocks of the DAG are missing here."""


class DagEventError(ValueError):
    """A name that is not of a DAG or identifier, or an event that is not about one."""


class UnixFsError(IpldError):
    """Not UnixFS, or a kind of it that is not supported here."""


def path_text(path: Path | str | bytes) -> str:
    """Return a path as text, with bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Omissions:
    """Things that were left out: how many, of what kind and why, and the first of them."""

    count: int
    what: str
    first: tuple[str, ...]

    @classmethod
    def of(cls, things: Sequence[object], what: str, only: str | None = None) -> Self | None:
        """Return a note about things, by their names; None if there are none.

        Args:
            things: that were left out.
            what: they are, and why.
            only: the same about a single one.
        """
        if not things:
            return None
        kind = only if only is not None and len(things) == 1 else what
        return cls(len(things), kind, tuple(map(str, things[:MAX_NAMED])))
