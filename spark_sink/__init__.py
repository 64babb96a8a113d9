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

from typing import TYPE_CHECKING, Any

from spark_sink.errors import SinkError

if TYPE_CHECKING:
    from spark_sink.schema import FEED, TABLES

__all__ = ["FEED", "TABLES", "SinkError"]


def __getattr__(name: str) -> Any:
    """The schemas, with Arrow, when they are asked for: Ctrl-C before that is `cli`'s to tell."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_sink import schema

    return getattr(schema, name)
