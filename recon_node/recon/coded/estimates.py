"""Estimates of how many keys differ, and the choice between symbols and ranges.

An estimate comes with hints, which show what parts of the range differ, and so whether differences
lie close together. Then ranges take fewer bytes than symbols, and the search for keys by their ids
need not go through the whole range.
"""

from typing import Final, NamedTuple

from recon_node.base.steps import Steps
from recon_node.recon.coded.messages import HINT_SIZE, SYMBOL_SIZE, Estimate, Message, fingerprint
from recon_node.recon.keys.key_hashes import ID_SIZE
from recon_node.recon.keys.key_store import KeyView
from recon_node.recon.keys.lookups import KeyCursor
from recon_node.recon.keys.ordered_keys import KeyRange, OrderedKeys
from recon_node.recon.keys.sha256a import COUNT_SHIFT
from recon_node.recon.keys.sketch import (
    MAX_SYMBOLS,
    Difference,
    Sketch,
    decode,
    estimate_differences,
    least_differences,
    symbols_for,
)

FIRST_SYMBOLS: Final = 8
"""Symbols beside an estimate: they decode up to about four differences."""
HINTED_PARTS: Final = 12
"""Parts of the range that an estimate has hints of."""
_CLUSTERED: Final = HINTED_PARTS // 4
"""If at most this many parts differ, although many keys do, these lie close together."""
_MANY_BITS: Final = 48
"""Differing bits in the tables from which many keys differ: about 64."""


class Part(NamedTuple):
    """A part of the range that the peer gave a hint of."""

    lower: bytes
    upper: bytes
    start: int
    end: int
    """The positions of its bounds among our keys (lookups.py)."""
    differs: bool

    @property
    def held(self) -> int:
        """The number of our keys in it."""
        return self.end - self.start >> COUNT_SHIFT


class Plan(NamedTuple):
    """How to answer an estimate that its own symbols do not settle."""

    symbols: int
    """Symbols to send; 0 if ranges are better."""
    dense: bool
    """Whether the differences are known to lie close together."""
    list_up_to: int
    """Keys of a gap that are to be listed because symbols would take more bytes."""


def make_estimate(keys: OrderedKeys, key_range: KeyRange, sketch: Sketch) -> Message:
    """Return an estimate of a range, with the first symbols of its sketch."""
    cursor = KeyCursor(keys)
    first = start = cursor.up_to(key_range.lower)
    last = cursor.left_of(key_range.upper)
    bounds, hints = [], []
    for bound, end in cursor.cuts(start, last, HINTED_PARTS):
        bounds.append(bound)
        hints.append(fingerprint(end - start)[:HINT_SIZE])
        start = end
    hints.append(fingerprint(last - start)[:HINT_SIZE])
    return Message(
        count=last - first >> COUNT_SHIFT,
        estimate=Estimate(sketch.table, tuple(bounds), tuple(hints)),
        symbols=sketch.symbols.first(FIRST_SYMBOLS).copy(),
    )


def compare_hints(keys: OrderedKeys, key_range: KeyRange, theirs: Estimate) -> list[Part]:
    """Compare the peer's hints with our keys."""
    cursor = KeyCursor(keys)
    parts, lower, start = [], key_range.lower, cursor.up_to(key_range.lower)
    for upper, hint in zip((*theirs.bounds, key_range.upper), theirs.hints, strict=True):
        end = cursor.left_of(upper)
        differs = fingerprint(end - start)[:HINT_SIZE] != hint
        parts.append(Part(lower, upper, start, end, differs))
        lower, start = upper, end
    return parts


def where_they_differ(key_range: KeyRange, parts: list[Part]) -> KeyRange:
    """Return the smallest range with all parts that differ."""
    differing = [part for part in parts if part.differs]
    if not differing:
        return key_range
    lower = differing[0].lower
    # A part has its lower bound, and a range has not. A prefix is less.
    first = lower if lower == key_range.lower else max(lower[:-1], key_range.lower)
    return KeyRange(first, differing[-1].upper)


def plan(sketch: Sketch, parts: list[Part], theirs: Message) -> Plan:
    """Choose between symbols and ranges, given the peer's estimate and its hints."""
    assert theirs.estimate is not None
    differing = [part.held for part in parts if part.differs]
    bits = least_differences(sketch.table, theirs.estimate.table)
    # If no part differs although the range does, somebody has made keys with equal sums of hashes.
    if 0 < len(differing) <= _CLUSTERED and bits >= _MANY_BITS:
        return Plan(0, dense=True, list_up_to=0)
    differences = estimate_differences(sketch.table, theirs.estimate.table)
    if theirs.count is not None:
        differences = max(differences, abs(theirs.count - sum(part.held for part in parts)))
    number = symbols_for(differences)
    dense, in_parts = number > MAX_SYMBOLS, sum(differing)
    if differing and in_parts * ID_SIZE <= number * SYMBOL_SIZE:
        return Plan(0, dense, in_parts)
    return Plan(0 if dense else number, dense, 0)


def decode_difference(
    keys: KeyView, key_range: KeyRange, received: Message
) -> Steps[Difference | None]:
    """Return the difference that the peer's symbols decode to, if they do."""
    sketch, theirs = (yield from keys.sums.sketch(key_range)), received.symbols
    if sketch is None or theirs is None:
        return None
    if received.estimate and least_differences(sketch.table, received.estimate.table) > len(theirs):
        return None  # a symbol decodes to one key at most
    for difference in decode(sketch.symbols.first(len(theirs)) - theirs):
        if difference is not None:
            return difference
        yield
    return None
