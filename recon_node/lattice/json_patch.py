"""JSON Patch (RFC 6902) that shares what it does not change, and whose cost is bounded.

Theory of operation. A stream's content changes by small patches, and the content after every event
is wanted. So a patch never changes its document: it makes new the containers on the way to a
change, each of them once, and the result shares all others with the document before. `copy` shares,
too: a document may hold the same value in many places. Hence values must not be changed by whoever
gets them.

What is shared costs no memory, but whoever writes a document out pays for each place: ten thousand
copies of the root into itself are a document of 2^10000 values. So every value that comes into a
document is weighed, and so is the document when it may have grown too heavy; the work of a patch is
counted; and nothing may be nested deeper than `MAX_DEPTH`, for recursion is what JSON encoders do.

Values are those of DAG-CBOR: besides JSON's, there are bytes and links, which are just leaves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from recon_node.ipld.dag_cbor import MAX_DEPTH

MAX_WEIGHT: Final = 16_000_000
"""Of a document: js-ceramic's bound of a document's bytes (its MAX_DOCUMENT_SIZE)."""

MAX_WORK: Final = 2_000_000
"""Of one patch: values weighed and compared, and members of containers made new. An event has at
most a million bytes."""

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_ESCAPE: Final = re.compile(r"~[01]")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("path", "from"),
    "copy": ("path", "from"),
    "test": ("path", "value"),
}
_CONTAINERS: Final = (dict, list)
_TEXTS: Final = (str, bytes)


class JsonPatchError(ValueError):
    """A patch that is none, or that does not fit its document. The message is for people."""


def parse_pointer(text: object) -> tuple[str, ...]:
    """The reference tokens of a JSON Pointer (RFC 6901); none for the whole document.

    Raises:
        JsonPatchError: not a JSON Pointer.
    """
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise JsonPatchError(f"{_show(text)} is not a JSON Pointer")
    tokens = text.split("/")[1:]
    if "~" in text:
        if _BAD_ESCAPE.search(text):
            raise JsonPatchError(f"{_show(text)} is not a JSON Pointer: '~' must be '~0' or '~1'")
        tokens = [_ESCAPE.sub(lambda found: "~/"[int(found[0][1])], token) for token in tokens]
    return tuple(tokens)


def weigh(value: Any, limit: int = MAX_WEIGHT) -> tuple[int, int]:
    """The weight of a value, about the bytes of its JSON, and how deep it is nested.

    Raises:
        JsonPatchError: it is heavier than `limit`, or nested deeper than `MAX_DEPTH`.
    """
    weight, depth = 0, 0
    level = [value]
    while level:
        below: list[Any] = []
        for each in level:
            weight += 2
            if isinstance(each, _TEXTS):
                weight += len(each)
            elif isinstance(each, dict):
                weight += sum(map(len, each)) + 3 * len(each)
                below += each.values()
            elif isinstance(each, list):
                below += each
            if weight + len(below) > limit:
                raise JsonPatchError(f"it takes a document, or the work on it, beyond {limit}")
        depth += bool(below)
        if depth > MAX_DEPTH:
            raise JsonPatchError(f"it nests the document deeper than {MAX_DEPTH} levels")
        level = below
    return weight, depth


def apply_patch(document: Any, patch: object, weight: int) -> tuple[Any, int]:
    """The document after a patch, and a weight that it does not exceed.

    Args:
        document: stays as it is; the result shares parts of it.
        patch: an array of operations, as decoded from an event.
        weight: what the document weighs at most.

    Raises:
        JsonPatchError: not a patch, an operation that does not fit the document (the message says
            which one), a failed `test`, or a result or work beyond the limits.
    """
    if not isinstance(patch, list):
        raise JsonPatchError(f"the patch is not an array of operations, but {_show(patch)}")
    run = _Run(document, weight)
    for number, operation in enumerate(patch):
        try:
            run.apply(operation)
        except JsonPatchError as error:
            raise JsonPatchError(f"operation {number} of the patch: {error}") from None
    if run.weight > MAX_WEIGHT:
        run.weight, _ = weigh(run.document)
    return run.document, run.weight


class _Run:
    """One patch on its way through a document."""

    __slots__ = ("_own", "_work", "document", "weight")

    def __init__(self, document: Any, weight: int) -> None:
        self.document = document
        self.weight = weight
        self._work = 0
        # Containers made by this patch, which it may change in place: by id, and kept alive by it.
        self._own: dict[int, Any] = {}

    def apply(self, operation: object) -> None:
        if not isinstance(operation, dict):
            raise JsonPatchError(f"an object was expected, not {_show(operation)}")
        name = operation.get("op")
        fields = _FIELDS.get(name) if isinstance(name, str) else None
        if fields is None:
            raise JsonPatchError(f"{_show(name)} is no operation of JSON Patch")
        for field in fields:
            if field not in operation:
                raise JsonPatchError(f"'{name}' needs {field!r}")
        path = parse_pointer(operation["path"])
        if name == "add":
            self._add(path, operation["value"])
        elif name == "remove":
            self._remove(path)
        elif name == "replace":
            self._replace(path, operation["value"])
        elif name == "test":
            if not self._equal(self._get(path), operation["value"]):
                raise JsonPatchError(f"the test of {_show(operation['path'])} failed")
        else:
            self._transfer(str(name), parse_pointer(operation["from"]), path)

    def _transfer(self, name: str, source: tuple[str, ...], path: tuple[str, ...]) -> None:
        value = self._get(source)
        if name == "copy":
            self._own.clear()  # parts of it are in two places from now on
        elif source == path:
            return
        elif path[: len(source)] == source:
            raise JsonPatchError("a value cannot be moved into itself")
        else:
            self._remove(source)
        self._add(path, value)

    def _add(self, path: tuple[str, ...], value: Any) -> None:
        self._weigh(path, value)
        if not path:
            self.document = value
            return
        parent, last = self._open(path), path[-1]
        if isinstance(parent, dict):
            parent[last] = value
        else:
            parent.insert(len(parent) if last == "-" else _index(last, len(parent) + 1), value)

    def _replace(self, path: tuple[str, ...], value: Any) -> None:
        self._weigh(path, value)
        if not path:
            self.document = value
            return
        parent, last = self._open(path), path[-1]
        _member(parent, last)
        parent[last if isinstance(parent, dict) else int(last)] = value

    def _remove(self, path: tuple[str, ...]) -> None:
        if not path:
            self.document = None
            return
        parent, last = self._open(path), path[-1]
        _member(parent, last)
        del parent[last if isinstance(parent, dict) else int(last)]

    def _get(self, path: tuple[str, ...]) -> Any:
        value = self.document
        for token in path:
            value = _member(value, token)
        return value

    def _open(self, path: tuple[str, ...]) -> Any:
        """The container that holds the end of `path`, with all above it, ours to change."""
        self.document = container = self._mine(self.document)
        for token in path[:-1]:
            member = self._mine(_member(container, token))
            container[token if isinstance(container, dict) else int(token)] = member
            container = member
        if not isinstance(container, _CONTAINERS):
            raise JsonPatchError(f"{_show(container)} has no members")
        return container

    def _mine(self, container: Any) -> Any:
        if not isinstance(container, _CONTAINERS) or id(container) in self._own:
            return container
        self._spend(len(container))
        own = container.copy()
        self._own[id(own)] = own
        return own

    def _weigh(self, path: tuple[str, ...], value: Any) -> None:
        weight, depth = weigh(value, MAX_WORK - self._work)
        if len(path) + depth > MAX_DEPTH:
            raise JsonPatchError(f"it nests the document deeper than {MAX_DEPTH} levels")
        self._spend(weight)
        self.weight += weight + len(path[-1]) + 5 if path else weight

    def _equal(self, one: Any, other: Any) -> bool:
        """Equal as JSON: numbers by value, and true is not 1."""
        pairs = [(one, other)]
        while pairs:
            one, other = pairs.pop()
            self._spend(1)
            if isinstance(one, dict) and isinstance(other, dict):
                if one.keys() != other.keys():
                    return False
                self._spend(len(one))
                pairs += [(one[key], other[key]) for key in one]
            elif isinstance(one, list) and isinstance(other, list):
                if len(one) != len(other):
                    return False
                self._spend(len(one))
                pairs += zip(one, other, strict=True)
            elif isinstance(one, bool) != isinstance(other, bool) or one != other:
                return False
        return True

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise JsonPatchError(f"the patch takes more work than {MAX_WORK} steps")


def _member(container: Any, token: str) -> Any:
    if isinstance(container, dict):
        if token not in container:
            raise JsonPatchError(f"there is no member {_show(token)}")
        return container[token]
    if isinstance(container, list):
        return container[_index(token, len(container))]
    raise JsonPatchError(f"{_show(container)} has no member {_show(token)}")


def _index(token: str, length: int) -> int:
    if not _INDEX.fullmatch(token) or int(token) >= length:
        raise JsonPatchError(f"{_show(token)} is no index of an array with room for {length}")
    return int(token)


def _show(value: object) -> str:
    """A value for a message, short whatever it holds."""
    if isinstance(value, _CONTAINERS):
        return "an object" if isinstance(value, dict) else "an array"
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
