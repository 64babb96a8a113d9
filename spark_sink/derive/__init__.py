"""From `raw_events` to the other tables.

- `streams`, `transforms`: the rows of each table as pure functions of a stream's events
- `models`: what the models of documents say; `portion`: the rows of some streams in all tables
- `derivation`: brings the tables to the position of `raw_events`, step by step
- `workers`: where portions are computed: here, or by Spark's workers
"""
