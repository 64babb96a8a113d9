"""SQL queries over the tables, by DuckDB, and what else reads them.

In reading order:

    question      runs a query in a thread that Ctrl-C can interrupt
    dataset       the files of tables that DuckDB alone cannot read
    tangles_view  the view `tangles`
    show          values as text and as JSON
    changes       what has changed in a table since the last time
    verify        compares `raw_events` with a node's log
"""
