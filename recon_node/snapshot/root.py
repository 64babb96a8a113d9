"""The root object of a snapshot: what it is of, where its tree starts, and who vouches for it.

    latest.car                              a copy of the newest root object
    roots/20261122T060000Z-CID.car          the root object of each snapshot
    packs/CID.car                           events, nodes (see `packs`)
    feeds/CID.parquet                       feed positions (below)

A root object is a CAR. Its root is an envelope (a JWS as DAG-JOSE, by the Ed25519 key of the node's
libp2p identity, as did:key), which signs the CID of the manifest. A third block has the nodes at
the top of the tree, so that a reader gets them without another round trip: a list of what stands at
their extents (see `packs`), level by level, the root first.

    manifest   {type: "recon-node/snapshot", version: 1, network, interests: [text, ...],
               ranges: [[lower, upper], ...] (ascending and apart), created: Unix seconds,
               root: null | CID, level, ahash, count, place: null | [pack, offset, size],
               packs: [[CID, size], ...], live,
               feed: null | {epoch, position, pages: [[CID, size, after, upto], ...]}}

The root object is written after everything that it names: a snapshot is there as a whole, or not.

Feed positions, and the times of time events and deliveries, belong to one node's log. With them, a
reader of that node's feed can start from the snapshot and go on behind the last position in it.
They are in pages, Parquet files named by the CID of their bytes: each has the positions from one to
another, all of them, sorted by EventId.

    feeds/CID.parquet     position: int64, event_id: binary, time: int64 or null (Unix seconds),
                          chain_id: string or null (CAIP-2),
                          delivered_at: int64 or null (Unix milliseconds),
                          fault: string or null (why a data event is invalid)

Pages of earlier versions lack `delivered_at` or `fault`, which then are null.

A new snapshot adds a page with the new positions. If the page before has less than twice as many,
the new one takes its place as well. So pages are few, and each position is written a few times.
"""

from __future__ import annotations

import io
import resource
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from msgspec import Meta, Struct, ValidationError, convert
from nacl.signing import SigningKey

from recon_node.ceramic import InvalidEventError, Network
from recon_node.ceramic.auth.did import controller_of, public_key
from recon_node.ceramic.auth.envelope import parse_envelope
from recon_node.ceramic.builder import signed_envelope
from recon_node.ceramic.errors import DidError
from recon_node.ceramic.time_proof import MAX_TIME
from recon_node.ipld import CID, DAG_CBOR, CarError, DagCborError, car, dag_cbor
from recon_node.ipld.cid import RAW
from recon_node.recon import KeyRange, Sha256a
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.packs import LocatorError, PackExtent, located, split_located
from recon_node.snapshot.tree.nodes import (
    HIGHEST,
    LOWEST,
    InnerNode,
    Link,
    NodeFormatError,
    Root,
    decode,
    level_of,
)

if TYPE_CHECKING:  # it takes a node 0.15 s to import, and most nodes make no snapshots
    import pyarrow as pa

TYPE: Final = "recon-node/snapshot"
VERSION: Final = 1
LATEST: Final = "latest.car"
ROOTS: Final = "roots"
FEEDS: Final = "feeds"
MAX_ENVELOPE: Final = 32 * 1024
"""Bytes of the block that has the signature."""
MAX_TOP_BYTES: Final = 64 * 1024
"""Nodes of up to this many bytes come with the root object."""
MAX_RANGES: Final = 4096
"""Key ranges of a snapshot, at most: a reader sums up its own keys in each of them, in one step."""


class RootError(ValueError):
    """An object is not a root object, or not one to trust. The message says why."""


_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Time = Annotated[int, Meta(ge=0, le=MAX_TIME)]


class SnapshotPage(NamedTuple):
    """The positions (after, upto] of a feed."""

    cid: CID
    size: _Number
    """Bytes."""
    after: _Number
    upto: _Number

    @property
    def positions(self) -> int:
        """How many."""
        return self.upto - self.after


