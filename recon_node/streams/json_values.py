"""JSON values, and the budget from which all work on them is paid.

Theory of operation. The writer of events decides how much work they cause: patches, checks by the
schema of a model, `unique`, merges. A clock would give another verdict on each machine, so steps
are counted instead, as a function of the events alone. Each event has an allowance that grows with
its size; one that takes more is rejected. Each stream has one as well; a stream that takes more is
not computed, and the caller gets an error.

A step is about 4 ns of one core, or one byte that is written out.

The content after each event is also a row of a table (`event_states` of the pipeline), and what is
written there stays. So each stream has another allowance, of bytes of content: a small event on a
large document writes all of it again. Time events do not take from it, because anybody can add
them to a stream. Their rows repeat the content only if it is not longer than `MAX_TIME_ROW`.

Values are those of DAG-CBOR. They may share parts and thus be far larger than their memory. All
functions work level by level, where possible in loops that run in C.

The weight of a value is what it takes where it is written out, in rows and answers: the bytes of
its JSON, with bytes and links as in DAG-JSON, and a comma. It is the sum of its parts' weights, so
that it can be kept up to date while a value changes; hence there is a comma after the last member,
too. In CBOR a value may take a tenth of that.

`json_diff` returns the JSON Patch (RFC 6902) that turns one value into another. Objects are
compared member by member. Equal items at both ends of two arrays stay as they are; those between
are compared one by one, and the rest is added or removed. The patch need not be the shortest one.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple, Self

import orjson

from recon_node.ipld import CID

EVENT_STEPS: Final = 20_000_000
EVENT_STEPS_PER_BYTE: Final = 100
"""What an event may take: this many steps, and more by its bytes."""
STREAM_STEPS: Final = 2_500_000_000
STREAM_STEPS_PER_BYTE: Final = 250
"""What a stream may take: this many steps, and more by the bytes of its events."""
ROW_BYTES: Final = 100_000_000
"""Bytes of content in the rows of a stream's signed events, and `STREAM_STEPS_PER_BYTE` more for
each byte of these events: to write a byte is a step."""
MAX_TIME_ROW: Final = 250_000
"""Bytes of content in the row of a time event: about what each of its bytes would pay for."""
MERGE_STEPS: Final = 500_000_000
"""What a proposal to merge a stream may take."""


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
        return cls("the event", EVENT_STEPS + EVENT_STEPS_PER_BYTE * size)

    @classmethod
    def of_stream(cls, size: int) -> Self:
        """What a stream may take whose events have this many bytes."""
        return cls("the stream", STREAM_STEPS + STREAM_STEPS_PER_BYTE * size)

    @classmethod
    def of_rows(cls, size: int) -> Self:
        """How many bytes the rows of a stream may have whose events have this many bytes."""
        steps = ROW_BYTES + STREAM_STEPS_PER_BYTE * size
        return cls("the content after all events of the stream", steps, "bytes")

    @classmethod
    def of_merge(cls) -> Self:
        """What a proposal to merge a stream may take."""
        return cls("a proposal to merge the stream", MERGE_STEPS)

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


MAX_WEIGHT: Final = 16_000_000
"""Approximate bytes of a document's JSON: js-ceramic's limit (its MAX_DOCUMENT_SIZE)."""
MAX_DEPTH: Final = 126
"""Levels of a document's JSON. ceramic-one can read no more, and patches could nest it deeper than
an event may be."""

CONTAINERS: Final = (dict, list)
VALUE_WEIGHT: Final = 3
"""Bytes of a text or a container without what is in it: quotes or brackets, and a comma."""
MEMBER_WEIGHT: Final = 3
"""Bytes of an object's member without its name: the quotes and the colon."""
_BYTES_WEIGHT: Final = len('{"/":{"bytes":""}},')
_LINK_WEIGHT: Final = len('{"/":"b"},')
"""Bytes of bytes and links without their base64 or base32."""

TEXT_PER_STEP: Final = 64
"""Characters of text that are weighed in a step."""
_JOINED: Final = 1_000_000
"""Characters of text that are weighed at once. More are weighed one by one: that takes longer, and
not the memory of all copies of a text."""

_ATOMS_AT_ONCE: Final = 100_000
"""Numbers, booleans and nulls that are written to see how long they are."""

NESTED: Final[dict[type, int]] = {dict: 1, list: 1, CID: 1, bytes: 2}
"""Levels that a value without members adds: links and bytes are objects in DAG-JSON."""
_NUMBERS: Final = frozenset({int, float})
_ATOMS: Final = frozenset({int, float, bool, type(None)})
_PLAIN: Final = _ATOMS | {str}


