"""Maintenance of a node's log: `recon-node store info|check|compact|forget|export|import|backup`.

Callers hold the lock of the data directory, except of `import_events`, which takes it itself, and
of `backup_log`, which needs none. Long steps report to a `Progress`. In reading order:

    closed_log      what a log has, and making it smaller
    forget          removing the bytes of streams
    check           everything that can be wrong with a log and its events
    repair          a new log from what can be saved
    salvage         what can be saved
    backup          a copy of the log, while a node writes it or not
    export          all events to a file
    archive         the form of that file
    archive_import  events of such a file into a log
    block_import    events out of blocks of IPFS, or of a ceramic-one node, into a log
"""

from recon_node.store.maintenance.archive_import import (
    ArchiveError,
    ImportResult,
    NoExportError,
    import_events,
)
from recon_node.store.maintenance.block_import import import_history
from recon_node.store.maintenance.check import Fault, Report, check_log
from recon_node.store.maintenance.closed_log import (
    Compacted,
    LogInfo,
    Progress,
    compact_log,
    find_log,
    network_of,
    read_info,
)
from recon_node.store.maintenance.export import export_events
from recon_node.store.maintenance.forget import Forgotten, forget_streams, streams_in
from recon_node.store.maintenance.log_copy import BackedUp, backup_log, begin_epoch, check_copy
from recon_node.store.maintenance.repair import Repaired, repair_log

__all__ = [
    "ArchiveError",
    "BackedUp",
    "Compacted",
    "Fault",
    "Forgotten",
    "ImportResult",
    "LogInfo",
    "NoExportError",
    "Progress",
    "Repaired",
    "Report",
    "backup_log",
    "begin_epoch",
    "check_copy",
    "check_log",
    "compact_log",
    "export_events",
    "find_log",
    "forget_streams",
    "import_events",
    "import_history",
    "network_of",
    "read_info",
    "repair_log",
    "streams_in",
]
