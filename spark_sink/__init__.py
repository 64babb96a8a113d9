"""The Spark pipeline behind a node: its event feed as tables.

- `schema`, `errors`: the tables' columns; errors for users
- `source`: the streaming and batch data source "recon" over the node's HTTP feed
- `tables`: the tables on disk, and the position of each
- `derive`: computes the other tables from `raw_events`, in Spark's workers
- `run`: one streaming query that keeps the tables up to date, exactly once
- `views`, `export`: tables with a model's fields as columns; copies in other systems
- `upkeep`, `query`: maintaining and querying the tables
- `cli`: the command `spark-sink`

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
