"""DAGs in the node: stored and replicated as events, assembled, published and resolved.

The "DAG Replication & Publishing Protocol" over Recon. `dag_events` turns shards, replicas
and publishes into events; `dag_service` indexes those in the log (`dag_index`) and answers from the
index (`dag_state`). `dag_source` cuts CAR files and directories into shards; `unpack` writes
directories.
"""

from recon_node.dag.dag_events import (
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
from recon_node.dag.dag_service import DagEntry, Dags, open_dags
from recon_node.dag.dag_state import Lacking, Publication
from recon_node.dag.errors import DagError, IncompleteDagError

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