class JsonPatchError(ValueError):
    """An invalid, inapplicable or oversized patch. The message is user-facing."""


def weigh_json(value: Any) -> int:
    """Return the weight of a value.

    Raises:
        JsonPatchError: it is nested deeper than `MAX_DEPTH`.
    """
    weight = _weigh_plain(value) if type(value) is dict else None
    return measure(value, 2 * MAX_WEIGHT).weight if weight is None else weight


def _weigh_plain(value: dict[str, Any]) -> int | None:
    """Return the weight of an object of texts, numbers and the like, as most are; else None."""
    if not value or not _PLAIN.issuperset(map(type, value.values())):
        return None
    try:
        return len(orjson.dumps(value)) + 2  # two commas that only a weight counts
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, for example
        return None


class JsonSize(NamedTuple):
    """What a value adds to a document, without its name in an object."""

    weight: int
    depth: int
    steps: int
    """Of measuring it, but for its text: 1 for each value, and 2 more for each container."""


def measure(value: Any, max_steps: int, max_depth: int = MAX_DEPTH) -> JsonSize:
    """Measure a value.

    Raises:
        JsonPatchError: it is nested deeper than `max_depth`.
        BudgetError: this takes more than `max_steps`.
    """
    weight = depth = above = steps = text = 0
    level: list[Any] = [value]
    while True:
        kinds = set(map(type, level))
        dicts = [item for item in level if type(item) is dict] if dict in kinds else []
        lists = [item for item in level if type(item) is list] if list in kinds else []
        members = sum(map(len, dicts))
        steps += len(level) + 2 * (len(dicts) + len(lists))
        if steps + members + sum(map(len, lists)) > max_steps:
            raise BudgetError("measuring a value takes more work than its event pays for")
        weight += VALUE_WEIGHT * (len(dicts) + len(lists)) + MEMBER_WEIGHT * members
        if not kinds.isdisjoint(_ATOMS):
            weight += _weigh_atoms([item for item in level if type(item) in _ATOMS])
        if bytes in kinds or CID in kinds:
            weight += sum(_weigh_bytes(item) for item in level if isinstance(item, bytes))
        texts = list(chain.from_iterable(dicts))
        if str in kinds:
            texts += (own := [item for item in level if type(item) is str])
            weight += VALUE_WEIGHT * len(own)
        text += sum(map(len, texts))
        if steps + text // TEXT_PER_STEP > max_steps:
            raise BudgetError("measuring a value takes more work than its event pays for")
        weight += sum(map(weigh_text, texts if text > _JOINED else ["".join(texts)]))
        level = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]
        depth = max(depth, above + max(NESTED.get(kind, 0) for kind in kinds))
        check_depth(depth, max_depth)
        if not level:
            return JsonSize(weight, depth, steps)
        above += 1


def weigh_leaf(value: Any) -> int:
    """Return the weight of a value that is not a container."""
    if type(value) in _ATOMS:
        return 1 + len(orjson.dumps(value) if type(value) is float else str(value))
    return _weigh_bytes(value) if isinstance(value, bytes) else VALUE_WEIGHT + weigh_text(value)


def _weigh_bytes(value: bytes) -> int:
    if isinstance(value, CID):
        return _LINK_WEIGHT + (8 * len(value) + 4) // 5
    return _BYTES_WEIGHT + (8 * len(value) + 5) // 6


def _weigh_atoms(atoms: list[Any]) -> int:
    weight = 0
    for start in range(0, len(atoms), _ATOMS_AT_ONCE):
        batch = atoms[start : start + _ATOMS_AT_ONCE]
        try:
            weight += len(orjson.dumps(batch)) - 1
        except orjson.JSONEncodeError:  # an integer below -2^63
            weight += sum(map(weigh_leaf, batch))
    return weight


def weigh_text(text: str) -> int:
    r"""Return the bytes of a text in JSON, without the quotes: six for "\x01", in UTF-8 for "ä"."""
    try:
        return len(orjson.dumps(text)) - 2
    except orjson.JSONEncodeError:  # half of a surrogate pair: no event can have it
        return len(text.encode(errors="surrogatepass"))


def check_depth(depth: int, most: int = MAX_DEPTH) -> None:
    """Check the depth of a document, in levels.

    Raises:
        JsonPatchError: deeper than `most`.
    """
    if depth > most:
        raise JsonPatchError(f"the document would be nested deeper than {most} levels")


def check_weight(weight: int) -> None:
    """Check the weight of a document.

    Raises:
        JsonPatchError: heavier than `MAX_WEIGHT`.
    """
    if weight > MAX_WEIGHT:
        raise JsonPatchError(f"the document would be larger than {MAX_WEIGHT} bytes")


