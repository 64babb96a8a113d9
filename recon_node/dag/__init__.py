"""DAGs in the node: stored and replicated as events, assembled, published and resolved.

The "DAG Replication & Publishing Protocol" over Recon. `events` turns shards, replicas and
publishes into events; `service` indexes those in the log (`schema`, `index`) and answers from the
index (`state`). `sources` cuts CAR files and directories into shards; `unpack` writes directories.
"""

from recon_node.dag.errors import DagError, IncompleteDagError
from recon_node.dag.events import (
    DAG_MODEL,
    MAX_SHARD_SIZE,
    SORT_KEY,
    Identifier,
    Subject,
    parse_root,
    parse_subject,
    replica_event,
    shard_event,
    sort_value,
)
from recon_node.dag.service import DagEntry, Dags, open_dags
from recon_node.dag.state import Lacking, Publication

__all__ = [
    "DAG_MODEL",
    "MAX_SHARD_SIZE",
    "SORT_KEY",
    "DagEntry",
    "DagError",
    "Dags",
    "Identifier",
    "IncompleteDagError",
    "Lacking",
    "Publication",
    "Subject",
    "open_dags",
    "parse_root",
    "parse_subject",
    "replica_event",
    "shard_event",
    "sort_value",
]
