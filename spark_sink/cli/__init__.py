"""The command `spark-sink`: `commands` has `run`, `table_commands` the others, `answers` what
a query gave."""

import sys

try:
    from spark_sink.cli.commands import main
except KeyboardInterrupt:  # imports take a while; a command says the same, see `commands`
    print("Aborted!", file=sys.stderr)
    sys.exit(130)

__all__ = ["main"]
