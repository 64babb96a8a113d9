"""The command `spark-sink`: `run` in `commands`, the others in `table_commands`, query results in
`answers`."""

import sys

try:
    from spark_sink.cli.commands import main
except KeyboardInterrupt:  # imports take a while; commands handle it the same way
    print("Aborted!", file=sys.stderr)
    sys.exit(130)

__all__ = ["main"]
