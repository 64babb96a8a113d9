"""What the write policy says of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from recon_node.ipld import CID


@dataclass(frozen=True, slots=True)
class PolicyRefusal:
    """Why the write policy refuses a stream."""

    reason: str
    is_final: bool = True
    """Whether the policy said so. It did not if it failed."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the write policy says of a batch."""

    keys: Mapping[bytes, PolicyRefusal] = field(default_factory=dict)
    """EventIDs, of either kind, that are refused."""
    streams: Mapping[CID, PolicyRefusal | None] = field(default_factory=dict)
    """Judged streams, by their init events. Those whose init event is unknown are not judged."""


UNJUDGED: Final = PolicyRefusal(
    "this node could not ask its write policy about the stream: try again later", is_final=False
)
