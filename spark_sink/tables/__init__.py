"""The tables, and the feed position of each. In reading order:

- `location`: where they are, a directory or an object store, and the files there
- `directory`: all tables of a log, in a directory that one process writes
- `placement`, `dags`: where a log's rows go in `raw_events`, and which stay empty
- `staging`: rows on their way into a table; `raw_files`: reading `raw_events` back
- `delta`: one table and its commits
- `delta_log`: what a table's log says, for whoever reads it
- `leaves`: changing a few rows of a table
- `retention`: keeping it small
- `catalog`: tables and views as readers find them, their versions and status
"""
