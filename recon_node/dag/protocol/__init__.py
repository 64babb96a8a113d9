"""The DAG Replication & Publishing Protocol: operations, replicas, shards, publishes, UCANs."""
