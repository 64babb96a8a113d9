"""Two tables of a node's feed, declared: Spark works out the order, and what is new."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def feed_events() -> DataFrame:
    """Every event of the node, once."""
    return spark.readStream.format("recon").option("url", os.environ["RECON_URL"]).load()


@dp.materialized_view
def busy_streams() -> DataFrame:
    """How many events each stream has."""
    events = spark.read.table("feed_events")
    return events.groupBy("stream_cid").agg(f.count("*").alias("events"))
