"""Copies of tables and views elsewhere, which follow them.

- `following`: brings a target up to date, again and again
- `postgres`, `kafka`: targets, in a PostgreSQL database and in topics of Kafka
"""
