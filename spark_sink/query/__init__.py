"""SQL queries over the tables, by DuckDB.

- `question`: runs a query in a thread that Ctrl-C can interrupt, with functions for CIDs and
  StreamIDs
- `dataset`: the files of tables in object stores
- `show`: values as text and as JSON
"""
