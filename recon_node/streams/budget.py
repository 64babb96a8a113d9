"""How much may be computed from a stream's content: a count of steps that events pay for.

Theory of operation. The writer of events decides how much work they cause: patches, checks by the
schema of a model, `unique`, merges. A clock would give another verdict on each machine, so steps
are counted instead, as a function of the events alone. Each event has an allowance that grows with
its size; one that takes more is rejected. Each stream has one as well; a stream that takes more is
not computed, and the caller gets an error.

A step is about 4 ns of one core, or one byte that is written out.

The content after each event is also a row of a table (`event_states` of the pipeline), and what is
written there stays. So each stream has another allowance, of bytes of content: a small event on a
large document writes all of it again. Time events do not take from it, because anybody can add
them to a stream. Their rows repeat the content only if it is not longer than `TIME_ROW`.
"""

from __future__ import annotations

from typing import Final, Self

EVENT: Final = 20_000_000
"""Steps of an event, and for each byte of it in addition."""
EVENT_BYTE: Final = 100
STREAM: Final = 2_500_000_000
"""Steps of a stream, and for each byte of its events in addition."""
STREAM_BYTE: Final = 250
ROWS: Final = 100_000_000
"""Bytes of content in the rows of a stream's signed events, and for each byte of these events in
addition `STREAM_BYTE`."""
TIME_ROW: Final = 250_000
"""Bytes of content in the row of a time event: about what each of its bytes would pay for."""
MERGE: Final = 500_000_000
"""Steps of a proposal to merge a stream."""


class BudgetError(Exception):
    """Something takes more work than its events pay for; the message says what."""


class Budget:
    """A number of steps that may be taken.

    `what` takes them, for the message, and `unit` is what they are.
    """

    __slots__ = ("_steps", "_unit", "_what", "left")

    def __init__(self, what: str, steps: int, unit: str = "steps of work") -> None:
        self._what = what
        self._steps = steps
        self._unit = unit
        self.left = steps

    @classmethod
    def of_event(cls, size: int) -> Self:
        """What an event of this many bytes may take."""
        return cls("the event", EVENT + EVENT_BYTE * size)

    @classmethod
    def of_stream(cls, size: int) -> Self:
        """What a stream may take whose events have this many bytes."""
        return cls("the stream", STREAM + STREAM_BYTE * size)

    @classmethod
    def of_rows(cls, size: int) -> Self:
        """How many bytes the rows of a stream may have whose events have this many bytes."""
        steps = ROWS + STREAM_BYTE * size
        return cls("the content after all events of the stream", steps, "bytes")

    @classmethod
    def of_merge(cls) -> Self:
        """What a proposal to merge a stream may take."""
        return cls("a proposal to merge the stream", MERGE)

    @property
    def spent(self) -> int:
        """The steps that were taken."""
        return self._steps - self.left

    def spend(self, steps: int) -> None:
        """Count steps before they are taken.

        Raises:
            BudgetError: fewer are left.
        """
        self.left -= steps
        if self.left < 0:
            raise BudgetError(f"{self._what} takes more than {self._steps:,} {self._unit}")
