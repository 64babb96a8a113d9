"""A quick look into the tables in SQL, by DuckDB.

- `question`: asks, with functions for CIDs and StreamIDs
- `duck`: DuckDB in a thread of its own, which Ctrl-C can end
- `hints`: what a query that finds nothing may have meant
- `types`, `show`: its values as text and as JSON
"""
