"""When a signature holds. Not whether it holds now: this floor knows no clock.

Whether an event belongs to the set may not depend on when a node looks at it, or two nodes would
never agree. So a capability that has run out makes no signature wrong; it comes with the time in
which it holds, and the floors above judge: a local write by the present, an event of the network
by the time of the earliest time event that covers it.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

# RFC 3339, which is what CAIP-74 asks for: a date alone or a time without a zone is none. Hours and
# minutes are held to their ranges here: how exact Python is with those depends on its version.
_CLOCK: Final = r"([01]\d|2[0-3]):[0-5]\d"
_DATE_TIME: Final = re.compile(
    rf"\d{{4}}-\d\d-\d\dT{_CLOCK}:[0-5]\d(\.\d{{1,9}})?(Z|[+-]{_CLOCK})", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Validity:
    """From when and until when a signature holds: Unix seconds, both included; None: no bound."""

    not_before: int | None = None
    expires: int | None = None

    def covers(self, time: int) -> bool:
        """Does the signature hold at that time, in Unix seconds? Exactly, without tolerance."""
        if self.not_before is not None and time < self.not_before:
            return False
        return self.expires is None or time <= self.expires


ALWAYS: Final = Validity()


def unix_seconds(text: str) -> int:
    """The time that RFC 3339 writes as `text`, rounded down to the second.

    Raises:
        ValueError: not such a time, or none of the calendar's.
    """
    upper = text.upper()
    if not _DATE_TIME.fullmatch(upper):
        raise ValueError(f"{text[:100]!r} is not a date and time of RFC 3339")
    try:
        time = datetime.fromisoformat(upper).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:100]!r} is not a date and time: {error}") from None
    return (time - _EPOCH) // timedelta(seconds=1)
