"""The command `spark-sink`: `run` in `commands`, the others in `table_commands`, query results in
`answers`."""

import os

from recon_node.base.program import quietly_interrupted

# Arrow's own allocator keeps what one thread allocates and another one frees. delta-rs frees in its
# threads what it was given: `run` grew by 0.7 MB a batch.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

with quietly_interrupted():  # imports take a while; commands handle it the same way
    from spark_sink.cli.commands import main

__all__ = ["main"]
