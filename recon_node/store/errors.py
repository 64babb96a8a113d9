"""What goes wrong in this package; `db/sql.py` explains to people what SQLite reports."""

from typing import Final


class StoreError(Exception):
    """The event log cannot be opened, read or written. The message says why and what to do."""


class DiskFullError(StoreError):
    """The disk has no room: the log can be read, but not written, until there is some."""


class DamagedLogError(StoreError):
    """The event log is damaged; `recon-node store check --repair` saves what can be saved."""


class InvalidInterestError(ValueError):
    """An interest that does not name a range of keys."""


class UnknownTimeError(ValueError):
    """An earlier version delivered events around a time, and did not note when."""


class DamagedRowError(Exception):
    """A row of the log has values that this program never writes."""


REPAIR: Final = (
    "stop the node and run `recon-node store check --repair`, which saves what can be saved and "
    "keeps the damaged file; or restore a backup"
)
