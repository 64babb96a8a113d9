"""Errors whose messages are for users: what is wrong, where, and what to do, in one line.

An error raised in one of Spark's worker processes reaches the driver as text inside a Java
exception. `run.spark_session.translate` finds it there by its class name, so subclasses of
`SinkError` must stay importable from here and take the message as their only argument.
"""

import re
from textwrap import shorten
from typing import Final, Literal, Protocol

from recon_node.base.errors import plain

INSTALL: Final = (
    "in the directory of the project's source: "
    "pip install -r requirements/spark.lock && pip install --no-deps ."
)
"""How to install the pipeline's packages: the project is not on PyPI."""

NOT_ALLOWED: Final = "Permission denied"
_READ_ONLY: Final = "Read-only file system"
_FULL: Final = "No space left on device"
_ADVICE: Final = {
    _FULL: "the disk is full; free some space and start again, nothing is lost",
    NOT_ALLOWED: "this user may not write there",
    _READ_ONLY: "the file system is mounted read-only",
    "Failed to fetch metadata for file": "a file of a table is damaged or missing; rebuild the "
    "table with spark-sink rebuild",
}
_STORE_FAULTS: Final = (
    (
        "NoSuchBucket|specified bucket does not exist|ContainerNotFound",
        "the bucket does not exist: create it, or correct its name",
    ),
    (
        r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google|"
        "no credentials found in chain|loading credentials",
        "there are no credentials for the store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
        "AZURE_STORAGE_ACCOUNT_KEY, GOOGLE_SERVICE_ACCOUNT, or what its provider has instead, in "
        "the environment",
    ),
    (
        "Account must be specified",
        "the storage account is missing: set AZURE_STORAGE_ACCOUNT_NAME",
    ),
    (
        "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|AuthenticationFailed|"
        "401 Unauthorized",
        "the store does not accept the credentials: they are wrong or have expired",
    ),
    (
        "AccessDenied|403 Forbidden|AuthorizationFailure",
        "the store refuses it: the credentials lack a permission to list, read, write or delete "
        "objects there",
    ),
    (
        "Invalid Access Key|GCP credential error|service account file",
        "its credentials cannot be read: look at the variables of its provider, such as "
        "AZURE_STORAGE_ACCOUNT_KEY or GOOGLE_SERVICE_ACCOUNT",
    ),
    (
        "PermanentRedirect|301 Moved|AuthorizationHeaderMalformed|bare redirect",
        "the bucket is in another region: set AWS_REGION",
    ),
    (
        "BadScheme|URL scheme is not allowed",
        "the store's address begins with http://: set AWS_ALLOW_HTTP=true if that is meant",
    ),
    (
        "error sending request|client error|dns error|operation timed out|50[0-9] [A-Z]",
        "the store does not answer as it should: is it up, and is its address right, if you gave "
        "one (AWS_ENDPOINT_URL, AZURE_STORAGE_ENDPOINT, GOOGLE_BASE_URL)?",
    ),
)
"""What is wrong with a store, by patterns in messages; the first that is found counts."""
_MAX_TEXT: Final = 2_000
"""Characters of a `RequestError`: longer messages would not fit into the trailers of an HTTP/2
response."""
_MAX_REASON: Final = 300
"""Characters of what delta-rs says about a table's log: it can be a page of its own records."""
# delta-rs draws the causes of an error as a tree.
_COLORS: Final = re.compile("\x1b\\[[0-9;]*m|↳")
# Of a stack of Rust's functions, at the end of an error, with RUST_BACKTRACE.
_STACK: Final = re.compile(r"\n +0: .*", re.DOTALL)

Code = Literal[
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNIMPLEMENTED",
    "UNAUTHENTICATED",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "FAILED_PRECONDITION",
    "INTERNAL",
]
"""A status code of gRPC."""


class TablePath(Protocol):
    """The location of a table."""

    @property
    def name(self) -> str:
        """Its last part."""

    @property
    def parent(self) -> "TablePath":
        """The one above."""


class SinkError(Exception):
    """The pipeline cannot continue; the message says why and what to do."""


class FeedUnreachableError(SinkError):
    """The node does not answer, or not completely: it may be starting, stopping or gone."""


class FeedChangedError(SinkError):
    """The node's feed is not the one that was read before."""


class FeedRefusedError(SinkError):
    """The node answers, but not as a feed of this version does."""


class TablesError(SinkError):
    """The tables on disk are damaged, in use, or not written by this pipeline."""


class ConflictError(TablesError):
    """Another process is writing the tables, or has written one since it was read."""


