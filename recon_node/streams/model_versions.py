"""Versions of a model: which one applies to a document, and the model's definition in it.

A version is an event of the model's stream. A document follows the one that its header names as
`modelVersion`, until one of its data events names another; by default, the model's init event.
The definition after an event never changes, so later events of the model's stream do not affect
existing documents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from recon_node.ceramic import Event, EventKind
from recon_node.ipld import CID, IpldError

if TYPE_CHECKING:
    from recon_node.streams.state import EventState

Definitions = Mapping[CID, Any]
"""A model's definitions, by version: after its init event, and after the accepted events that
documents name as `modelVersion`."""

MAX_VERSIONS: Final = 100
"""Versions of its model that a document can name."""
MAX_DEFINITION: Final = 200_000
"""Weight of a model's definition that can be used, about bytes of JSON."""

_METADATA: Final = ("shouldIndex", "modelVersion")


def event_metadata(event: Event) -> dict[str, Any]:
    """Return the metadata in an event, links as text; empty for a time event.

    `shouldIndex` is true unless the init event says otherwise.
    """
    if event.kind is EventKind.TIME:
        return {}
    found: dict[str, Any] = {"shouldIndex": True} if event.kind is EventKind.INIT else {}
    header = event.payload.get("header")
    if isinstance(header, dict):
        for name in _METADATA:
            if name in header:
                value = header[name]
                found[name] = str(value) if isinstance(value, CID) else value
    return found


def version_of(metadata: Mapping[str, Any], init: CID) -> CID | None:
    """Return the version of its model that applies to a document; None if it is not a CID."""
    if "modelVersion" not in metadata:
        return init
    try:
        return CID.parse(str(metadata["modelVersion"]))
    except IpldError:
        return None


def named_versions(events: Iterable[Event]) -> set[CID]:
    """Return the versions of its model that a document names, without the model's init event.

    If there are more than `MAX_VERSIONS`, those with the lowest CIDs.
    """
    headers = (event.payload.get("header") for event in events if event.kind is not EventKind.TIME)
    found = {header.get("modelVersion") for header in headers if isinstance(header, dict)}
    return set(sorted(version for version in found if version is not None)[:MAX_VERSIONS])


def definitions_of(
    states: Iterable[EventState], init: CID, versions: Collection[CID]
) -> dict[CID, Any]:
    """Return a model's definitions: after its init event, and after accepted `versions`.

    Args:
        states: after all events of the model's stream.
        init: the CID of its init event.
        versions: events that documents name.

    Returns:
        By event; an empty object for a definition that is missing or exceeds `MAX_DEFINITION`.
    """
    found: dict[CID, Any] = {}
    for state in states:
        cid = state.event_cid
        if cid == init or (cid in versions and not state.validation_errors):
            is_usable = state.data.content and state.data.weight <= MAX_DEFINITION
            found[cid] = state.data.content if is_usable else {}
    return found
