"""What can go wrong, told to people: what was wrong, where, and what to do.

Every message is one line. An error raised in one of Spark's worker processes reaches the driver as
text inside a Java exception; `spark_sink.session.translate` finds it there by its class name, so
these classes must stay importable from here and take the message as their only argument.
"""


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
