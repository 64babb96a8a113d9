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

from typing import Final

from recon_node.dag.errors import DagError
from recon_node.dag.events import SORT_KEY
from recon_node.feed_index import IndexFile

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

FILE: Final = IndexFile(
    subject="DAGs",
    name="dags.sqlite3",
    application_id=0x52454344,  # "RECD"
    version=3,
    tables=_TABLES,
    of_the_log=(
        "shards",
        "nodes",
        "contents",
        "links",
        "replicas",
        "bases",
        "claims",
        "appends",
        "ignored",
    ),
    sort_key=SORT_KEY,
    error=DagError,
)
