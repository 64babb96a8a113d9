"""Reading the index: how much of a DAG is here, the order of its blocks, what was published.

Links are followed in SQL, which spills to disk if necessary: a DAG of millions of blocks takes
time, not memory.

In lists of DAGs and identifiers, subjects are read one by one along the indexes, each found by the
one before: how many shards or blocks a DAG has does not matter.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from recon_node.dag.containment import MAX_LISTED, Containment
from recon_node.dag.containment import find as find_block
from recon_node.dag.dag_events import Identifier, Subject, sort_bytes, subject_of
from recon_node.dag.protocol.dag_operations import Join
from recon_node.dag.protocol.publishing import PublishStatement, publish_order
from recon_node.dag.protocol.replica import Replica, decode_replica
from recon_node.ipld import CID, IDENTITY, multibase

MAX_HEADS: Final = 100
"""Heads of a DAG's log that are listed, and joined."""
_MAX_JOINED: Final = 10_000
"""Replicas in a join, half of what fits into an event."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """What is missing."""

    count: int
    """How many."""
    first: tuple[CID, ...]
    """The CIDs of at most 100 of them."""


@dataclass(frozen=True, slots=True)
class DagState:
    """How much of a DAG is here.

    `blocks` and `size` (bytes) count the blocks held below the root. `shards` are held and named by
    a replica, `unclaimed` are held but not named. `heads` are the replicas that no other one
    continues; if there are more than `MAX_HEADS`, since anybody can add some, those with the most
    shards that are here. `head` is their join, which has the shards of all of them and need not be
    held; None if there is no replica with its whole history.
    """

    root: CID
    blocks: int
    size: int
    missing_blocks: Lacking
    shards: tuple[CID, ...]
    unclaimed: tuple[CID, ...]
    missing_shards: Lacking
    missing_replicas: Lacking
    heads: tuple[CID, ...]
    head: Replica | None
    ignored: int

    @property
    def complete(self) -> bool:
        """Whether all blocks below the root are here."""
        return self.missing_blocks.count == 0


@dataclass(frozen=True, slots=True)
class Publication:
    """What was published under an identifier.

    `current` is the last publish whose origin contains its link; `pending` is a later one for which
    that is unknown. `order` has all permitted publishes in the order that all nodes agree on.
    `waiting_for` are missing priors, and what is missing to judge `pending`. `faults` says why
    publishes are refused, for at most `MAX_LISTED` of them.
    """

    identifier: Identifier
    current: PublishStatement | None
    pending: PublishStatement | None
    order: tuple[CID, ...]
    waiting_for: tuple[CID, ...]
    faults: Mapping[CID, str]
    ignored: int


class LocatedBlock(NamedTuple):
    """A CID, and the event whose shard has the block."""

    cid: CID
    event: CID


_REACHED: Final = """
    WITH RECURSIVE reached(id) AS (
        SELECT id FROM nodes WHERE (subject, cid) = (:subject, :subject)
        UNION
        SELECT target FROM reached JOIN links ON source = reached.id
    )
"""
_HEADS: Final = """
    WITH RECURSIVE broken(cid) AS (
        SELECT replica FROM bases WHERE subject = :subject AND NOT EXISTS (
            SELECT 1 FROM replicas INDEXED BY replicas_by_cid
            WHERE (subject, cid) = (:subject, base))
        UNION
        SELECT replica FROM broken JOIN bases ON (subject, base) = (:subject, broken.cid)
    )
    SELECT cid FROM replicas WHERE subject = :subject AND cid NOT IN (SELECT cid FROM broken)
    AND NOT EXISTS (
        SELECT 1 FROM bases WHERE (bases.subject, base) = (:subject, replicas.cid)
        AND replica NOT IN (SELECT cid FROM broken))
