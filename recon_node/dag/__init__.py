"""DAGs in the node: stored and replicated as events, assembled, published and resolved.

The "DAG Replication & Publishing Protocol" over Recon. In reading order:

protocol/    its operations, replicas, shards and publishes: pure
dag_events   the events that carry them
dag_index    what each event of the feed adds to the index
dag_state    answers from the index: how much of a DAG is here, what was published
containment  whether the DAG that a replica describes contains a block
dag_service  the DAGs of a running node: the index, exports, a look into a DAG
dag_source   where a DAG comes from:
car_source       a CAR file
file_tree        a file or directory, as UnixFS
unixfs       files and directories as DAG-PB nodes
unpack       writes a UnixFS DAG back to files
errors       what goes wrong, or is left out
"""
