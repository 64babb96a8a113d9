"""Computes the other tables from `raw_events`.

In reading order:

    derivation     brings the tables to the position of `raw_events`, step by step
    workers        Spark's workers, or this process
    child_process  processes that are killed if one stream takes too long
    portion        the rows of some streams in all tables, and the models that these depend on
    feed_streams   streams, read back from `raw_events`, and the summaries of long ones
    transforms     the rows of each table as pure functions of a stream's events
"""
