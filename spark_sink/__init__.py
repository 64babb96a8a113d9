"""The Spark pipeline behind a node: its event feed as tables.

- `schema`, `errors`: the tables' columns; errors for users
- `source`: the streaming and batch data source "recon" over the node's HTTP feed
- `tables`: the tables on disk, and the position of each
- `derive`: computes the other tables from `raw_events`, in Spark's workers
- `run`: one streaming query that keeps the tables up to date, exactly once
- `upkeep`, `query`: maintaining and querying the tables
- `cli`: the command `spark-sink`

Importing this package does not need the extra `[spark]`; importing its modules does. Its packages
do not import their modules, so that Spark's workers and short commands load only what they need.
"""

from spark_sink.errors import SinkError

__all__ = ["SinkError"]
