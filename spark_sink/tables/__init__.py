"""The tables, and the feed position of each.

In reading order:

    location    where they are, a directory or an object store, and the files there
    tables      all tables of a log, in a directory that one process writes
    sink_table  one table, and its commits
    delta_log   what a table's log says, for whoever reads it
    leaves      changes a few rows of a table of streams
    retention   keeps a table small
    staging     rows on their way into a table
    raw_files   reads `raw_events` back
    placement   where the rows of a node's log go in `raw_events`, and which are emptied
    catalog     tables and views as readers find them, their versions and status
"""
