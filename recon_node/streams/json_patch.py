"""JSON Patch (RFC 6902) that shares what it does not change, and whose cost is bounded.

Theory of operation. A stream's content changes by small patches, and the content after every event
is needed. So a patch never changes its document: it copies the containers on the path to a change,
each once, and the result shares all others with the document before. The operation `copy` shares,
too: a document may hold the same value in many places. Hence callers must not change values.

Shared values cost no memory, but writing a document out costs time for each place: ten thousand
copies of the root into itself make a document of 2^10000 values. So the weight of the document is
tracked while it changes, by weighing what is added and removed. And nothing may be nested deeper
than `MAX_DEPTH` of `json_values`.

The time of a patch is linear in its size and in that of the document, except for a few operations
that take as long as a container: inserting at the front of an array, or changing a container after
a copy of it. So the steps are counted and paid from a budget; they depend on document and patch
alone.

Values are those of DAG-CBOR: JSON's, and bytes and links, which are leaves.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any, Final, NamedTuple

from orjson import JSONEncodeError, dumps

from recon_node.streams.json_values import (
    CONTAINERS,
    MAX_WEIGHT,
    MEMBER_WEIGHT,
    NESTED,
    TEXT_PER_STEP,
    VALUE_WEIGHT,
    Budget,
    JsonPatchError,
    JsonSize,
    check_depth,
    check_weight,
    is_equal,
    measure,
    weigh_leaf,
    weigh_text,
)

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("path", "from"),
    "copy": ("path", "from"),
    "test": ("path", "value"),
}
_MAX_INDEX_DIGITS: Final = 9
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_ABSENT: Final = object()
_MAX_SHOWN: Final = 60
"""Characters of a value that an error quotes."""

# Steps of the budget, as measured. `_Run` says what is counted.
_UNIT: Final = 25
"""What takes about 0.1 µs, such as weighing a value."""
_OPERATION: Final = 15 * _UNIT
_TOKEN: Final = 3 * _UNIT
_MEASURED: Final = 15 * _UNIT
_COMPARED: Final = 5 * _UNIT
"""An operation, a token of a path, a container that is measured, and a value that is compared."""
_COPIED_PER_UNIT: Final = 8
_SHIFTED_PER_UNIT: Final = 256
"""Members that are copied, or shifted, in a unit."""


def parse_pointer(text: object) -> tuple[str, ...]:
    """Return the reference tokens of a JSON Pointer (RFC 6901); none for the whole document.

    Raises:
        JsonPatchError: not a JSON Pointer.
    """
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise JsonPatchError(f"{_show(text)} is not a JSON Pointer")
    tokens = text.split("/")[1:]
    if "~" in text:
        if text.count("~") != text.count("~0") + text.count("~1"):
            raise JsonPatchError(f"{_show(text)} is not a JSON Pointer: '~' must be '~0' or '~1'")
        tokens = [token.replace("~1", "/").replace("~0", "~") for token in tokens]
    return tuple(tokens)


class Patched(NamedTuple):
    """A document after a patch.

    Attributes:
        document: shares parts of the one before.
        weight: of it.
        touched: the members of its root that the patch may have changed; None: any of them.
    """

    document: Any
    weight: int
    touched: Set[str] | None


def apply_patch(document: Any, patch: object, weight: int, budget: Budget) -> Patched:
    """Return the document after a patch.

    `document` is not changed; the result shares parts of it. `weight` is that of the document.

    Raises:
        JsonPatchError: an invalid patch, an operation that cannot be applied (the message says
            which), a failed `test`, or a result beyond the limits.
        BudgetError: it takes too much work.
    """
    if not isinstance(patch, list):
        raise JsonPatchError(f"the patch is not an array of operations, but {_show(patch)}")
    if (simple := set_leaves(document, patch, weight, budget.left)) is not None:
        after, weight, steps = simple
        budget.spend(steps)
        return Patched(after, weight, {operation["path"][1:] for operation in patch})
    run = _Run(document, weight, budget)
    for number, operation in enumerate(patch):
        try:
            run.apply(operation)
        except JsonPatchError as error:
            raise JsonPatchError(f"operation {number} of the patch: {error}") from None
    check_weight(run.weight)
    return Patched(run.document, run.weight, None if run.is_new else run.touched)


def set_leaves(
    document: Any, patch: Any, weight: int, most_steps: int
) -> tuple[dict[str, Any], int, int] | None:
    """Apply a patch that sets members of the document's root to texts, numbers and the like, as
    most patches do. This takes a third of the time of `_Run`, and counts the same steps.

    Returns:
        The document, its weight and the steps that were taken. None if the patch does anything
        else, takes more steps, or anything is wrong with it or with the result.
    """
    if type(document) is not dict or type(patch) is not list or not patch:
        return None
    after = None
    steps = _UNIT * (1 + len(document) // _COPIED_PER_UNIT)
    for operation in patch:
        if type(operation) is not dict:
            return None
        get = operation.get
        op, path, value = get("op"), get("path"), get("value", _ABSENT)
        if type(path) is not str or path[:1] != "/" or type(value) not in _LEAVES:
            return None
        name = path[1:]
        old = (after or document).get(name, _ABSENT)
        is_allowed = op == "add" or (op == "replace" and old is not _ABSENT)
        if not is_allowed or "/" in name or "~" in name:
            return None
        try:
            if type(old) in _LEAVES:
                weight += len(dumps(value)) - len(dumps(old))
            elif old is _ABSENT:
                weight += len(dumps(value)) + 1 + MEMBER_WEIGHT + weigh_text(name)
            else:
                return None
        except JSONEncodeError:  # an integer beyond 64 bits, for example
            return None
        steps += _OPERATION + _TOKEN
        if type(value) is str:
            steps += _UNIT * (len(value) // TEXT_PER_STEP)
        if type(old) is str:
            steps += _UNIT * (len(old) // TEXT_PER_STEP)
        if steps > most_steps:
            return None
        after = after or document.copy()
        after[name] = value
    return (after, weight, steps) if after is not None and weight <= MAX_WEIGHT else None


class _Run:
    """One patch while it is applied to a document.

    A container that the patch made may be changed in place while it is in one place only: it is in
    `_own`. Once copied it is in two places and leaves `_own`; so do its members when it is copied
    on write, since until then they are only reachable through it.

    Steps are counted: for each operation and token of a path, each value that is weighed (once
    for all copies of a container) or compared, and for members that are copied or shifted.
    """

    __slots__ = (
        "_budget",
        "_own",
        "_shared",
        "_sizes",
        "_spend",
        "document",
        "is_new",
        "touched",
        "weight",
    )

    def __init__(self, document: Any, weight: int, budget: Budget) -> None:
        self.document = document
        self.weight = weight
        self.is_new = False
        self.touched: set[str] = set()
        self._budget = budget
        self._spend = budget.spend
        # By id; holding the object keeps its id from being used again.
        self._own: dict[int, Any] = {}
        self._shared: dict[int, Any] = {}  # left `_own`, though some members may still be in it
        self._sizes: dict[int, tuple[Any, JsonSize]] = {}  # of containers that were copied

    def apply(self, operation: object) -> None:
        self._spend(_OPERATION)
        if not isinstance(operation, dict):
            raise JsonPatchError(f"an object was expected, not {_show(operation)}")
        name = operation.get("op")
        fields = _FIELDS.get(name) if isinstance(name, str) else None
        if fields is None:
            raise JsonPatchError(f"{_show(name)} is not an operation of JSON Patch")
        for field in fields:
            if field not in operation:
                raise JsonPatchError(f"'{name}' needs {field!r}")
        path = self._parse(operation["path"])
        if name == "replace":
            self._replace(path, operation["value"])
        elif name == "add":
            value = operation["value"]
            self._add(path, value, self._size(value))
        elif name == "remove":
            self._remove(path)
        elif name == "test":
            value, count = operation["value"], lambda number: self._spend(_COMPARED * number)
            if not is_equal(self._get(path), value, count):
                raise JsonPatchError(f"the test of {_show(operation['path'])} failed")
        elif name == "copy":
            self._copy(self._parse(operation["from"]), path)
        else:
            self._move(self._parse(operation["from"]), path)

    def _parse(self, pointer: object) -> tuple[str, ...]:
        path = parse_pointer(pointer)
        self._spend(_TOKEN * len(path))
        return path

    def _copy(self, source: tuple[str, ...], path: tuple[str, ...]) -> None:
        value = self._get(source)
        self._share(value)
        size = self._size(value)
        if isinstance(value, CONTAINERS):
            self._sizes[id(value)] = value, size
        self._add(path, value, size)

    def _move(self, source: tuple[str, ...], path: tuple[str, ...]) -> None:
        value = self._get(source)
        if source == path != ():
            return
        if path[: len(source)] == source:
            raise JsonPatchError("a value cannot be moved into itself")
        self._add(path, value, self._remove(source))

    def _add(self, path: tuple[str, ...], value: Any, size: JsonSize) -> None:
        check_depth(len(path) + size.depth)
        if not path:
            self._set_root(value, size)
            return
        parent, last = self._open(path), path[-1]
        if isinstance(parent, dict):
            if last in parent:
                self.weight += size.weight - self._weight(parent[last])
            else:
                self.weight += size.weight + MEMBER_WEIGHT + weigh_text(last)
            parent[last] = value
            return
        index = len(parent) if last == "-" else _index(last, len(parent) + 1)
        self._spend(_UNIT * ((len(parent) - index) // _SHIFTED_PER_UNIT))
        parent.insert(index, value)
        self.weight += size.weight

    def _replace(self, path: tuple[str, ...], value: Any) -> None:
        size = self._size(value)
        check_depth(len(path) + size.depth)
        if not path:
            self._set_root(value, size)
            return
        parent, last = self._open(path), path[-1]
        self.weight += size.weight - self._weight(_member(parent, last))
        parent[last if isinstance(parent, dict) else int(last)] = value

    def _set_root(self, value: Any, size: JsonSize) -> None:
        self.document, self.weight, self.is_new = value, size.weight, True

    def _remove(self, path: tuple[str, ...]) -> JsonSize:
        if not path:
            raise JsonPatchError("the whole document can be replaced, not removed")
        parent, last = self._open(path), path[-1]
        size = self._size(_member(parent, last))
        self.weight -= size.weight
        if isinstance(parent, dict):
            self.weight -= MEMBER_WEIGHT + weigh_text(last)
            del parent[last]
        else:
            self._spend(_UNIT * ((len(parent) - int(last)) // _SHIFTED_PER_UNIT))
            del parent[int(last)]
        return size

    def _get(self, path: tuple[str, ...]) -> Any:
        value = self.document
        for token in path:
            value = _member(value, token)
        return value

    def _open(self, path: tuple[str, ...]) -> Any:
        """The container that holds the end of `path`; it and those above it may be changed."""
        self.touched.add(path[0])
        self.document = container = self._mine(self.document)
        for token in path[:-1]:
            member = self._mine(_member(container, token))
            container[token if isinstance(container, dict) else int(token)] = member
            container = member
        if not isinstance(container, CONTAINERS):
            raise JsonPatchError(f"{_show(container)} has no members")
        return container

    def _mine(self, container: Any) -> Any:
        if not isinstance(container, CONTAINERS) or id(container) in self._own:
            return container
        self._spend(_UNIT * (1 + len(container) // _COPIED_PER_UNIT))
        if id(container) in self._shared:
            self._spend(_UNIT * len(container))
            for member in _members(container):
                self._share(member)
        own = container.copy()
        self._own[id(own)] = own
        return own

    def _share(self, value: Any) -> None:
        """Note that the value is in more than one place from now on."""
        if self._own.pop(id(value), None) is not None:
            self._shared[id(value)] = value

    def _weight(self, value: Any) -> int:
        if isinstance(value, str):
            if len(value) >= TEXT_PER_STEP:
                self._spend(_UNIT * (len(value) // TEXT_PER_STEP))
            return VALUE_WEIGHT + weigh_text(value)
        return self._size(value).weight if isinstance(value, CONTAINERS) else weigh_leaf(value)

    def _size(self, value: Any) -> JsonSize:
        if not isinstance(value, CONTAINERS):
            return JsonSize(self._weight(value), NESTED.get(type(value), 0), 0)
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        size = measure(value, self._budget.left // _UNIT)
        self._spend(_MEASURED + _UNIT * (size.steps + size.weight // TEXT_PER_STEP))
        return size


def _members(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _member(container: Any, token: str) -> Any:
    if isinstance(container, dict):
        if token not in container:
            raise JsonPatchError(f"there is no member {_show(token)}")
        return container[token]
    if isinstance(container, list):
        return container[_index(token, len(container))]
    raise JsonPatchError(f"{_show(container)} has no member {_show(token)}")


def _index(token: str, length: int) -> int:
    is_number = token.isascii() and token.isdigit() and len(token) <= _MAX_INDEX_DIGITS
    if not is_number or (token[0] == "0" and token != "0") or int(token) >= length:
        raise JsonPatchError(f"{_show(token)} is not an index below {length}")
    return int(token)


def _show(value: object) -> str:
    """A short text for a value in an error."""
    if isinstance(value, CONTAINERS):
        return "an object" if isinstance(value, dict) else "an array"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
