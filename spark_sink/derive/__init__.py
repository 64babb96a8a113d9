"""Computes the other tables from `raw_events`.

- `streams`, `transforms`: the rows of each table as pure functions of a stream's events
- `models`: the models of documents; `portion`: the rows of some streams in all tables
- `derivation`: brings the tables to the position of `raw_events`, step by step
- `workers`: runs portions in this process or in Spark's workers
"""
