"""SQL queries over the tables, by DuckDB.

- `question`: runs a query, with functions for CIDs and StreamIDs
- `duck`: DuckDB in its own thread, which Ctrl-C can interrupt, and its values
- `hints`: likely mistakes in a query that finds nothing
- `show`: values as text and as JSON
"""
