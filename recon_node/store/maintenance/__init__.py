"""Maintenance of a node's log: `recon-node store info|check|compact|forget|export|import|backup`.

Callers hold the lock of the data directory, except of `import_events`, which takes it itself, and
of `backup_log`, which needs none. Long steps report to a `Progress`. In reading order:

    closed_log      what a log has, making it smaller, copying it, and removing the bytes of streams
    log_check       everything that can be wrong with a log and its events
    repair          a new log from what can be saved
    salvage         what can be saved
    table_list      the header and the list of tables, without which nothing can be read
    archive         all events to a file, and the form of that file
    archive_import  events of such a file into a log
    history_import  events out of blocks of IPFS or ceramic-one into a log
"""

from recon_node.store.maintenance.archive import ArchiveError, NoExportError, export_events
from recon_node.store.maintenance.archive_import import ImportResult, import_events
from recon_node.store.maintenance.closed_log import (
    BackedUp,
    LogInfo,
    Progress,
    backup_log,
    begin_epoch,
    check_copy,
    compact_log,
    find_log,
    forget_streams,
    network_of,
    read_info,
    streams_in,
)
from recon_node.store.maintenance.history_import import import_history
from recon_node.store.maintenance.log_check import Report, check_log
from recon_node.store.maintenance.repair import Repaired, repair_log

__all__ = [
    "ArchiveError",
    "BackedUp",
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