@dataclass(frozen=True, slots=True)
class SnapshotFeed:
    """Which part of a node's feed a snapshot has."""

    epoch: str
    """Of the node's log."""
    position: _Number
    """The snapshot has all events up to this one, perhaps some behind it."""
    pages: tuple[SnapshotPage, ...]
    """Ascending, without gaps."""

    def __post_init__(self) -> None:
        ends = [0, *(page.upto for page in self.pages)]
        if ends[:-1] != [page.after for page in self.pages] or ends[-1] != self.position:
            raise ValueError("the pages of its feed do not follow each other")


class _ManifestFields(Struct):
    """A manifest as it is written. A text or a float is not a number: it may take any time."""

    network: _Number
    interests: tuple[str, ...]
    ranges: Annotated[tuple[KeyRange, ...], Meta(max_length=MAX_RANGES)]
    created: _Time
    root: CID | None
    level: _Number
    ahash: bytes | None
    count: _Number
    place: tuple[_Number, _Number, _Number] | None
    packs: tuple[tuple[CID, _Number], ...]
    live: _Number
    feed: SnapshotFeed | None = None


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """What a snapshot is of, and where its tree starts."""

    network: Network
    interests: Sequence[str]
    """As in the settings; none: everything."""
    ranges: Sequence[KeyRange]
    """The keys that the interests cover, ascending and apart."""
    created: int
    """Unix seconds."""
    tree: Root | None
    """None: there are no events."""
    extent: PackExtent | None
    """Of the tree's root."""
    packs: Sequence[tuple[CID, int]]
    """CIDs and sizes, by number."""
    live: int
    """Bytes of the packs that it uses, about."""
    feed: SnapshotFeed | None = None
    """None: some of the events that the node has delivered are not in it."""

    @property
    def count(self) -> int:
        """Events."""
        return 0 if self.tree is None else self.tree.count

    @property
    def created_text(self) -> str:
        """When it was made, as in ISO 8601."""
        return datetime.fromtimestamp(self.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def encode(self) -> bytes:
        """Return it as a DAG-CBOR block."""
        link = None if self.tree is None else self.tree.link
        feed = self.feed and asdict(self.feed) | {"pages": list(map(list, self.feed.pages))}
        fields = {
            "type": TYPE,
            "version": VERSION,
            "network": self.network.id,
            "interests": list(self.interests),
            "ranges": [[bytes(range_.lower), bytes(range_.upper)] for range_ in self.ranges],
            "created": self.created,
            "root": None if link is None else link.cid,
            "level": 0 if link is None else link.level,
            "ahash": None if link is None else bytes(link.hash),
            "count": self.count,
            "place": None if self.extent is None else list(self.extent),
            "packs": [[cid, size] for cid, size in self.packs],
            "live": self.live,
            "feed": feed,
        }
        return dag_cbor.encode(fields)

    @classmethod
    def decode(cls, block: bytes) -> SnapshotManifest:
        """Parse a block.

        Raises:
            RootError: it is not a manifest of this version.
        """
        try:
            fields = dag_cbor.decode(block)
            if not isinstance(fields, dict) or fields.get("type") != TYPE:
                raise RootError("it is not a snapshot's manifest")
            if fields["version"] != VERSION:
                raise RootError(
                    f"the snapshot has format version {fields['version']}; this program reads "
                    f"{VERSION}: use a newer recon-node"
                )
            return cls._of(convert(fields, _ManifestFields, builtin_types=(bytes,)))
        except RootError:
            raise
        except (DagCborError, LookupError, ValidationError, ValueError) as error:
            raise RootError(f"its manifest is broken: {error}") from None

    @classmethod
    def _of(cls, fields: _ManifestFields) -> SnapshotManifest:
        tree = extent = None
        if fields.root is not None:
            if fields.ahash is None or fields.place is None:
                raise ValueError("its tree has no hash or no place")
            tree = Root(
                Link(fields.level, LOWEST, Sha256a(fields.ahash), fields.root), fields.count
            )
            extent = PackExtent(*fields.place)
        ranges = fields.ranges
        is_in_order = all(left.upper <= right.lower for left, right in pairwise(ranges))
        if not is_in_order or any(key_range.is_empty for key_range in ranges):
            raise ValueError("its key ranges are not ascending and apart")
        network, packs = Network.from_id(fields.network), fields.packs
        facts = (network, fields.interests, ranges, fields.created, tree, extent, packs)
        return cls(*facts, fields.live, fields.feed)


@dataclass(frozen=True, slots=True)
class RootObject:
    """A manifest, who signed it, and the nodes at the top."""

    cid: CID
    """Of the envelope: the snapshot's own name."""
    signer: str
    """The did:key of a node."""
    manifest: SnapshotManifest
    top: Mapping[CID, tuple[bytes, bytes]] = field(repr=False)
    """Blocks and locators."""

    @property
    def name(self) -> str:
        """The name of the object."""
        time = datetime.fromtimestamp(self.manifest.created, UTC).strftime("%Y%m%dT%H%M%SZ")
        return f"{ROOTS}/{time}-{self.cid}.car"


def encode_root(
    manifest: SnapshotManifest, key: SigningKey, top: Mapping[CID, tuple[bytes, bytes]]
) -> tuple[RootObject, bytes]:
    """Sign a manifest; return the root object, also as bytes.

    `top` has blocks and locators of the nodes at the top, level by level.
    """
    block = manifest.encode()
    payload = CID.of(DAG_CBOR, block)
    cid, envelope = signed_envelope(key, payload)
    everything = KeyRange(LOWEST, HIGHEST)
    opened = ((decode(block, level_of(block), everything), place) for block, place in top.values())
    nodes = dag_cbor.encode([located(node, locator) for node, locator in opened])
    blocks = {cid: envelope, payload: block, CID.of(DAG_CBOR, nodes): nodes}
    return RootObject(cid, controller_of(key), manifest, top), car.encode([cid], blocks)


def decode_root(data: bytes, trusted: Collection[str] | None = None) -> RootObject:
    """Read a root object and check its signature, before anything else is read of it.

    It must be signed by one of the did:keys in `trusted`; None: by anyone.

    Raises:
        RootError: it is damaged, something else, the signature is wrong, or by somebody else.
    """
    try:
        content = car.decode(data)
        [cid] = content.roots
        signed = content.blocks.get(cid, b"")
        if len(signed) > MAX_ENVELOPE:
            raise ValueError(f"its envelope has more than {MAX_ENVELOPE} bytes")
        envelope = parse_envelope(dag_cbor.decode(signed))
        key = public_key(envelope.signer)
    except (CarError, DagCborError, InvalidEventError, DidError, ValueError) as error:
        raise RootError(f"it is not a root object: {error}") from None
    is_right = envelope.header["alg"] == key.alg
    if not is_right or not key.verify(envelope.signing_input, envelope.signature):
        raise RootError(f"its signature by {envelope.signer} is wrong")
    if trusted is not None and envelope.signer not in trusted:
        raise RootError(
            f"it is signed by {envelope.signer}, which is not trusted: add it to the setting "
            "`snapshot_signers`, or give --signer"
        )
    block = content.blocks.get(envelope.payload)
    if block is None:
        raise RootError("its manifest is missing")
    others = [block for block in content.blocks if block not in (cid, envelope.payload)]
    manifest = SnapshotManifest.decode(block)
    top: Mapping[CID, tuple[bytes, bytes]] = {}
    if others and manifest.tree is not None:
        top = _top(content.blocks[others[0]], manifest.tree.link)
    return RootObject(cid, envelope.signer, manifest, top)


def _top(block: bytes, root: Link) -> dict[CID, tuple[bytes, bytes]]:
    """Return the nodes that come with a root object, with their locators."""
    top: dict[CID, tuple[bytes, bytes]] = {}
    try:
        links = deque([root])
        for data in dag_cbor.decode(block):
            link = links.popleft()
            top[link.cid] = split_located(data, link.cid, link.hash)
            node = decode(top[link.cid][0], link.level, KeyRange(link.lower, HIGHEST))
            links += node.children if isinstance(node, InnerNode) else ()
    except (DagCborError, LocatorError, NodeFormatError, TypeError, IndexError):
        pass  # the others are fetched one by one
    return top


MAX_ROWS: Final = 500_000
"""Positions of a page."""
MAX_PAGE: Final = 64 * 1024 * 1024
"""Bytes of a page."""
_MAX_UNFOLDED: Final = 1024 * 1024 * 1024
"""Bytes of memory that reading a page may take; those of an honest one take a third."""
Row = tuple[int, bytes, int | None, str | None, int | None, str | None]
"""Position, EventId, time, chain, time of delivery, fault."""


class PageError(ValueError):
    """A page is damaged or something else."""


@cache
def _schema() -> pa.Schema:
    import pyarrow as pa

    always = {"position": pa.int64(), "event_id": pa.binary()}
    sometimes = {"time": pa.int64(), "chain_id": pa.string()}
    sometimes |= {"delivered_at": pa.int64(), "fault": pa.string()}
    fields = [pa.field(name, kind, nullable=False) for name, kind in always.items()]
    return pa.schema([*fields, *sometimes.items()])


def page_name(cid: CID) -> str:
    """Return the name of a page."""
    return f"{FEEDS}/{cid}.parquet"


def ranges_to_write(
    base: SnapshotFeed | None, head: int
) -> tuple[list[SnapshotPage], list[tuple[int, int]]]:
    """Return the pages that stay, and the positions (after, upto] of those to write, up to `head`.

    `base` is the feed of the snapshot to build on, from the same log.
    """
    stay = list(base.pages) if base is not None else []
    after = base.position if base is not None else 0
    while stay and head > after and stay[-1].positions < 2 * (head - after):
        if head - stay[-1].after > MAX_ROWS:
            break
        after = stay.pop().after
    return stay, list(pairwise([*range(after, head, MAX_ROWS), head]))


def encode_page(rows: Sequence[Row]) -> tuple[CID, bytes]:
    """Return a page and its CID."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema()
    columns = list(zip(*sorted(rows, key=lambda row: row[1]), strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=schema)
    out = io.BytesIO()
    pq.write_table(
        table,
        out,
        compression="zstd",
        use_dictionary=["chain_id", "fault"],
        column_encoding={"event_id": "DELTA_BYTE_ARRAY", "delivered_at": "DELTA_BINARY_PACKED"},
    )
    data = out.getvalue()
    return CID.of(RAW, data), data


def read_pages(objects: Objects, feed: SnapshotFeed) -> Iterator[pa.Table]:
    """Yield the pages of a feed; see `read_page`."""
    for page in feed.pages:
        yield read_page(objects, page)


def read_page(objects: Objects, page: SnapshotPage) -> pa.Table:
    """Return a page of a feed, checked against its CID.

    Raises:
        ObjectError: it cannot be read.
        PageError: it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = f"{page_name(page.cid)} in {objects.url}"
    if page.size > MAX_PAGE or page.positions > MAX_ROWS:
        found = f"{page.size:,} bytes and {page.positions:,} positions"
        raise PageError(f"{name} has {found}; {MAX_PAGE:,} and {MAX_ROWS:,} are the limits")
    data = objects.get_range(page_name(page.cid), 0, page.size)
    if not page.cid.matches(data):
        raise PageError(f"{name} does not match its CID")
    try:
        with _bounded_memory():
            table = pq.read_table(io.BytesIO(data), schema=_schema(), use_threads=False)
            positions = set(table["position"].to_pylist())
    except (pa.ArrowException, UnicodeDecodeError, OSError, MemoryError) as error:
        raise PageError(f"{name} is not a page: {error}") from None
    first, upto = page.after + 1, page.upto
    if len(table) != page.positions or positions != {*range(first, upto + 1)}:
        raise PageError(f"{name} does not have the positions {first} to {upto}")
    return table


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Limit what the process takes meanwhile: a few kilobytes of a page may stand for terabytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # of data and stacks
    most = pages * resource.getpagesize() + _MAX_UNFOLDED
    unlimited = soft == resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_DATA, (most if unlimited else min(most, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
