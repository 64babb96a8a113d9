"""A quick look into the tables in SQL, by DuckDB.

- `question`: asks, with functions for CIDs and StreamIDs
- `types`, `show`: its values as text and as JSON
"""