class RequestError(Exception):
    """A request to `spark-sink serve` that fails, with its status code of gRPC."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text[:_MAX_TEXT])
        self.code: Code = code
        self.text = text[:_MAX_TEXT]


def over_connect(master: str) -> SinkError:
    """Return the error for a master that is a Spark Connect server."""
    return SinkError(
        f"{master} is a Spark Connect server, which would write the tables instead of this "
        "process: use the cluster's own master, such as spark://HOST:7077"
    )


def one_line(error: Exception) -> str:
    """Return the message of an error in one line, without the colors and stacks of delta-rs."""
    return plain(_STACK.sub("", _COLORS.sub("", str(error)))) or type(error).__name__


def store_fault(error: Exception | str) -> str | None:
    """Return what is wrong with an object store, in a sentence; None if it is something else.

    delta-rs says it by the requests that failed and the answers of the store, which are pages long.
    """
    text = error if isinstance(error, str) else one_line(error)
    return next((advice for fault, advice in _STORE_FAULTS if re.search(fault, text)), None)


def cannot_write(directory: TablePath, error: Exception) -> TablesError:
    """Return the error for tables that cannot be written, with advice."""
    return TablesError(f"cannot write the tables in {directory}: {_with_advice(error)}")


def cannot_read(path: TablePath, error: Exception) -> TablesError:
    """Return the error for a file of a table or a view that cannot be read."""
    if fault := store_fault(error):
        return TablesError(f"cannot read the tables: {fault}")
    return TablesError(f"a file of {path} is damaged or missing: {one_line(error)}; {remedy(path)}")


def cannot_open(path: TablePath, error: Exception | str) -> TablesError:
    """Return the error for a table whose metadata cannot be read."""
    reason = error if isinstance(error, str) else one_line(error)
    if fault := store_fault(reason):
        return TablesError(f"cannot open the table {path}: {fault}")
    if NOT_ALLOWED in reason:
        return TablesError(f"cannot open the table {path}: this user may not read it ({reason})")
    if fault := next((fault for fault in (_READ_ONLY, _FULL) if fault in reason), None):
        return TablesError(f"cannot open the table {path}: {_ADVICE[fault]}")
    reason = shorten(reason, _MAX_REASON, placeholder=" ...")
    if _is_view(path):
        then = " and create the view again with spark-sink view create"
    elif path.name in ("raw_events", "unprocessed_streams"):
        then = f" and rebuild it with {_rebuild_command(path)}"
    else:  # the next run computes it again
        then = ", and it will be rebuilt"
    return TablesError(f"cannot open the table {path}: {reason}; if it is damaged, delete it{then}")


def must_rebuild(path: TablePath, what: str) -> TablesError:
    """Return the error for a table that is damaged or of another version; `what` says which."""
    return TablesError(f"the table {path} {what}; {remedy(path)}")


def remedy(path: TablePath) -> str:
    """Return how to mend a table or a view that is damaged."""
    if _is_view(path):
        return f"create the view again: spark-sink view drop {path.name}, then view create"
    return f"rebuild the table with {_rebuild_command(path)}"


def _is_view(path: TablePath) -> bool:
    from spark_sink.schema import TABLES  # with pyarrow, which `--help` does without

    return path.parent.name == "views" and path.name not in TABLES


def written_by_another(path: TablePath) -> ConflictError:
    """Return the error for a table to which another process has committed meanwhile."""
    return ConflictError(
        f"another process has written the table {path} since this one read it (or, in a store, the "
        "answer to a commit of this one was lost): only one spark-sink may write it. Nothing is "
        "lost, and nothing is there twice: stop the other one, if there is one, and start again"
    )


def another_log(path: TablePath, actual: str, expected: str) -> SinkError:
    """Return the error for a table of the log `actual`, or, if that is empty, of no log."""
    if not actual:
        return TablesError(
            f"the table {path} was not made by spark-sink: point --tables at another directory"
        )
    return FeedChangedError(
        f"the table {path} was made from log {actual}, but the node has log {expected}: it was set "
        "up from scratch, or is another node. Point --url at the right node, name one more to go "
        "on from its log, or point --tables at a new directory"
    )


def _with_advice(error: Exception) -> str:
    text = one_line(error)
    if fault := store_fault(text):
        return fault
    advice = next((text_ for fault, text_ in _ADVICE.items() if fault in text), None)
    return text if advice is None else f"{advice} ({text})"


def _rebuild_command(path: TablePath) -> str:
    """Return the command that rebuilds a table; `raw_events` is read from a node."""
    url = " --url URL" if path.name == "raw_events" else ""
    return f"spark-sink rebuild {path.name} --tables {path.parent}{url}"


def other_dags(path: object, excluded: bool) -> TablesError:
    """Return the error when tables were made with another setting of --exclude-dags."""
    if excluded:
        return TablesError(
            f"{path} was made without the events of DAGs, and without --exclude-dags only those "
            "that are still to come would be in it: run with --exclude-dags, or name a new "
            "directory"
        )
    return TablesError(
        f"{path} was made with the events of DAGs, and --exclude-dags would leave out only those "
        "that are still to come: run without --exclude-dags, or name a new directory"
    )


def invalid_request(text: str) -> RequestError:
    """Return the error for a request that can never succeed."""
    return RequestError("INVALID_ARGUMENT", text)
