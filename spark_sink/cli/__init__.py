"""The command `spark-sink`: `run` in `commands`, the others in `table_commands`, query results in
`answers`."""

import os
import sys

# Arrow's own allocator keeps what one thread allocates and another one frees. delta-rs frees in its
# threads what it was given: `run` grew by 0.7 MB a batch.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

try:
    from spark_sink.cli.commands import main
except KeyboardInterrupt:  # imports take a while; commands handle it the same way
    print("Aborted!", file=sys.stderr)
    sys.exit(130)

__all__ = ["main"]
