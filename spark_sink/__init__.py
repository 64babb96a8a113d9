"""The Spark pipeline behind a node: its event feed as tables.

- `source`: the streaming and batch data source "recon" over the node's HTTP feed
- `tips`: the rows of `stream_tips` as a pure function of the rows of `raw_events`
- `tables`: the Delta tables on disk, and how far each of them is
- `pipeline`: one streaming query that keeps the tables up to date, exactly once
- `session`, `java`: Spark itself, and the Java that it runs on
- `cli`: the command `spark-sink`

Importing this package needs none of the extra `[spark]`; its modules do.
"""

from spark_sink.errors import SinkError
from spark_sink.schema import FEED, RAW_EVENTS, STREAM_TIPS

__all__ = ["FEED", "RAW_EVENTS", "STREAM_TIPS", "SinkError"]
