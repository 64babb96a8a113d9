"""A stream through Spark Connect into a function; the function tells where it runs.

python spark_connect_child.py URL DIRECTORY
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

url, directory = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()


def tell(frame: DataFrame, batch: int) -> None:
    """Runs at the server."""
    text = f"{batch} {frame.count()} {os.environ.get('SPARK_REMOTE')}"
    Path(directory, f"batch-{batch}").write_text(text)


query = (
    spark.readStream.format("recon")
    .options(url=url, maxRowsPerBatch="500")
    .load()
    .writeStream.foreachBatch(tell)
    .option("checkpointLocation", f"{directory}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
assert query.awaitTermination(60)
