"""Times as people and programs write them in requests and options."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS: Final = re.compile(r"\d{1,15}", re.ASCII)


def parse_timestamp(text: str) -> int:
    """Read a time: ISO 8601, in UTC unless it names a zone, or Unix milliseconds.

    Returns:
        Unix milliseconds; a time between two is the later one, so that what has a time in
        milliseconds is before both or before neither.

    Raises:
        ValueError: it is neither.
    """
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
        since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time such as 2026-01-31T12:00:00Z, or Unix milliseconds"
        ) from None
    return -(-since // timedelta(milliseconds=1))
