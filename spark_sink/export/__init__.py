"""Copies of tables and views elsewhere, which follow them.

- `following`: brings a target up to date, again and again
- `postgres`: a target in a PostgreSQL database
"""
