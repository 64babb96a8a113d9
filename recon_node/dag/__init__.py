"""DAGs in the node: stored and replicated as events, assembled, published and resolved.

The "DAG Replication & Publishing Protocol" over Recon. `dag_events` turns shards, replicas
and publishes into events; `dag_service` indexes those in the log (`dag_index`) and answers from the
index (`dag_state`). `dag_source` cuts CAR files and directories into shards; `unpack` writes
directories.
"""
