"""The Spark data source "recon_snapshot": the events of a snapshot in an object store, as a table.

    events = spark.read.format("recon_snapshot").option("url", "s3://bucket/ceramic").load()

Any Spark whose Python has this package installed finds the source by its name (see
`spark_sink.source.snapshot_registration`). The driver reads the root object and the top of the
tree; each task reads a sub-tree, and checks every event against its CID. No node is asked.

The columns are those of the source "recon". `position`, `time`, `chain_id`, `delivered_at` and
`fault` are those of the feed of the node that made the snapshot. They are null for events that it
had not delivered, and in a snapshot of some interests only. The feed of that node, the one with the
same epoch, goes on behind the last position (`recon-node snapshot list --json` shows both):

    spark.readStream.format("recon").option("url", NODE).option("startingOffset", POSITION).load()

In another node's feed, events have other positions, but the same `event_id`. So to read all of a
snapshot, and from that feed only what is not in it:

    feed.join(snapshot, "event_id", "left_anti")

Options:

| option | default | |
|---|---|---|
| url | | required: where the snapshots are; see `recon-node snapshot --help` |
| root | latest.car | which snapshot, by its name in `recon-node snapshot list` |
| signers | | comma-separated did:keys; the snapshot must be signed by one of them |
| partitions | 16 | parts to read in parallel; each has whole sub-trees |
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from recon_node.ceramic import InvalidEventError, parse_event
from recon_node.recon import KeyRange
from recon_node.snapshot.objects import ObjectError, Objects, SnapshotError, SnapshotFault
from recon_node.snapshot.packs import PackExtent
from recon_node.snapshot.root import LATEST, PageError, RootObject, read_pages
from recon_node.snapshot.snapshot_reader import SnapshotReader, children_of, read_root
from recon_node.snapshot.tree.nodes import LeafNode
from recon_node.snapshot.tree.update import Branch, whole
from spark_sink.errors import SinkError
from spark_sink.schema import FEED
from spark_sink.source.source_options import check_schema, known_options, number

SNAPSHOT: Final = pa.schema([FEED.field("position").with_nullable(True), *list(FEED)[1:]])
"""The rows of a snapshot."""
_DELIVERED_AT: Final = SNAPSHOT.field("delivered_at").type
PARTITIONS: Final = 16
_OPTIONS: Final = ("url", "root", "signers", "partitions")
Delivery = tuple[int | None, int | None, str | None, int | None, str | None]
"""Position, time and chain of an event in a feed, when it was delivered, in milliseconds, and why
it is invalid."""
_NOT_DELIVERED: Final[Delivery] = (None, None, None, None, None)


@dataclass(frozen=True)
class SubTrees(InputPartition):
    """Neighbouring sub-trees, and where their nodes are in the packs, for one task."""

    trees: tuple[tuple[Branch, PackExtent], ...]


class ReconSnapshotSource(DataSource):
    """The source "recon_snapshot"; the module's docstring lists its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "recon_snapshot"

    def schema(self) -> StructType:
        """Return `SNAPSHOT` as a Spark schema."""
        return from_arrow_schema(SNAPSHOT)

    def reader(self, schema: StructType) -> "SnapshotTableReader":
        """Return a reader of one snapshot, the one that is the newest now."""
        check_schema(self, schema)
        return SnapshotTableReader(self.options)


