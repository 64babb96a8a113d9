"""Fill empty tables from a snapshot, so that the feed is only read from there on.

The snapshot must be of the node whose feed is read, or of one with the same log: the epoch of the
log is in the snapshot's signed manifest, and so is the position of each event in its feed. So the
rows are the ones that the feed would have given. They become `raw_events` in one commit at the
snapshot's position, and the query goes on behind it, without a gap or a repeat. If the process is
killed before that commit, nothing has happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from recon_node.snapshot.objects import ObjectError, Objects, SnapshotError
from recon_node.snapshot.root import SnapshotFeed
from recon_node.snapshot.snapshot_reader import read_root
from spark_sink.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_sink.source.feed_client import Head

ANYONE: Final = "anyone"
"""In place of a signer's did:key: any signer."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A snapshot that tables can start from.

    Attributes:
        url: where it is.
        name: of its root object.
        signers: did:keys of whom one must have signed it; none: by anyone.
        position: in the feed, up to which it has all events.
    """

    url: str
    name: str
    signers: tuple[str, ...]
    position: int

    def rows(self, spark: SparkSession, partitions: int) -> DataFrame:
        """Return the rows of the feed up to the position, in order within each partition."""
        from spark_sink.source.snapshot_source import ReconSnapshotSource

        spark.dataSource.register(ReconSnapshotSource)
        options = {"url": self.url, "root": self.name, "partitions": str(partitions)}
        if self.signers:
            options["signers"] = ",".join(self.signers)
        rows = spark.read.format("recon_snapshot").options(**options).load()
        ordered = rows.where("position IS NOT NULL").repartitionByRange(partitions, "position")
        return ordered.sortWithinPartitions("position")


def find_backfill(url: str, signers: tuple[str, ...], head: Head) -> Backfill:
    """Return the newest snapshot at a URL, if tables of a node can start from it.

    Raises:
        SinkError: there is none, or it does not fit the node.
    """
    try:
        root = read_root(Objects.open(url))
    except (SnapshotError, ObjectError) as error:
        raise SinkError(f"--from-snapshot: {error}") from None
    if signers and root.signer not in signers:
        raise SinkError(
            f"the snapshot in {url} is signed by {root.signer}, which is not trusted. Whoever "
            "signs a snapshot decides what is in the tables: if you trust it, give "
            f"--snapshot-signer {root.signer}"
        )
    feed = root.manifest.feed
    _check(feed, url, head)
    assert feed is not None
    return Backfill(url, root.name, signers, feed.position)


def _check(feed: SnapshotFeed | None, url: str, head: Head) -> None:
    instead = (
        "Make one with `recon-node snapshot create` from the node whose feed is read, or leave out "
        "--from-snapshot: the feed has everything"
    )
    if feed is None:
        raise SinkError(
            f"the snapshot in {url} has no feed positions, because some events that its node has "
            f"delivered are not in it. {instead}"
        )
    if feed.epoch != head.epoch:
        raise SinkError(
            f"the snapshot in {url} has the positions of log {feed.epoch}, but the node has log "
            f"{head.epoch}, in which events have other positions. {instead}"
        )
    if feed.position > head.head:
        raise SinkError(
            f"the snapshot in {url} goes up to position {feed.position}, but the node's feed ends "
            f"at {head.head}: was an older copy of its log restored? {instead}"
        )
