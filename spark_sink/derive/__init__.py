"""Computes the other tables from `raw_events`.

- `feed_streams`, `transforms`: the rows of each table as pure functions of a stream's events
- `portion`: the rows of some streams in all tables, and the models that these depend on
- `derivation`: brings the tables to the position of `raw_events`, step by step
- `workers`: Spark's workers, or this process
- `child_process`: processes that may be killed; `watchdog`: when they are
"""
