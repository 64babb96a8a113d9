"""Writing the index: what each event of the feed adds to it.

Nothing is trusted. A shard is accepted if all its blocks match their CIDs and their links can be
read; then its blocks belong to the DAG, whoever sent them, because CIDs leave no doubt. A replica
must have its canonical form. A publish must be permitted by its UCAN *now*: it is judged once, when
this node first reads it, and the verdict is kept forever, so a capability that expires later does
not revoke what it permitted (nor the other way round). Everything else is counted as ignored.

The file is `dags.sqlite3`. It has no blocks: those stay in the event log, and the index knows the
event with the shard of each. Everything can be rebuilt from the log, except when a publish was
judged. So if the log is another one (its epoch says so), everything but `publishes` is dropped.

    marks      the log's epoch, and the feed position up to which it was read
    shards     the shards held, and the event that has each
    nodes      the blocks of a DAG: those held (`shard` says where), and those only linked
    contents   the blocks of each shard; a block may be in several
    links      from a block to the blocks that it names, in their order
    replicas   the operations on a DAG; `bases` are those that each continues
    claims     the shards that are appended to a DAG; `appends` says by which replica
    publishes  the operations of an identifier, with the time of the verdict, and why one is refused
    bound      those of them whose proof was made for their position
    ignored    the number of events about a DAG or an identifier that added nothing

`subject` is a sort value's bytes: a root's CID, or an identifier's key (see `dag.dag_events`).
"""

import re
import sqlite3
from collections.abc import Sequence
from typing import Final

from recon_node.ceramic import InvalidEventError
from recon_node.dag.dag_events import SORT_KEY, DagEvent, Identifier, read_dag_event, sort_bytes
from recon_node.dag.errors import DagEventError
from recon_node.dag.protocol.dag_operations import Append, Publish, ReplicaError
from recon_node.dag.protocol.publishing import check_publish, is_bound_to_position
from recon_node.dag.protocol.replica import Replica, decode_replica
from recon_node.dag.protocol.shards import CAR
from recon_node.dag.protocol.ucan import UcanError
from recon_node.feed_index import IndexFile
from recon_node.ipld import CID, MAX_INLINE, CarError, LinksError, car, links
from recon_node.store import FeedRow

