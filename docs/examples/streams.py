"""The feed of a node as Spark tables, in cells: runs as a script, or cell by cell in an editor.

    python docs/examples/streams.py http://127.0.0.1:5101 /tmp/streams
    spark-submit --master spark://HOST:7077 docs/examples/streams.py URL DIRECTORY
    SPARK_REMOTE=sc://HOST:15002 python docs/examples/streams.py URL DIRECTORY

The directory gets the table `streams`, as Parquet; on a cluster, name one that all machines see.
"""

# %% Spark: whichever the environment names. The source registers itself where Spark's Python has
# the package, and spark_sink makes that this Python. A client of Spark Connect does not need it.
import sys
from contextlib import suppress
from importlib import import_module

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

with suppress(ModuleNotFoundError):
    import_module("spark_sink")  # tells Spark which Python to run

if len(sys.argv) != 3:  # cell by cell, name the two here instead
    print("usage: streams.py URL DIRECTORY", file=sys.stderr)
    sys.exit(2)
url, directory = sys.argv[1:]
spark = SparkSession.builder.appName("streams").getOrCreate()

# %% All that the node has now, as a table.
events = spark.read.format("recon").option("url", url).load()
events.groupBy("event_type").count().orderBy("event_type").show()

# %% What comes, as a stream with state: of each stream, how many events and which one came last.
streams = (
    spark.readStream.format("recon")
    .option("url", url)
    .option("maxRowsPerBatch", 50_000)
    .load()
    .groupBy("stream_cid")
    .agg(
        f.count("*").alias("events"),
        f.max("position").alias("position"),
        f.max_by("event_cid", "position").alias("last_event_cid"),
    )
)

# %% Up to the node's head, then stop; leave out availableNow for a stream that never ends.
query = (
    streams.writeStream.outputMode("complete")
    .format("memory")
    .queryName("streams")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
table = spark.table("streams")
table.write.mode("overwrite").parquet(f"{directory}/streams")

# %% The busiest streams.
busiest = table.orderBy(f.desc("events"), "stream_cid").limit(3)
busiest.select(f.hex("stream_cid").alias("stream"), "events", "position").show(truncate=24)
[total] = table.agg(f.sum("events")).collect()
print(f"{table.count()} streams, {total[0]} events")
spark.stop()
