"""Errors in words, and the errors of exception groups.

A trio nursery raises a group even for a single error, and callers want the error. trio-util's
`multi_error_defer_to` comes close, but it compares errors by their `repr`, cannot unwrap an error
whose type is not listed, and has no types. trio's own `strict_exception_groups=False` is
deprecated.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NUMBER: Final = re.compile(r"\[Errno -?\d+\] ")
_CREDENTIALS: Final = re.compile(
    r'://(?:[^/?#\s@:[]*:(?:(?!\d+[/?#])(?:(?!://)[^\s"]){1,1000}|[^/?#\s]*)'
    r"|(?:(?<=http://)|(?<=https://))[^/?#\s]*)@",
    re.I,
)
"""In a URL of the web, a user's name alone may be a token; in one of a store, it is its name. A
password may have any characters that should be encoded, such as a slash, unless what precedes that
is a port. It ends with the text in JSON, and where another URL begins: otherwise a line of many,
which is somebody's text, takes seconds."""


def reason_of(error: BaseException) -> str:
    """Return why something failed, for a message that says what failed."""
    text = plain(getattr(error, "strerror", None) or str(error))
    cause = error.__cause__ or error.__context__
    if text or not isinstance(cause, Exception):  # behind a timeout is trio's `Cancelled`
        return text or type(error).__name__
    return reason_of(cause)  # such as a certificate's fault, within wordless errors of libraries


def without_passwords(text: str) -> str:
    """Return a URL, or text with URLs in it, without the passwords that these may have."""
    return _CREDENTIALS.sub("://***@", text)


def plain(text: str) -> str:
    """Return a library's text on one line, and without the numbers of the operating system."""
    return _NUMBER.sub("", " ".join(text.split()))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of an exception group and of the groups in it; others as they are."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def unwrap(error: BaseException, *known: type[BaseException]) -> BaseException:
    """Return the error that stands for an exception group.

    That is Ctrl-C, if it is in the group; else the only error of the group; else the first one,
    if all are of the types `known`; else the group itself.
    """
    causes = list(leaves(error))
    for cause in causes:
        if isinstance(cause, KeyboardInterrupt):
            return cause
    stands_for_all = len(causes) == 1 or all(isinstance(cause, known) for cause in causes)
    return causes[0] if stands_for_all else error


@contextmanager
def unwrapped(*known: type[BaseException]) -> Iterator[None]:
    """Raise what `unwrap` makes of an exception group instead of the group.

    So code that opens a service, or runs trio, can catch the error that its contract names.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        error = unwrap(group, *known)
        if error is group:
            raise
        context = error.__context__
        try:
            raise error
        finally:
            error.__context__ = context  # else the group would be shown as its own error's cause
            del error, context  # the error's traceback refers to this frame: a reference cycle