def is_equal(one: Any, other: Any, count: Callable[[int], None]) -> bool:
    """Whether two values are equal as JSON: numbers by value; true is not 1, a link is not bytes.

    `count` is called for each level with the number of values compared there, plus 1.
    """
    if one != other:
        return False
    ones, others = [one], [other]
    while ones:
        count(len(ones) + 1)
        kinds = list(map(type, ones))
        if not _same_kinds(kinds, list(map(type, others))):
            return False
        if dict not in kinds and list not in kinds:
            return True
        others = _level_below(ones, others)
        ones = _level_below(ones, ones)
    return True


def _level_below(values: list[Any], others: list[Any]) -> list[Any]:
    """The members of `others`, which equal `values`, in the order of the members of `values`."""
    return [
        member
        for value, other in zip(values, others, strict=True)
        if type(value) is dict or type(value) is list
        for member in (other if type(value) is list else map(other.__getitem__, value))
    ]


def _same_kinds(kinds: list[type], others: list[type]) -> bool:
    """Whether the types of equal values are the same, except among numbers."""
    return kinds == others or all(
        kind is other or {kind, other} == _NUMBERS
        for kind, other in zip(kinds, others, strict=True)
    )


STEPS_PER_WRITTEN_BYTE: Final = 16
"""Steps of a byte of an answer, which is in memory several times until it is sent."""
_COMPARISON: Final = 100
"""Steps of one comparison of two values."""
_COMPARED: Final = 25
"""Steps of a value that is measured and compared."""


def json_diff(before: Any, after: Any, budget: Budget) -> list[dict[str, Any]]:
    """Return the operations that turn `before` into `after`; none if they are equal as JSON.

    `apply_patch` with them gives `after`. Values are those of DAG-CBOR; neither is changed, and the
    operations share parts of `after`.

    Raises:
        BudgetError: they take too much work, or too many bytes: each repeats its path.
    """
    return list(_Difference(budget).changes("", before, after))


def json_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON: 1 and 1.0 are, 1 and true are not."""
    return is_equal(one, other, lambda _: None)


def pointer(path: str, token: str) -> str:
    """Return the JSON Pointer (RFC 6901) of a member of what `path` points to."""
    return f"{path}/{token.replace('~', '~0').replace('/', '~1')}"


class _Difference:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def changes(self, path: str, before: Any, after: Any) -> Iterator[dict[str, Any]]:
        self._budget.spend(_COMPARISON + len(path))
        if isinstance(before, dict) and isinstance(after, dict):
            yield from self._of_object(path, before, after)
        elif isinstance(before, list) and isinstance(after, list):
            yield from self._of_array(path, before, after)
        elif not self._are_equal(before, after):
            yield self._operation("replace", path, after)

    def _of_object(
        self, path: str, before: dict[str, Any], after: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        for name in before:
            if name not in after:
                yield self._operation("remove", pointer(path, name))
        for name, value in after.items():
            if name in before:
                yield from self.changes(pointer(path, name), before[name], value)
            else:
                yield self._operation("add", pointer(path, name), value)

    def _of_array(self, path: str, before: list[Any], after: list[Any]) -> Iterator[dict[str, Any]]:
        start, shorter = 0, min(len(before), len(after))
        while start < shorter and self._are_equal(before[start], after[start]):
            start += 1
        end = 0  # items that are equal, counted from the end
        while end < shorter - start and self._are_equal(before[-1 - end], after[-1 - end]):
            end += 1
        both = shorter - end
        for index in range(start, both):
            yield from self.changes(f"{path}/{index}", before[index], after[index])
        for index in reversed(range(both, len(before) - end)):
            yield self._operation("remove", f"{path}/{index}")
        for index in range(both, len(after) - end):
            yield self._operation("add", f"{path}/{index}", after[index])

    def _operation(self, name: str, path: str, *value: Any) -> dict[str, Any]:
        self._budget.spend(STEPS_PER_WRITTEN_BYTE * len(path))
        return {"op": name, "path": path, **dict(zip(("value",), value, strict=False))}

    def _are_equal(self, one: Any, other: Any) -> bool:
        return equal_within(self._budget, one, other)


def equal_within(budget: Budget, one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON.

    Raises:
        BudgetError: to compare them takes too much work.
    """
    kinds = {type(one), type(other)}
    if len(kinds) > 1 or kinds.isdisjoint(CONTAINERS):
        budget.spend(_COMPARISON)
        return one == other and (len(kinds) == 1 or kinds == _NUMBERS)
    size = measure(one, budget.left // _COMPARED)
    budget.spend(_COMPARED * (size.steps + size.weight // TEXT_PER_STEP))
    return json_equal(one, other)