class SnapshotTableReader(DataSourceReader):
    """Reads one snapshot: the driver finds the sub-trees, Spark's workers read them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        values = known_options("recon_snapshot", options, _OPTIONS)
        if not values.get("url"):
            raise SinkError(
                "the source 'recon_snapshot' needs the option url, such as s3://bucket/ceramic"
            )
        self._url = values["url"]
        self._partitions = number(values, "partitions", PARTITIONS, int, least=1)
        signers = values.get("signers", "").split(",")
        self._signers = [signer.strip() for signer in signers if signer.strip()] or None
        root = self._read_root(values.get("root", LATEST))
        self._name = root.name
        """The same snapshot for driver and workers, even if a newer one is written meanwhile."""

    def partitions(self) -> list[InputPartition]:
        """Return the sub-trees to read."""
        root = self._read_root(self._name)
        if root.manifest.tree is None:
            return []
        reader, faults = self._reader(root)
        level = [whole(root.manifest.tree.link)]
        while 0 < len(level) < self._partitions and level[0].link.level:
            level = children_of(reader.open(level))
        self._check(faults)
        trees = [(branch, reader.extent_of(branch.link.cid)) for branch in level]
        tasks = min(self._partitions, len(trees))
        cuts = [len(trees) * task // tasks for task in range(tasks + 1)]
        return [SubTrees(tuple(trees[start:end])) for start, end in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of some sub-trees, in key order.

        Raises:
            SinkError: an object is missing or damaged, which the message names.
        """
        if not isinstance(partition, SubTrees):  # Spark's own, in place of no partitions
            return
        root = self._read_root(self._name)
        reader, faults = self._reader(root)
        branches = [branch for branch, _ in partition.trees]
        bounds = KeyRange(branches[0].bounds.lower, branches[-1].bounds.upper)
        delivered = self._delivered(root, bounds)
        for branch, extent in partition.trees:
            reader.note_extent(branch.link, extent)
        for opened in reader.walk(branches):
            wanted = [
                item
                for _, node, extents in opened
                if isinstance(node, LeafNode)
                for item in zip(node.keys, extents, strict=True)
            ]
            events = reader.events(wanted)
            self._check(faults)
            if events:
                yield self._batch([(bytes(key), car) for key, car in events], delivered)

    def _delivered(self, root: RootObject, bounds: KeyRange) -> dict[bytes, Delivery]:
        """Return what the feed of the node that made the snapshot says of the events in a range."""
        deliveries: dict[bytes, Delivery] = {}
        if root.manifest.feed is None:
            return deliveries
        try:
            for page in read_pages(Objects.open(self._url), root.manifest.feed):
                ids = page["event_id"]
                inside = pc.and_(pc.greater(ids, bounds.lower), pc.less(ids, bounds.upper))
                part = page.filter(inside)
                names = ("position", "time", "chain_id", "delivered_at", "fault")
                columns = [part[name].to_pylist() for name in names]
                keys = part["event_id"].to_pylist()
                deliveries.update(zip(keys, zip(*columns, strict=True), strict=True))
        except (ObjectError, PageError) as error:
            raise SinkError(f"the snapshot {self._name} is damaged: {error}") from None
        return deliveries

    def _batch(
        self, rows: list[tuple[bytes, bytes]], delivered: Mapping[bytes, Delivery]
    ) -> pa.RecordBatch:
        try:
            events = [parse_event(car) for _, car in rows]
        except InvalidEventError as error:
            raise SinkError(f"the snapshot in {self._url} has an invalid event: {error}") from None
        facts = [delivered.get(key, _NOT_DELIVERED) for key, _ in rows]
        positions, times, chains, delivered_at, faults = zip(*facts, strict=True)
        columns = {
            "position": positions,
            "event_id": [key for key, _ in rows],
            "event_cid": [bytes(event.cid) for event in events],
            "stream_cid": [bytes(event.init) for event in events],
            "event_type": [event.kind.value for event in events],
            "car": [car for _, car in rows],
            "time": times,
            "chain_id": chains,
            "delivered_at": pa.array(delivered_at, pa.timestamp("ms", "UTC")).cast(_DELIVERED_AT),
            "fault": faults,
        }
        return pa.RecordBatch.from_pydict(columns, schema=SNAPSHOT)

    def _read_root(self, name: str) -> RootObject:
        try:
            return read_root(Objects.open(self._url), name, self._signers)
        except (SnapshotError, ObjectError) as error:
            raise SinkError(str(error)) from None

    def _reader(self, root: RootObject) -> tuple[SnapshotReader, list[SnapshotFault]]:
        faults: list[SnapshotFault] = []
        return SnapshotReader(Objects.open(self._url), root, faults.append), faults

    def _check(self, faults: list[SnapshotFault]) -> None:
        if faults:
            raise SinkError(
                f"the snapshot {self._name} is damaged: {faults[0]} (`recon-node snapshot verify "
                f"{self._url}` lists everything)"
            )
