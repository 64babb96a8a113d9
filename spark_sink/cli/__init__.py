"""The command `spark-sink`: `commands` has `run`, `table_commands` the others."""

from spark_sink.cli.commands import main

__all__ = ["main"]