"""
"""The replicas with their whole history that no other such one continues. Not `IN` a table of them:
that would be read as a whole for each replica. And not the table of replicas to look up a base:
its blocks, joins of many kilobytes, would be read on the way."""
_WORTH: Final = """
    WITH own(part, worth) AS MATERIALIZED (
        SELECT replicas.cid, count(*) FROM replicas JOIN appends ON appends.replica = replicas.cid
        JOIN shards ON (shards.subject, shards.cid) = (:subject, appends.shard)
        WHERE replicas.subject = :subject GROUP BY replicas.cid
    )
    SELECT replica, sum(worth) FROM (
        SELECT part AS replica, part FROM own
        UNION ALL SELECT replica, base AS part FROM bases WHERE subject = :subject
    ) JOIN own USING (part) GROUP BY replica
"""
"""How many of the shards that are here a replica appends, or what it continues at once. Each list
of shards is read once, however many continue it."""
_PARTS: Final = """
    WITH RECURSIVE parted(cid) AS (
        VALUES {heads}
        UNION
        SELECT base FROM parted JOIN bases ON (subject, replica) = (:subject, parted.cid)
        WHERE (SELECT count(*) FROM bases WHERE (subject, replica) = (:subject, parted.cid)) > 1
    ),
    tops(cid) AS (
        SELECT cid FROM parted
        WHERE (SELECT count(*) FROM bases WHERE (subject, replica) = (:subject, parted.cid)) < 2
    ),
    covered(cid) AS (
        SELECT base FROM tops JOIN bases ON (subject, replica) = (:subject, tops.cid)
        UNION
        SELECT base FROM covered JOIN bases ON (subject, replica) = (:subject, covered.cid)
    )
    SELECT cid FROM tops EXCEPT SELECT cid FROM covered
