"""What `spark-sink run` runs.

- `pipeline`: one streaming query that keeps the tables up to date, exactly once
- `runner`: node, tables, Spark, query, from start to stop, and the telling of it
- `feed_reader`: which of the `run_nodes` is read; `follower`: how the tables follow its log
- `spark_session`: Spark itself, and the Java that it runs on; `cluster`: what one must have
- `metrics`: numbers for Prometheus
"""
