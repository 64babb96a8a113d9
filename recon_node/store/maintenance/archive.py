"""The file format of `recon-node store export`: one CARv1 that any CAR tool can read.

    header      its one root is the manifest
    manifest    {type: "recon-node/events", version: 1, network, events, pages: [CID, ...]}
    page        {events: [[EventId, [CID, ...]], ...], shared: [CID, ...]}
    blocks of the page's events; then the next page and its blocks, and so on

The events come in the order of the feed, followed by those that are not delivered yet. A page lists
an event's EventId and the CIDs of its blocks in the order of the event's own CAR, whose root is the
event. So every event's CAR can be restored byte for byte, and the root links to everything in the
file, as tools that walk DAGs expect. The links are DAG-CBOR links; EventIds are bytes.

Each block is written once, with the first page that has it. `shared` names the blocks of a page
that later pages may need, for a reader to keep. So reading takes the memory of a page (at most
2,000 events, or 8 MiB and one event) and that of the shared blocks, which may be on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from recon_node.ceramic import EventId, EventIdError, Network, NetworkError
from recon_node.ipld import CID, DAG_CBOR, DagCborError, car, dag_cbor
from recon_node.store.db.blocks import section

TYPE: Final = "recon-node/events"
_TYPE: Final = dag_cbor.encode("type") + dag_cbor.encode(TYPE)
"""With what the map of a manifest begins: DAG-CBOR has the shortest name first."""
VERSION: Final = 1
PAGE_EVENTS: Final = 2000
PAGE_BYTES: Final = 8 * 1024 * 1024

OTHER_CAR: Final = (
    "This CAR was not written by `recon-node store export`; to add a CAR of one event to a running "
    "node, use `recon-node events add`"
)


class ArchiveFormatError(ValueError):
    """A file or block does not have this format."""


class OtherCarError(ArchiveFormatError):
    """A CAR that is not an export."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The root of the file: which pages follow."""

    network: Network
    events: int
    pages: tuple[CID, ...]

    def encode(self) -> bytes:
        """Return the manifest as a DAG-CBOR block."""
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
        """Parse a block.

        Raises:
            ArchiveFormatError: it is not a manifest of this version.
        """
        if not block[1:].startswith(_TYPE):  # else it is anybody's, and may unfold to gigabytes
            raise OtherCarError(f"its root is not a manifest. {OTHER_CAR}")
        fields = _map(block, "the root")
        if fields.get("version") != VERSION:
            raise ArchiveFormatError(
                f"it has format version {fields.get('version')}; this program reads {VERSION}"
            )
        pages, events = fields.get("pages"), fields.get("events")
        if not _all_cids(pages) or type(events) is not int:
            raise ArchiveFormatError("its manifest is invalid")
        try:
            return cls(Network.from_id(fields["network"]), events, tuple(pages))
        except (KeyError, TypeError, NetworkError) as error:
            raise ArchiveFormatError(f"its manifest has no valid network: {error}") from None


@dataclass(frozen=True, slots=True)
class Page:
    """Some events, and those of their blocks that later pages may need."""

    events: Sequence[tuple[EventId, Sequence[CID]]]
    shared: Sequence[CID]

    def encode(self) -> bytes:
        """Return the page as a DAG-CBOR block."""
        events = [[bytes(event_id), list(cids)] for event_id, cids in self.events]
        return dag_cbor.encode({"events": events, "shared": list(self.shared)})

    @classmethod
    def decode(cls, block: bytes) -> Page:
        """Parse a block.

        Raises:
            ArchiveFormatError: it is not a page.
        """
        fields = _map(block, "a page")
        events, shared = fields.get("events"), fields.get("shared")
        if not isinstance(events, list) or not _all_cids(shared):
            raise ArchiveFormatError("a page is invalid")
        found = []
        for entry in events:
            if not (isinstance(entry, list) and len(entry) == 2 and _all_cids(entry[1])):
                raise ArchiveFormatError("a page has an invalid list of events")
            try:
                found.append((EventId(entry[0]), entry[1]))
            except (EventIdError, TypeError) as error:
                raise ArchiveFormatError(f"a page has an invalid EventId: {error}") from None
        return cls(found, shared)


def cid_of(block: bytes) -> CID:
    """Return the CID of a manifest or a page."""
    return CID.of(DAG_CBOR, block)


def header(root: CID) -> bytes:
    """Return the header of a CARv1 with that root."""
    return car.encode([root], {})


def event_car(event_id: EventId, blocks: Sequence[tuple[CID, bytes]]) -> bytes:
    """Return an event's own CAR."""
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
