"""The Spark pipeline behind a node: its event feed as tables.

- `source`: the streaming and batch data source "recon" over the node's HTTP feed
- `streams`, `transforms`: the rows of each table as pure functions of the rows of `raw_events`
- `tables`: the tables on disk, and how far each of them is; `delta` and `parquet` are their formats
- `derive`: brings the other tables to the position of `raw_events`
- `pipeline`: one streaming query that keeps the tables up to date, exactly once
- `status`, `query`, `upkeep`, `metrics`: looking at the tables, and after them
- `session`, `java`: Spark itself, and the Java that it runs on
- `cli`: the command `spark-sink`

Importing this package needs none of the extra `[spark]`; its modules do.
"""

from spark_sink.errors import SinkError
from spark_sink.schema import FEED, TABLES

__all__ = ["FEED", "TABLES", "SinkError"]
