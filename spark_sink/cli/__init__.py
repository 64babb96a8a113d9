"""The command `spark-sink`.

In reading order:

    commands         the group of all commands, and `run`
    table_commands   inspect and maintain the tables
    query_output     query results: JSON lines, or a table and hints
    view_commands    typed views of models
    export_commands  copies in other systems
    serve            `serve`
    event_printer    what happens in `run` and `serve`, a line for each event
    options          the options that commands share, and their types
"""

import os

from recon_node.base.program import quietly_interrupted

# Arrow's own allocator keeps what one thread allocates and another one frees. delta-rs frees in its
# threads what it was given: `run` grew by 0.7 MB a batch.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

with quietly_interrupted():  # imports take a while; commands handle it the same way
    from spark_sink.cli.commands import main

__all__ = ["main"]
