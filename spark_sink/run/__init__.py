"""What `spark-sink run` runs.

In reading order:

    runner         node, tables, Spark, query, from start to stop, and the events it reports
    pipeline       one streaming query that keeps the tables up to date, exactly once
    feed_reader    which node is read, by one query after the other
    follower       how the tables follow its log, whichever they were filled from before
    backfill       starts from a snapshot
    spark_session  Spark itself, and the Java that it runs on
    cluster        what the workers of a cluster must have
    memory         how much memory may be used
    metrics        numbers for Prometheus
"""
