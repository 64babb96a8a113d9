"""The tables, and the feed position of each.

- `location`: where they are, a directory or an object store, and the files there
- `directory`: all tables of a log, in a directory that one process writes
- `delta`: one table; `delta_files`: its files
- `commits`: what it knows about itself, and its commits; `leaves`: changing its rows
- `retention`: keeping it small
- `staging`: rows on their way into a table; `raw_files`: reading `raw_events` back
- `catalog`: tables and views as readers find them, their versions and status
"""
