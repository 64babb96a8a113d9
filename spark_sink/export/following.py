"""Lets a target follow tables and views.

Theory of operation. A target keeps the token of `spark-sink changes` for each table in the same
transaction as the rows: so whatever ends the program, the next one goes on behind the last change
that is there, and each change is there once. A target needs no configuration: it says itself
where it is.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from spark_sink.errors import SinkError
from spark_sink.query.changes import Changes, Token
from spark_sink.schema import STATES
from spark_sink.tables.catalog import view_names
from spark_sink.tables.location import Location

_FIRST_PAUSE: Final = 1.0
"""Seconds to wait for a target that cannot be reached, the first time."""
_LONGEST_PAUSE: Final = 30.0
"""Seconds to wait for it at most."""

Since = Callable[[Token | None], Changes]
"""Returns the changes of a table since a token."""


class TargetUnreachableError(SinkError):
    """A target does not answer, or the connection was lost; nothing of a change is there."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a target has taken in: how many rows, and up to which position."""

    rows: int
    position: int
    refused: int = 0
    """Rows that it set aside."""


Take = Callable[[str, Since], Taken | None]
"""Takes what has changed in a table since the last time into a target; None if nothing has.
Raises `TargetUnreachableError` if the target does not answer, and `SinkError` if it refuses."""


def follow(
    directory: Location,
    names: Sequence[str],
    take: Take,
    *,
    every: float | None,
    on_taken: Callable[[str, Taken], None],
    on_unreachable: Callable[[str], None],
) -> None:
    """Bring a target up to date, for ever or once.

    Args:
        directory: of the tables.
        names: of tables and views; none: stream_states and all views there are.
        take: brings the target up to date.
        every: seconds between two looks at the tables; None: look once.
        on_taken: called with a table and what the target has taken in.
        on_unreachable: called with the reason when the target does not answer; it is tried again.

    Raises:
        SinkError: there is no such table, or the target refuses one, which is said when it has
            taken in the others.
    """
    for name in names or (STATES,):
        Changes(directory, name, None)  # a wrong name is said before the target is waited for
    pause = _FIRST_PAUSE
    while True:
        try:
            _take_all(directory, names or (STATES, *view_names(directory)), take, on_taken)
        except TargetUnreachableError as error:
            if every is None:
                raise
            on_unreachable(str(error))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            continue
        if every is None:
            return
        pause = _FIRST_PAUSE
        time.sleep(every)


def _take_all(
    directory: Location, names: Iterable[str], take: Take, on_taken: Callable[[str, Taken], None]
) -> None:
    """Take in what has changed in some tables; raise the first refusal when all had their turn."""
    refused: SinkError | None = None
    for name in names:
        try:
            if taken := take(name, partial(Changes, directory, name)):
                on_taken(name, taken)
        except TargetUnreachableError:
            raise
        except SinkError as error:  # a stranger's model may be why: it stops no other table
            refused = refused or error
    if refused is not None:
        raise refused
