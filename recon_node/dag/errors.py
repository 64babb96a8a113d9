"""What goes wrong in this room, or is left out. The texts are user-facing."""

from dataclasses import dataclass
from typing import Final

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


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Things that were left out: how many, of what kind and why, and the first of them."""

    count: int
    what: str
    first: tuple[str, ...]
