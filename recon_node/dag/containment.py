"""Whether the DAG that a replica describes contains a block.

Source: "DAG Replication & Publishing Protocol", section "Publishing Protocol": the `link` of a
publish, and its `shard` if it names one, "must be contained by origin".

A replica describes the set of shards that its history appends: its own change, those of its priors
and of the forks that it joins. The replica contains the blocks of these shards. All of them are
named by hashes, so the answer is the same at all nodes and forever, whatever the root under which
the replica and the shards came; but a node only knows it once it has them.
"""

import sqlite3
from dataclasses import dataclass
from typing import Final

from recon_node.ipld import CID, IDENTITY

MAX_LISTED: Final = 100
"""CIDs in a list of what is missing."""


@dataclass(frozen=True, slots=True)
class Containment:
    """Whether a replica contains a block.

    `holds` is None while that is unknown; then `waiting_for` has the missing replicas and shards,
    at most `MAX_LISTED` of each. `shard` has the block; of several shards, the one with the lowest
    CID. None for a block inside its own CID.
    """

    holds: bool | None
    waiting_for: tuple[CID, ...] = ()
    shard: CID | None = None


_HISTORY: Final = """
    WITH RECURSIVE history(cid) AS (
        SELECT :origin
        UNION
        SELECT base FROM history JOIN bases ON bases.replica = history.cid
    ), holding(shard) AS MATERIALIZED (
        SELECT shards.cid FROM nodes JOIN contents ON contents.node = nodes.id
            JOIN shards ON shards.id = contents.shard
        WHERE nodes.cid = :link AND (:shard IS NULL OR shards.cid = :shard)
    )
"""
_FOUND: Final = """
    SELECT min(shard) FROM history CROSS JOIN appends ON appends.replica = history.cid
    WHERE shard IN (SELECT shard FROM holding)
"""
"""Strangers' replicas, which others have joined, may append any number of shards: these are read in
their order, and compared with the few that have the block."""
_MISSING_REPLICAS: Final = """
    SELECT cid FROM history
    WHERE NOT EXISTS (SELECT 1 FROM replicas WHERE replicas.cid = history.cid)
    LIMIT :limit
"""
_MISSING_SHARDS: Final = """
    SELECT DISTINCT shard FROM history CROSS JOIN appends ON appends.replica = history.cid
    WHERE NOT EXISTS (SELECT 1 FROM shards WHERE shards.cid = appends.shard)
        AND (:shard IS NULL OR shard = :shard)
    LIMIT :limit
"""


def find(
    connection: sqlite3.Connection, link: CID, origin: CID, shard: CID | None = None
) -> Containment:
    """Find out whether the DAG that the replica `origin` describes contains the block `link`.

    A block inside its own CID is contained everywhere. If a shard is named, it must have the block.
    """
    if link.hash_code == IDENTITY and shard is None:
        return Containment(True)
    named = {"link": link, "origin": origin, "shard": shard, "limit": MAX_LISTED}
    [(found,)] = connection.execute(_HISTORY + _FOUND, named)
    if found is not None:
        return Containment(True, shard=CID(found))
    missing = tuple(
        CID(raw)
        for question in (_MISSING_REPLICAS, _MISSING_SHARDS)
        for (raw,) in connection.execute(_HISTORY + question, named)
    )
    return Containment(None, missing) if missing else Containment(False)
