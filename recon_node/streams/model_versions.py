"""Versions of a model: which one a document is of, and what the model says there.

A version is an event of the model's stream. A document is of the one that its header names as
`modelVersion`, until one of its data events names another; of the model's init event where none
does. What a model says after an event never changes, so that what comes later to the model's
stream is of no consequence for the documents that are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from recon_node.ceramic import Event, EventKind
from recon_node.ipld import CID, IpldError

if TYPE_CHECKING:
    from recon_node.streams.state import EventState

Definitions = Mapping[CID, Any]
"""What a model says after some of its events: after its init event, and after those that documents
name as `modelVersion` and that were accepted."""

MAX_VERSIONS: Final = 100
"""Of its model that a document can name."""
MAX_DEFINITION: Final = 200_000
"""Weight of a model's definition that documents can be judged by."""

_METADATA: Final = ("shouldIndex", "modelVersion")


def event_metadata(event: Event) -> dict[str, Any]:
    """What an event says of the stream's metadata; links as text. A stream is to be indexed unless
    its init event says otherwise; a time event says nothing."""
    found: dict[str, Any] = {"shouldIndex": True} if event.kind is EventKind.INIT else {}
    header = None if event.kind is EventKind.TIME else event.payload.get("header")
    if isinstance(header, dict):
        found |= {name: header[name] for name in _METADATA if name in header}
    return {name: str(value) if isinstance(value, CID) else value for name, value in found.items()}


def version_of(metadata: Mapping[str, Any], init: CID) -> CID | None:
    """The version of its model that a document is of; None where what it names is not a CID."""
    if "modelVersion" not in metadata:
        return init
    try:
        return CID.parse(str(metadata["modelVersion"]))
    except IpldError:
        return None


def named_versions(events: Iterable[Event]) -> set[CID]:
    """The versions of its model that a document names, beside the model's init event: no more than
    `MAX_VERSIONS`, those with the lowest CIDs."""
    headers = (event.payload.get("header") for event in events if event.kind is not EventKind.TIME)
    found = {header.get("modelVersion") for header in headers if isinstance(header, dict)}
    return set(sorted(version for version in found if version is not None)[:MAX_VERSIONS])


def definitions_of(
    states: Iterable[EventState], init: CID, versions: Collection[CID]
) -> dict[CID, Any]:
    """What a model says after its init event, and after those of `versions` that it accepted.

    Args:
        states: after all events of the model's stream.
        init: the CID of its init event.
        versions: those that documents name.

    Returns:
        An empty object for what is heavier than `MAX_DEFINITION`, or missing.
    """
    found: dict[CID, Any] = {}
    for state in states:
        cid = state.event_cid
        if cid == init or (cid in versions and not state.validation_errors):
            is_usable = state.data.content and state.data.weight <= MAX_DEFINITION
            found[cid] = state.data.content if is_usable else {}
    return found
