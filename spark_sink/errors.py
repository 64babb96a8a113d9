"""What can go wrong, told to people: what was wrong, where, and what to do.

Every message is one line. An error raised in one of Spark's worker processes reaches the driver as
text inside a Java exception; `run.session.translate` finds it there by its class name, so these
classes must stay importable from here and take the message as their only argument.
"""

from pathlib import Path
from typing import Final

_ADVICE: Final = {
    "No space left on device": "the disk is full; make room and start again, nothing is lost",
    "Permission denied": "this user may not write there",
    "Read-only file system": "the file system is mounted read-only",
    "Failed to fetch metadata for file": "a file of a table is damaged or gone; make the table "
    "anew with spark-sink rebuild",
}


class SinkError(Exception):
    """The pipeline cannot go on; the message says why and what to do."""


class FeedUnreachableError(SinkError):
    """The node does not answer, or not in full: it may be starting, stopping or gone."""


class FeedChangedError(SinkError):
    """The node's feed is another one than the positions that were read before belong to."""


class FeedRefusedError(SinkError):
    """The node answers, but not as a feed of this version does."""


class TablesError(SinkError):
    """The tables on disk are not what this pipeline wrote, or are in use."""


class JavaMissingError(SinkError):
    """No Java runtime that Spark can use."""


def cannot_write(directory: Path, error: Exception) -> TablesError:
    """What a library says that could not write tables, in one line, with what to do about it."""
    text = " ".join(str(error).split())
    advice = next((told for fault, told in _ADVICE.items() if fault in text), None)
    reason = text if advice is None else f"{advice} ({text})"
    return TablesError(f"cannot write the tables in {directory}: {reason}")


def cannot_read(error: Exception) -> TablesError:
    """What a library says that could not read a file of a table, with what to do about it."""
    text = " ".join(str(error).split())
    return TablesError(
        f"a file of a table is damaged or gone: {text}; make the table anew with spark-sink rebuild"
    )
