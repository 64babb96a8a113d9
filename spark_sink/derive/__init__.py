"""Computes the other tables from `raw_events`.

- `streams`, `transforms`: the rows of each table as pure functions of a stream's events
- `models`: the models of documents; `portion`: the rows of some streams in all tables
- `derivation`: brings the tables to the position of `raw_events`, step by step, in this process or
  in Spark's workers
- `apart`, `mark`: processes that may be killed, and the stream that one is at
"""
