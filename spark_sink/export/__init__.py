"""Copies of tables and views elsewhere, which follow them.

In reading order:

    following  brings a target up to date, again and again
    postgres   a target: a PostgreSQL database
    kafka      a target: topics of Kafka
"""
