"""The maximum cost of matching a pattern of a JSON Schema, known before the work starts."""

import math
import re
from typing import Final, NamedTuple

_MAX_PATTERN: Final = 3_000
"""Cost, for each byte of content, of the largest pattern that the engine accepts."""
_COUNT_DIGITS: Final = 6
"""Digits of a pattern's repetition count that are read."""

_A_PATTERN: Final = 48
_STATES_PER_KIB: Final = 6
_WIDE_CLASS: Final = 8
_UNICODE_CLASS: Final = 128
_FOLDED_CLASS: Final = 1_024
"""KiB of a compiled pattern: for itself, its states and its classes of characters. A class of all
characters but a few is small; one of a Unicode property takes up to 130 KiB. To ignore the case of
either takes the time in which eight of these are compiled."""
_LARGEST: Final = 4_096
"""KiB of the largest pattern that the engine accepts."""
_BACKTRACKED: Final = 20_000
_BACKTRACKED_PER_CHARACTER: Final = 200
_BACKTRACKED_PER_BYTE: Final = 200
"""Cost of a pattern with look-around: for each text, and for each character of the pattern and byte
of the text in addition."""
_UNICODE: Final = re.compile(r"\\[pP]|-\s*(?:[^\x00-\x7f]|\\[xuU])")
_NEGATED: Final = re.compile(r"\\[WDS]|\[\^")
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")
_REPETITION: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_NEEDS_BACKTRACKING: Final = re.compile(r"\(\?<?[=!]|\\[1-9k]")


def needs_backtracking(pattern: str) -> bool:
    """Whether a pattern has look-around or backreferences."""
    return _NEEDS_BACKTRACKING.search(pattern.replace("\\\\", "")) is not None


class PatternPrice(NamedTuple):
    """Of a pattern.

    Attributes:
        states: of its automaton, at most: its cost for each byte of content.
        memory: KiB of the compiled pattern.
        for_text: the additional cost for each text, if the pattern needs backtracking.
        for_byte: the same for each byte of the text.
    """

    states: int
    memory: int
    for_text: int = 0
    for_byte: int = 0


def price_of_pattern(pattern: str) -> PatternPrice:
    """Return the maximum cost of matching a pattern."""
    counts = (int((most or least)[:_COUNT_DIGITS]) for least, most in _REPETITION.findall(pattern))
    times = math.prod(max(count, 1) for count in counts)
    states = len(pattern) * times
    memory = _A_PATTERN + states // _STATES_PER_KIB + times * _of_classes(pattern)
    price = PatternPrice(min(states, _MAX_PATTERN), min(memory, _LARGEST))
    if not needs_backtracking(pattern):
        return price
    return price._replace(
        for_text=_BACKTRACKED + len(pattern) * _BACKTRACKED_PER_CHARACTER,
        for_byte=_BACKTRACKED_PER_BYTE + len(pattern) // 2,
    )


def _of_classes(pattern: str) -> int:
    """KiB of a pattern's classes of characters, if each of them is written once."""
    unicode, negated = len(_UNICODE.findall(pattern)), len(_NEGATED.findall(pattern))
    dots = pattern.count(".") * _WIDE_CLASS
    if _IGNORES_CASE.search(pattern):
        return dots + (unicode + negated) * _FOLDED_CLASS
    return dots + unicode * _UNICODE_CLASS + negated * _WIDE_CLASS
