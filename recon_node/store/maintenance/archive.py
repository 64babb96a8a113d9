"""The file that `recon-node store export` writes: one CARv1 that any CAR tool can read.

    header      its one root is the manifest
    manifest    {type: "recon-node/events", version: 1, network, events, pages: [CID, ...]}
    page        {events: [[EventId, [CID, ...]], ...], shared: [CID, ...]}
    blocks of the page's events; then the next page and its blocks, and so on

The events stand in the order of the feed, then those that are not delivered yet. An event is listed
with its EventId and the CIDs of its blocks in the order of its own CAR, whose root is the event
itself: so every event's CAR comes out again byte for byte, and everything in the file hangs
together from its root, as tools that walk DAGs expect it. All but the EventIds is DAG-CBOR links.

Each block is written once. Before a page's events, its own blocks come, and of the blocks that
several events share those that no earlier page had: `shared` names them, for a reader to keep. So
reading takes the memory of a page (at most 2,000 events, or 8 MiB and one event), and of the shared
blocks, which may lie on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from recon_node.ceramic import EventId, EventIdError, Network, NetworkError
from recon_node.ipld import CID, DAG_CBOR, DagCborError, dag_cbor, varint
from recon_node.store.db.packing import section

TYPE: Final = "recon-node/events"
VERSION: Final = 1
PAGE_EVENTS: Final = 2000
PAGE_BYTES: Final = 8 * 1024 * 1024


OTHER_CAR: Final = (
    "This CAR was not written by `recon-node store export`; a CAR of one event goes into a running "
    "node by `recon-node events add`"
)


class ArchiveFormatError(ValueError):
    """A block is not what it should be in such a file."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The root of the file."""

    network: Network
    events: int
    pages: tuple[CID, ...]

    def encode(self) -> bytes:
        """As a DAG-CBOR block."""
        fields = {
            "type": TYPE,
            "version": VERSION,
            "network": self.network.id,
            "events": self.events,
            "pages": list(self.pages),
        }
        return dag_cbor.encode(fields)

    @classmethod
    def decode(cls, block: bytes) -> Manifest:
        """Read the block.

        Raises:
            ArchiveFormatError: it is no manifest, or one of a later version.
        """
        fields = _map(block, "the root")
        if fields.get("type") != TYPE:
            raise ArchiveFormatError(f"its root is not a manifest. {OTHER_CAR}")
        if fields.get("version") != VERSION:
            raise ArchiveFormatError(
                f"it is of the version {fields.get('version')}, this program knows {VERSION}"
            )
        pages, events = fields.get("pages"), fields.get("events")
        if not _all_cids(pages) or type(events) is not int:
            raise ArchiveFormatError("its manifest is broken")
        try:
            return cls(Network.from_id(fields["network"]), events, tuple(pages))
        except (KeyError, TypeError, NetworkError) as error:
            raise ArchiveFormatError(f"its manifest names no network: {error}") from None


@dataclass(frozen=True, slots=True)
class Page:
    """Some events, and which of the blocks that come with them later pages may need."""

    events: Sequence[tuple[EventId, Sequence[CID]]]
    shared: Sequence[CID]

    def encode(self) -> bytes:
        """As a DAG-CBOR block."""
        events = [[bytes(event_id), list(cids)] for event_id, cids in self.events]
        return dag_cbor.encode({"events": events, "shared": list(self.shared)})

    @classmethod
    def decode(cls, block: bytes) -> Page:
        """Read the block.

        Raises:
            ArchiveFormatError: it is no page.
        """
        fields = _map(block, "a page")
        events, shared = fields.get("events"), fields.get("shared")
        if not isinstance(events, list) or not _all_cids(shared):
            raise ArchiveFormatError("a page is broken")
        found = []
        for entry in events:
            if not (isinstance(entry, list) and len(entry) == 2 and _all_cids(entry[1])):
                raise ArchiveFormatError("a page's list of events is broken")
            try:
                found.append((EventId(entry[0]), entry[1]))
            except (EventIdError, TypeError) as error:
                raise ArchiveFormatError(f"a page names no EventId: {error}") from None
        return cls(found, shared)


def cid_of(block: bytes) -> CID:
    """The CID of a manifest or a page."""
    return CID.of(DAG_CBOR, block)


def header(root: CID) -> bytes:
    """The beginning of a CARv1 with that root."""
    fields = dag_cbor.encode({"roots": [root], "version": 1})
    return varint.encode(len(fields)) + fields


def event_car(event_id: EventId, blocks: Sequence[tuple[CID, bytes]]) -> bytes:
    """An event's own CAR."""
    return header(event_id.event_cid) + b"".join(section(cid, block) for cid, block in blocks)


def _map(block: bytes, what: str) -> dict[str, Any]:
    try:
        fields = dag_cbor.decode(block)
    except DagCborError as error:
        raise ArchiveFormatError(f"{what} is {error}") from None
    if not isinstance(fields, dict):
        raise ArchiveFormatError(f"{what} is not a map")
    return fields


def _all_cids(value: Any) -> TypeGuard[list[CID]]:
    return isinstance(value, list) and all(isinstance(each, CID) for each in value)
