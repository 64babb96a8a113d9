"""The tables on disk, and how far each of them is.

- `directory`: all tables of a log, in a directory that one process writes
- `delta` (with `delta_files`) and `parquet`: the formats
- `staging`: rows on their way into a table; `raw_files`: reading `raw_events` back
- `status`, `versions`: what a look at them tells; `datafusion`: SQL for our own use
"""