KEY_FILE: Final = "dag.key"
"""The key of the commands that sign, beside the index in the data directory."""
_TABLES: Final = """
    CREATE TABLE shards (
        id INTEGER PRIMARY KEY, subject BLOB NOT NULL, cid BLOB NOT NULL, event BLOB NOT NULL,
        UNIQUE (subject, cid)
    ) STRICT;
    CREATE INDEX shards_by_cid ON shards (cid);
    CREATE TABLE nodes (
        id INTEGER PRIMARY KEY, subject BLOB NOT NULL, cid BLOB NOT NULL,
        shard INTEGER, size INTEGER,
        UNIQUE (cid, subject)
    ) STRICT;
    CREATE TABLE contents (
        node INTEGER NOT NULL, shard INTEGER NOT NULL, PRIMARY KEY (node, shard)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE links (
        source INTEGER NOT NULL, place INTEGER NOT NULL, target INTEGER NOT NULL,
        PRIMARY KEY (source, place)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE replicas (
        subject BLOB NOT NULL, cid BLOB NOT NULL, block BLOB NOT NULL, PRIMARY KEY (subject, cid)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX replicas_by_cid ON replicas (cid);
    CREATE TABLE bases (
        subject BLOB NOT NULL, base BLOB NOT NULL, replica BLOB NOT NULL,
        PRIMARY KEY (subject, base, replica)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX bases_by_replica ON bases (replica);
    CREATE TABLE claims (
        subject BLOB NOT NULL, shard BLOB NOT NULL, PRIMARY KEY (subject, shard)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE appends (
        replica BLOB NOT NULL, shard BLOB NOT NULL, PRIMARY KEY (replica, shard)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS publishes (
        subject BLOB NOT NULL, cid BLOB NOT NULL, judged INTEGER NOT NULL,
        block BLOB, fault TEXT,
        PRIMARY KEY (subject, cid)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE bound (
        subject BLOB NOT NULL, cid BLOB NOT NULL, PRIMARY KEY (subject, cid)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE ignored (subject BLOB PRIMARY KEY, count INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""

FILE: Final = IndexFile(
    subject="DAGs",
    name="dags.sqlite3",
    application_id=0x52454344,  # "RECD"
    version=5,
    tables=_TABLES,
    of_the_log=tuple(re.findall(r"CREATE TABLE (\w+) \(", _TABLES)),  # not `publishes`
    sort_key=SORT_KEY,
)


def take(connection: sqlite3.Connection, rows: Sequence[FeedRow], now: int) -> int:
    """Add events with the sort key "dag" to the index, within a transaction, in feed order.

    `rows` are events with the sort key "dag", in the order of the feed. Publishes are judged by the
    Unix time `now`.

    Returns:
        The number of ignored events.
    """
    ignored = 0
    for row in rows:
        subject = b""
        try:
            event = read_dag_event(row.car)
            subject = sort_bytes(event.subject)
            _take(connection, event, subject, row.event_cid, now)
        except _FAULTS:
            ignored += 1
            sql = "INSERT INTO ignored VALUES (?, 1) ON CONFLICT DO UPDATE SET count = count + 1"
            connection.execute(sql, (subject,))
    return ignored


_FAULTS = (InvalidEventError, DagEventError, CarError, LinksError, ReplicaError)
_MAX_FAULT: Final = 500
"""Characters kept of why a publish was refused."""


def _take(
    connection: sqlite3.Connection, event: DagEvent, subject: bytes, event_cid: CID, now: int
) -> None:
    if event.shard is not None:
        _take_shard(connection, subject, event.shard, event_cid)
        return
    if event.replica is None:
        raise DagEventError(f"{event_cid} has neither a shard of a DAG nor a replica")
    replica = decode_replica(event.replica)
    if isinstance(event.subject, Identifier):
        _take_publish(connection, event.subject, subject, replica, now)
    elif isinstance(replica.change, Publish):
        raise ReplicaError(f"{replica.cid} is a publish, which is not an operation on a DAG")
    else:
        _take_replica(connection, subject, replica)


def _take_shard(connection: sqlite3.Connection, subject: bytes, shard: bytes, event: CID) -> None:
    blocks = car.decode(shard, max_digest=MAX_INLINE).blocks
    targets_of = {cid: links(cid, block) for cid, block in blocks.items()}
    row = connection.execute(
        "INSERT OR IGNORE INTO shards (subject, cid, event) VALUES (?, ?, ?) RETURNING id",
        (subject, CID.of(CAR, shard), event),
    ).fetchone()
    if row is None:
        return
    for cid, targets in targets_of.items():
        node = _node(connection, subject, cid)
        connection.execute("INSERT INTO contents VALUES (?, ?)", (node, row[0]))
        changed = connection.execute(
            "UPDATE nodes SET shard = ?, size = ? WHERE id = ? AND shard IS NULL",
            (row[0], len(blocks[cid]), node),
        ).rowcount
        if changed:
            below = (_node(connection, subject, target) for target in _once(targets))
            rows = ((node, position, target) for position, target in enumerate(below))
            connection.executemany("INSERT INTO links VALUES (?, ?, ?)", rows)


def _once(targets: Sequence[CID]) -> list[CID]:
    """Each link once, at its last position (as in `shards.walk`)."""
    return list(reversed(dict.fromkeys(reversed(targets))))


def _node(connection: sqlite3.Connection, subject: bytes, cid: CID) -> int:
    key = (subject, cid)
    found = connection.execute("SELECT id FROM nodes WHERE (subject, cid) = (?, ?)", key).fetchone()
    sql = "INSERT INTO nodes (subject, cid) VALUES (?, ?) RETURNING id"
    return int((found or connection.execute(sql, key).fetchone())[0])


def _take_replica(connection: sqlite3.Connection, subject: bytes, replica: Replica) -> None:
    shards = replica.change.shards if isinstance(replica.change, Append) else ()
    cid = replica.cid  # encodes all of it
    rows: dict[str, list[tuple[bytes, ...]]] = {
        "replicas": [(subject, cid, replica.block)],
        "bases": [(subject, base, cid) for base in replica.bases],
        "claims": [(subject, shard) for shard in shards],
        "appends": [(cid, shard) for shard in shards],
    }
    for table, added in rows.items():
        if added:
            values = ", ".join("?" * len(added[0]))
            connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({values})", added)


def _take_publish(
    connection: sqlite3.Connection,
    identifier: Identifier,
    subject: bytes,
    replica: Replica,
    now: int,
) -> None:
    publish = replica.change
    if not isinstance(publish, Publish) or publish.id != identifier.key:
        raise ReplicaError(f"{replica.cid} is not a publish of {identifier}")
    key = (subject, replica.cid)
    question = "SELECT fault IS NOT NULL FROM publishes WHERE (subject, cid) = (?, ?)"
    row = connection.execute(question, key).fetchone()
    is_refused = _judge(connection, subject, replica, now) if row is None else bool(row[0])
    if not is_refused and is_bound_to_position(replica):
        connection.execute("INSERT OR IGNORE INTO bound VALUES (?, ?)", key)


def _judge(connection: sqlite3.Connection, subject: bytes, replica: Replica, now: int) -> bool:
    """Keep the verdict on a publish; return whether it is refused."""
    fault = _fault_of(replica, now)
    # One that is only too late has a position in the order: `publish_order`.
    block = None if fault and _fault_of(replica, None) else replica.block
    connection.execute(
        "INSERT INTO publishes VALUES (?, ?, ?, ?, ?)", (subject, replica.cid, now, block, fault)
    )
    return fault is not None


def _fault_of(replica: Replica, now: int | None) -> str | None:
    try:
        check_publish(replica, now)
    except UcanError as error:
        return str(error)[:_MAX_FAULT]
    return None
