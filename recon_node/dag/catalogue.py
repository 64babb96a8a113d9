"""Lists of what the index has: its DAGs, and the identifiers under which something was published.

Subjects are read one by one along the indexes, each found by the one before: how many shards or
blocks a DAG has does not matter.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from recon_node.dag.events import Identifier, Subject, subject_of
from recon_node.ipld import CID, multibase

_TABLES: Final = ("shards", "claims", "replicas")


@dataclass(frozen=True, slots=True)
class ListedDag:
    """A DAG of which something is here."""

    root: CID
    shards: int
    """Held."""
    replicas: int
    """Operations on it that are held."""


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
    found: list[ListedDag] = []
    while len(found) < limit:
        nexts = [subject for table in _TABLES for subject in _next(connection, table, after)]
        if not nexts:
            break
        after = min(nexts)
        root = _subject(after)
        if isinstance(root, CID):
            shards = _count(connection, "shards", after)
            found.append(ListedDag(root, shards, _count(connection, "replicas", after)))
    return found


def read_identifiers(
    connection: sqlite3.Connection, after: bytes, limit: int
) -> list[ListedIdentifier]:
    """Return identifiers in the order of their keys, those after `after`."""
    found: list[ListedIdentifier] = []
    for _ in range(limit):
        after = next(_next(connection, "publishes", after), b"")
        if not after:
            break
        identifier = _subject(after)
        if isinstance(identifier, Identifier):
            row = connection.execute(
                "SELECT count(*), count(fault), max(judged) FROM publishes WHERE subject = ?",
                (after,),
            ).fetchone()
            found.append(ListedIdentifier(identifier, *row))
    return found


def _subject(raw: bytes) -> Subject:
    return subject_of(multibase.encode(raw, "base36"))


def _next(connection: sqlite3.Connection, table: str, after: bytes) -> Iterator[bytes]:
    """Yield the first subject of a table after another one, if there is any."""
    sql = f"SELECT subject FROM {table} WHERE subject > ? ORDER BY subject LIMIT 1"
    for (subject,) in connection.execute(sql, (after,)):
        yield subject


def _count(connection: sqlite3.Connection, table: str, subject: bytes) -> int:
    sql = f"SELECT count(*) FROM {table} WHERE subject = ?"
    return int(connection.execute(sql, (subject,)).fetchone()[0])
