"""The settings of snapshots."""

from typing import Annotated, Final

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from recon_node.base.setting_types import (
    SETTINGS,
    Count,
    Setting,
    TextList,
    checked_by,
    parse_seconds,
)
from recon_node.ceramic.auth.did import check_keys

_SHORTEST: Final = 60.0
"""Seconds between two scheduled snapshots, at least."""


def parse_period(value: object) -> float | None:
    """Return a time such as `6h`, `90m` or `1d` in seconds; None for an empty text.

    Raises:
        ValueError: it is not one, or less than a minute.
    """
    if value in ("", None):
        return None
    seconds = parse_seconds(value)
    if seconds < _SHORTEST:
        raise ValueError("snapshots can be made once a minute at most")
    return seconds


@dataclass(frozen=True, slots=True, config=SETTINGS)
class SnapshotSettings:
    """Snapshots: what a new node starts from, and what this node makes on a schedule."""

    sources: Annotated[TextList, Setting("snapshot_sources")] = ()
    """Snapshots to sync from when the node starts, before its peers deliver the rest: URLs such as
    "https://example.com/snapshots" or "s3://bucket/path". Only what the node lacks is fetched.
    """
    signers: Annotated[TextList, checked_by(check_keys), Setting("snapshot_signers")] = ()
    """Whose snapshots to read: did:keys, as `recon-node snapshot list` shows them. Empty: anyone's.

    Every event is checked like a peer's in any case. A signer can only leave events out.
    """
    url: Annotated[str, Setting("snapshot_url")] = ""
    """Where this node makes its own snapshots. Credentials come from the environment, such as
    AWS_ACCESS_KEY_ID.
    """
    every: Annotated[float | None, BeforeValidator(parse_period), Setting("snapshot_every")] = None
    """How often: "6h", "90m", "1d". Empty: never."""
    keep: Annotated[Count, Setting("snapshot_keep")] = 7
    """How many of them to keep; older ones are deleted."""
