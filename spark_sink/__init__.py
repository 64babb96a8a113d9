"""The Spark pipeline behind a node: its event feed as tables.

- `schema`, `errors`: the tables' columns; what can go wrong
- `source`: the streaming and batch data source "recon" over the node's HTTP feed
- `tables`: the tables on disk, and how far each of them is
- `derive`: the other tables out of `raw_events`, computed by Spark's workers
- `run`: one streaming query that keeps the tables up to date, exactly once
- `upkeep`, `query`: looking after the tables, and into them
- `cli`: the command `spark-sink`

Importing this package needs none of the extra `[spark]`; its modules do. The packages in it import
none of their modules, so that Spark's workers and short commands load what they need, no more.
"""

from spark_sink.errors import SinkError

__all__ = ["SinkError"]
