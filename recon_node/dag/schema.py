"""The file `dags.sqlite3`: an index of what this node's log has about DAGs.

It has no blocks: those stay in the event log, and the index knows the event with the shard of each.
Everything can be rebuilt from the log, except when a publish was judged. So if the log is another
one (its epoch says so), everything but `publishes` is dropped.

    marks      the log's epoch, and the feed position up to which it was read
    shards     the shards held, and the event that has each
    nodes      the blocks of a DAG: those held (`shard` says where), and those only linked
    contents   the blocks of each shard; a block may be in several
    links      from a block to the blocks that it names, in their order
    replicas   the operations on a DAG; `bases` are those that each continues
    claims     the shards that are appended to a DAG; `appends` says by which replica
    publishes  the operations of an identifier, with the time of the verdict, and why one is refused
    ignored    the number of events about a DAG or an identifier that added nothing

`subject` is a sort value's bytes: a root's CID, or an identifier's key (see `dag.events`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from recon_node.dag.errors import DagError

FILE_NAME: Final = "dags.sqlite3"
VERSION: Final = 3
APPLICATION_ID: Final = 0x52454344  # "RECD"
_LOCK_TIMEOUT: Final = 5.0
"""Seconds to wait for a lock of the file."""

_TABLES: Final = """
    CREATE TABLE marks (
        one INTEGER PRIMARY KEY CHECK (one = 1), epoch TEXT NOT NULL, position INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE shards (
        id INTEGER PRIMARY KEY, subject BLOB NOT NULL, cid BLOB NOT NULL, event BLOB NOT NULL,
        UNIQUE (subject, cid)
    ) STRICT;
    CREATE INDEX shards_by_cid ON shards (cid);
    CREATE TABLE nodes (
        id INTEGER PRIMARY KEY, subject BLOB NOT NULL, cid BLOB NOT NULL,
        shard INTEGER, size INTEGER,
        UNIQUE (subject, cid)
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
    CREATE TABLE ignored (subject BLOB PRIMARY KEY, count INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""

_OF_THE_LOG: Final = (
    "shards",
    "nodes",
    "contents",
    "links",
    "replicas",
    "bases",
    "claims",
    "appends",
    "ignored",
)


def open_index(data_dir: Path, epoch: str, head: int) -> sqlite3.Connection:
    """Open the index for writing; create it, or rebuild it if the log is another one.

    Args:
        data_dir: with the file.
        epoch: of the log.
        head: the log's last feed position. If it is below what the index has read, the log is
            another one, too (a backup, for example).

    Returns:
        A connection in autocommit mode, to be used from any thread, but one at a time.

    Raises:
        DagError: the file is damaged, foreign, of a later version, or not accessible.
    """
    path = data_dir / FILE_NAME
    with translated_errors(path):
        connection = _connect(str(path))
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # what it loses is read again
            connection.execute("PRAGMA cache_size = -16384")
            with transaction(connection):
                _prepare(connection, path, epoch, head)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def reading(data_dir: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection with one snapshot, for one question.

    Raises:
        DagError: the file cannot be read.
    """
    path = data_dir / FILE_NAME
    with (
        translated_errors(path),
        closing(_connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection,
    ):
        connection.execute("BEGIN")
        yield connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit everything done inside, or none of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into errors about the file at `path`.

    Raises:
        DagError: SQLite failed inside.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise  # a bug here
        raise DagError(
            f"the index of DAGs {path} failed: {error}; if the disk is healthy and not full, stop "
            "the node and delete the file: the node rebuilds it from its log"
        ) from error


def _connect(path: str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(
        path, uri=uri, isolation_level=None, check_same_thread=False, timeout=_LOCK_TIMEOUT
    )


def _prepare(connection: sqlite3.Connection, path: Path, epoch: str, head: int) -> None:
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if application_id == APPLICATION_ID and version < VERSION:
        # It lacks tables, or links. The log has everything except when publishes were judged.
        for table in ("marks", *_OF_THE_LOG):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        tables = 0
    if not tables:
        for statement in filter(str.strip, _TABLES.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    elif (application_id, version) != (APPLICATION_ID, VERSION):
        raise DagError(
            f"{path} is not an index of DAGs that this version of recon-node knows (its header "
            f"says {application_id:#x} and {version}): move it away, and the node rebuilds it"
        )
    row = connection.execute("SELECT epoch, position FROM marks").fetchone()
    if row is None or row[0] != epoch or row[1] > head:
        for table in _OF_THE_LOG:
            connection.execute(f"DELETE FROM {table}")
        connection.execute("INSERT OR REPLACE INTO marks VALUES (1, ?, 0)", (epoch,))
