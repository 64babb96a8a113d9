"""The Spark pipeline behind a node: its event feed as tables.

In reading order:

    schema      the tables' columns
    source/     the streaming and batch data source "recon" over the node's HTTP feed
    run/        one streaming query that keeps the tables up to date, exactly once
    tables/     the tables on disk, and the position of each
    derive/     computes the other tables from `raw_events`, in Spark's workers
    views/      tables with a model's fields as columns
    export/     copies of tables in other systems
    query/      SQL over the tables
    serve/      the same for Arrow Flight SQL clients
    upkeep/     maintains the tables
    cli/        the command `spark-sink`
    functions   functions on ids and payloads, for Spark and DuckDB
    exposition  metrics over HTTP
    errors      errors whose messages are for users

*The feed* is the node's: its events, by position. What a commit has changed in a table is called
*changes*; what clients of `serve` read as `NAME_feed` is a table's rows, and those to come. A
*step* takes tables from one position of the feed to another; a *portion* of it is the rows of some
streams, which one process computes. A *chunk* is what is in memory at once. Batches are Spark's,
partitions and files Delta's.

Importing this package does not need the extra `[spark]`; importing its modules does. Its packages
do not import their modules, so that Spark's workers and short commands load only what they need.

Import it before Spark starts: Spark then runs its Python processes with this Python, which has the
source "recon", and not with the `python3` of the PATH, which in a notebook or without an activated
environment is another one. PYSPARK_PYTHON, and spark-submit, take precedence.
"""

import os
import sys

from spark_sink.errors import SinkError

__all__ = ["SinkError"]

if "PYSPARK_GATEWAY_PORT" not in os.environ:  # under spark-submit, which has settings for it
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
