"""Looking after the log of a stopped node: `recon-node store info|check|compact|export|import`.

Every function here works on a data directory whose lock its caller holds (`files_of`), and tells
how far it is through a `Progress`.
"""

from recon_node.store.maintenance.check import Fault, Report, check_log
from recon_node.store.maintenance.compact import Compacted, compact_log
from recon_node.store.maintenance.export import export_events
from recon_node.store.maintenance.info import LogInfo, read_info
from recon_node.store.maintenance.intake import ArchiveError, Intake, import_events
from recon_node.store.maintenance.repair import Repaired, repair_log

__all__ = [
    "ArchiveError",
    "Compacted",
    "Fault",
    "Intake",
    "LogInfo",
    "Repaired",
    "Report",
    "check_log",
    "compact_log",
    "export_events",
    "import_events",
    "read_info",
    "repair_log",
]
