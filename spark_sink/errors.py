"""What can go wrong, told to people: what was wrong, where, and what to do.

Every message is one line. An error raised in one of Spark's worker processes reaches the driver as
text inside a Java exception; `run.session.translate` finds it there by its class name, so these
classes must stay importable from here and take the message as their only argument.
"""

from pathlib import Path
from typing import Final

#: What installs the pipeline's packages: the project is not on PyPI.
INSTALL: Final = (
    "in the directory of the project's source: pip install -c requirements.lock '.[spark]'"
)

_NOT_ALLOWED: Final = "Permission denied"
_ADVICE: Final = {
    "No space left on device": "the disk is full; make room and start again, nothing is lost",
    _NOT_ALLOWED: "this user may not write there",
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


def over_connect(master: str) -> SinkError:
    """A master that is a server of Spark Connect."""
    return SinkError(
        f"{master} is Spark Connect, whose server would write the tables, not this process: "
        "name the cluster's own master, as in spark://HOST:7077"
    )


def one_line(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def cannot_write(directory: Path, error: Exception) -> TablesError:
    """What a library says that could not write tables, with what to do about it."""
    return TablesError(f"cannot write the tables in {directory}: {_with_advice(error)}")


def cannot_read(error: Exception) -> TablesError:
    """What a library says that could not read a file of a table, with what to do about it."""
    return TablesError(
        f"a file of a table is damaged or gone: {one_line(error)}; make the table anew with "
        "spark-sink rebuild"
    )


def cannot_open(path: Path, error: Exception | str) -> TablesError:
    """What is wrong with what a table says of itself, so that nothing can be done with it."""
    told = error if isinstance(error, str) else one_line(error)
    if _NOT_ALLOWED in told:
        return TablesError(f"cannot open the table {path}: this user may not read it ({told})")
    is_raw = path.name == "raw_events"
    return TablesError(
        f"cannot open the table {path}: {told}; where it is damaged, delete it"
        + (f": {_rebuild(path)} makes it anew" if is_raw else ", it will be made anew")
    )


def damaged(path: Path, what: str) -> TablesError:
    """What is wrong with the files of a table."""
    return TablesError(f"the table {path} is damaged: {what}; make it anew with {_rebuild(path)}")


def other_columns(path: Path) -> TablesError:
    """A table is of another version of this pipeline."""
    return TablesError(
        f"the table {path} has other columns than this version of spark-sink writes: make it anew "
        f"with {_rebuild(path)}"
    )


def other_rules(path: Path) -> TablesError:
    """A table was computed by another version of this pipeline, from whose rows these differ."""
    return TablesError(
        f"the table {path} was computed by the rules of another version of spark-sink: make it "
        f"anew with {_rebuild(path)}"
    )


def another_log(path: Path, found: str, expected: str) -> SinkError:
    """A table is not of the log `expected`, but of `found`; of none, if that is empty."""
    if not found:
        return TablesError(
            f"the table {path} was not made by spark-sink: point --tables at another directory"
        )
    return FeedChangedError(
        f"the table {path} was made from log {found}, but the node has log {expected}: it was set "
        "up anew, or is another node. Point --url at the right node, or --tables at a new directory"
    )


def _with_advice(error: Exception) -> str:
    text = one_line(error)
    advice = next((told for fault, told in _ADVICE.items() if fault in text), None)
    return text if advice is None else f"{advice} ({text})"


def _rebuild(path: Path) -> str:
    """The command for a table; `raw_events` is read from a node."""
    url = " --url URL" if path.name == "raw_events" else ""
    return f"spark-sink rebuild {path.name} --tables {path.parent}{url}"