"""
"""What a join of some heads joins: the heads, joins among them (which continue several replicas)
taken apart, since they have no shards of their own, without those that others build on."""
_ROOT: Final = "SELECT id FROM nodes WHERE (subject, cid) = (?1, ?1)"
_CLAIMED: Final = "EXISTS (SELECT 1 FROM claims WHERE (subject, shard) = (:subject, shards.cid))"


def read_state(connection: sqlite3.Connection, root: CID) -> DagState:
    """Return how much of the DAG is here below `root`."""
    named = {"subject": sort_bytes(root)}

    def lacking(sql: str) -> Lacking:
        count = connection.execute(f"SELECT count(*) FROM ({sql})", named).fetchone()[0]
        first = connection.execute(f"{sql} LIMIT {MAX_LISTED}", named) if count else ()
        return Lacking(count, tuple(CID(raw) for (raw,) in first))

    def cids(sql: str) -> tuple[CID, ...]:
        return tuple(CID(raw) for (raw,) in connection.execute(sql, named))

    sql = "SELECT count(size), coalesce(sum(size), 0) FROM reached JOIN nodes USING (id)"
    blocks, size = connection.execute(_REACHED + sql, named).fetchone()
    missing_blocks = lacking(
        f"{_REACHED} SELECT cid FROM reached JOIN nodes USING (id) WHERE shard IS NULL"
    )
    if not connection.execute(_ROOT, (root,)).fetchone():
        missing_blocks = Lacking(1, (root,))
    if root.hash_code == IDENTITY:
        missing_blocks = Lacking(0, ())
    heads = cids(_HEADS)
    shards = "SELECT cid FROM shards WHERE subject = :subject AND {} ORDER BY cid"
    if len(heads) > MAX_HEADS:
        worth: dict[bytes, int] = dict(connection.execute(_WORTH, named).fetchall())
        heads = tuple(sorted(heads, key=lambda head: (-worth.get(head, 0), head))[:MAX_HEADS])
    return DagState(
        root=root,
        blocks=blocks,
        size=size,
        missing_blocks=missing_blocks,
        shards=cids(shards.format(_CLAIMED)),
        unclaimed=cids(shards.format(f"NOT {_CLAIMED}")),
        missing_shards=lacking(
            "SELECT shard FROM claims WHERE subject = :subject AND NOT EXISTS ("
            "SELECT 1 FROM shards WHERE (subject, cid) = (:subject, shard))"
        ),
        missing_replicas=lacking(
            "SELECT DISTINCT base FROM bases WHERE subject = :subject AND NOT EXISTS ("
            "SELECT 1 FROM replicas INDEXED BY replicas_by_cid "
            "WHERE (subject, cid) = (:subject, base))"
        ),
        heads=tuple(sorted(heads, key=str)),
        head=_join(connection, named["subject"], heads) if heads else None,
        ignored=_ignored(connection, root),
    )


def _join(connection: sqlite3.Connection, subject: bytes, heads: Sequence[CID]) -> Replica:
    """Return the replica that has all shards of some heads: one of them, or a join of several.

    It has the same CID at every node, whatever the order and grouping in which the heads met, if
    they do not join too many. The first that it joins, in the order of their base32 text, is its
    prior, the others are its forks.
    """
    named = {"subject": subject} | {f"h{at}": head for at, head in enumerate(heads)}
    values = ", ".join(f"(:h{at})" for at in range(len(heads)))
    parts = [CID(raw) for (raw,) in connection.execute(_PARTS.format(heads=values), named)]
    first, *others = sorted(parts if len(parts) <= _MAX_JOINED else heads, key=str)
    if others:
        return Replica(first, Join(tuple(others)))
    question = "SELECT block FROM replicas WHERE (subject, cid) = (?, ?)"
    return decode_replica(connection.execute(question, (subject, first)).fetchone()[0])


def read_replicas(
    connection: sqlite3.Connection, root: CID, max_bytes: int
) -> dict[CID, Replica] | None:
    """Return the replicas held of a DAG; None if their blocks exceed `max_bytes`."""
    replicas: dict[CID, Replica] = {}
    sql = "SELECT cid, block FROM replicas WHERE subject = ? ORDER BY cid"
    for cid, block in connection.execute(sql, (sort_bytes(root),)):
        max_bytes -= len(block)
        if max_bytes < 0:
            return None
        replicas[CID(cid)] = decode_replica(block)
    return replicas


def find_event(connection: sqlite3.Connection, root: CID, cid: CID) -> CID | None:
    """Return the event with a block of the DAG below the root; None if the block is not here."""
    row = connection.execute(
        "SELECT event FROM nodes JOIN shards ON shards.id = shard "
        "WHERE nodes.subject = ? AND nodes.cid = ?",
        (sort_bytes(root), cid),
    ).fetchone()
    return None if row is None else CID(row[0])


def read_order(connection: sqlite3.Connection, root: CID) -> Iterator[LocatedBlock]:
    """Yield the locations of the blocks held below the root, depth first, each once."""
    subject = sort_bytes(root)
    row = connection.execute(_ROOT, (subject,)).fetchone()
    if row is None:
        return
    last = connection.execute("SELECT max(id) FROM nodes").fetchone()[0]
    seen = bytearray(last // 8 + 1)  # a bit for each node of the index

    def is_new(node: int) -> bool:
        byte, bit = divmod(node, 8)
        known = seen[byte] >> bit & 1
        seen[byte] |= 1 << bit
        return not known

    left = [int(row[0])]
    is_new(left[0])
    located = (
        "SELECT nodes.cid, event FROM nodes JOIN shards ON shards.id = shard WHERE nodes.id = ?"
    )
    below = "SELECT target FROM links WHERE source = ? ORDER BY place DESC"
    while left:
        node = (left.pop(),)
        row = connection.execute(located, node).fetchone()
        if row is not None:
            yield LocatedBlock(CID(row[0]), CID(row[1]))
            targets = connection.execute(below, node)
            left.extend(target for (target,) in targets if is_new(target))


def read_publication(
    connection: sqlite3.Connection, identifier: Identifier, known: dict[CID, bool]
) -> Publication:
    """Return what was published under an identifier.

    `known` caches whether a publish's origin contains its link, which never changes once known.
    """
    subject = sort_bytes(identifier)
    permitted = connection.execute(
        "SELECT block, EXISTS (SELECT 1 FROM bound WHERE (subject, cid) = (?1, publishes.cid)), "
        "fault IS NOT NULL FROM publishes WHERE subject = ?1 AND block IS NOT NULL",
        (subject,),
    )
    order = publish_order((decode_replica(block), *facts) for block, *facts in permitted)
    sql = "SELECT cid, fault FROM publishes WHERE subject = ? AND fault IS NOT NULL LIMIT ?"
    refused = connection.execute(sql, (subject, MAX_LISTED))
    faults = {CID(cid): fault for cid, fault in refused}
    waiting_for = set(order.waiting_for)
    current = pending = None
    for cid, publish in reversed(order.statements.items()):
        containment = _contained(connection, cid, publish, known)
        if containment.holds:
            current = publish
            break
        if containment.holds is False:
            if len(faults) < MAX_LISTED:
                where = "" if publish.shard is None else f" in the shard {publish.shard}"
                text = f"its link {publish.link} is not contained by its origin {publish.origin}"
                faults[cid] = text + where
        elif pending is None:
            pending = publish
            waiting_for.update(containment.waiting_for)
    return Publication(
        identifier=identifier,
        current=current,
        pending=pending,
        order=tuple(order.statements),
        waiting_for=tuple(sorted(waiting_for)),
        faults=faults,
        ignored=_ignored(connection, identifier),
    )


def _contained(
    connection: sqlite3.Connection, cid: CID, publish: PublishStatement, known: dict[CID, bool]
) -> Containment:
    if cid in known:
        return Containment(known[cid])
    containment = find_block(connection, publish.link, publish.origin, publish.shard)
    if containment.holds is not None:
        known[cid] = containment.holds
    return containment


def _ignored(connection: sqlite3.Connection, subject: Subject) -> int:
    sql = "SELECT count FROM ignored WHERE subject = ?"
    row = connection.execute(sql, (sort_bytes(subject),)).fetchone()
    return 0 if row is None else int(row[0])


@dataclass(frozen=True, slots=True)
class ListedDag:
    """A DAG of which something is here."""

    root: CID
    """The CID of its root."""
    shards: int
    """Its shards that are here."""
    replicas: int
    """The operations on it that are here."""


@dataclass(frozen=True, slots=True)
class ListedIdentifier:
    """An identifier under which something was published."""

    identifier: Identifier
    publishes: int
    refused: int
    """Those of them whose capability did not permit them."""
    judged: int
    """When the latest was read by this node, in Unix seconds."""


def read_dags(connection: sqlite3.Connection, after: bytes, limit: int) -> list[ListedDag]:
    """Return DAGs in the order of their roots' CIDs, those after `after`."""
    dags: list[ListedDag] = []
    following = " UNION ALL ".join(
        f"SELECT * FROM (SELECT subject FROM {table} WHERE subject > ?1 ORDER BY subject LIMIT 1)"
        for table in ("shards", "claims", "replicas")
    )
    counts = (
        "SELECT (SELECT count(*) FROM shards WHERE subject = ?1), "
        "(SELECT count(*) FROM replicas WHERE subject = ?1)"
    )
    while len(dags) < limit:
        after = connection.execute(f"SELECT min(subject) FROM ({following})", (after,)).fetchone()[
            0
        ]
        if after is None:
            break
        root = _subject(after)
        if isinstance(root, CID):
            dags.append(ListedDag(root, *connection.execute(counts, (after,)).fetchone()))
    return dags


def read_identifiers(
    connection: sqlite3.Connection, after: bytes, limit: int
) -> list[ListedIdentifier]:
    """Return identifiers in the order of their keys, those after `after`."""
    sql = (
        "SELECT subject, count(*), count(fault), max(judged) FROM publishes WHERE subject > ? "
        "GROUP BY subject ORDER BY subject LIMIT ?"
    )
    rows = [(_subject(raw), *facts) for raw, *facts in connection.execute(sql, (after, limit))]
    return [ListedIdentifier(id_, *facts) for id_, *facts in rows if isinstance(id_, Identifier)]


def _subject(raw: bytes) -> Subject:
    return subject_of(multibase.encode(raw, "base36"))
