"""What `spark-sink run` runs.

- `pipeline`: one streaming query that keeps the tables up to date, exactly once
- `runner`: node, tables, Spark, query, from start to stop, and the telling of it
- `session`, `java`: Spark itself, and the Java that it runs on; `metrics`: numbers for Prometheus
"""

from spark_sink.run.runner import Runner, RunSettings

__all__ = ["RunSettings", "Runner"]
