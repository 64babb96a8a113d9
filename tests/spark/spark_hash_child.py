"""The hash of many keys on a cluster: python spark_hash_child.py MASTER.

Prints the hash of all keys, and of the keys of each partition, as Spark computes them on workers.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from spark_sink.functions import sha256a

if __name__ == "__main__":
    spark = (
        SparkSession.builder.master(sys.argv[1])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "500m")
        .config("spark.executor.memory", "500m")
        .getOrCreate()
    )
    keys = spark.range(20_000, numPartitions=6)
    keys = keys.withColumn("key", sql.col("id").cast("string").cast("binary"))
    whole = keys.agg(sha256a(keys.key)).collect()[0][0]
    parts = keys.groupBy(sql.spark_partition_id()).agg(sha256a(keys.key).alias("part")).collect()
    print("found", json.dumps({"whole": whole, "parts": [row.part for row in parts]}))
    spark.stop()
