"""Maintaining the tables.

In reading order:

    health       what `spark-sink status` shows
    check        whether tables hold what they say
    maintenance  sorts, vacuums and rebuilds them, and forgets streams
"""
