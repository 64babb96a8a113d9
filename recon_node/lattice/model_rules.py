"""What a change of a stream's content may do, by the kind of stream and by its model.

The rules are those that ceramic-one's pipeline holds events to (rust-ceramic,
`pipeline/src/aggregator/validation`), but for two: whether a document conforms to its model's JSON
Schema, and whether a new schema of a model allows what the old one did, is not checked here.

- A **model** of version 1.0 never changes. Of version 2.0, name, description, `implements` and
  schema may change; an interface may not at all.
- A **document** belongs to its controller by the model's account relation. Where there is one for
  an account ("single") or for an account and some fields ("set"), its init event is unsigned and
  has no content, and `unique` is empty or made of these fields. Such fields, and the model's
  `immutableFields`, keep what the document's first content says.
- A field that relates a document to another holds the StreamID of a document.

A definition of a model comes from the network like everything: where it is not what it should be,
its rules are as if it had left that out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recon_node.ceramic import InitHeader, StreamId, StreamIdError, StreamType

Errors = list[str]

_FIXED_IN_MODELS: Final = (
    "version",
    "interface",
    "immutableFields",
    "accountRelation",
    "relations",
    "views",
)
_RELATIONS: Final = ("list", "single", "set", "none")
_ABSENT: Final = object()


class ContentRules:
    """The rules for one stream's content, read once from its header and its model.

    Args:
        header: of the stream's init event.
        model: the content of the stream of the document's model; None when it is not known, and
            for models. A document of an unknown model is held to the general rules only.
    """

    __slots__ = ("_document", "_is_model")

    def __init__(self, header: InitHeader, model: Any) -> None:
        self._is_model = header.stream_type is StreamType.MODEL
        is_known = isinstance(model, dict) and not self._is_model
        self._document = _DocumentRules(header, model) if is_known else None

    def check(self, before: Any, after: Any, *, is_init: bool) -> Errors:
        """What is wrong with the content becoming `after`, for people; nothing when all is well.

        Args:
            before: the content that the event changes; None for an init event, or when there is
                none.
            after: the content that the event leads to; None when there is none.
            is_init: whether the event is the init event.
        """
        if not (isinstance(after, dict) or (is_init and after is None)):
            return ["the content is not a JSON object"]
        if self._is_model:
            return _check_model(before, after)
        return [] if self._document is None else self._document.check(before, after, is_init)


def _check_model(before: Any, after: Any) -> Errors:
    if after is None:
        return ["a model needs a definition"]
    version = after.get("version")
    if version not in ("1.0", "2.0"):
        return ["the model's version is neither '1.0' nor '2.0'"]
    if not isinstance(after.get("schema"), dict):
        return ["the model has no schema"]
    kind, fields = _account_relation(after)
    if kind is None:
        return ["the model's account relation is none of " + ", ".join(_RELATIONS)]
    if kind == "set" and not fields:
        return ["an account relation of the type 'set' needs at least one field"]
    if before is None or before == after:
        return []
    if version == "1.0":
        return ["a model of version 1.0 cannot be changed"]
    if before.get("interface") is True:
        return ["an interface cannot be changed"]
    return [
        f"a model's {name!r} cannot be changed"
        for name in _FIXED_IN_MODELS
        if before.get(name) != after.get(name)
    ]


class _DocumentRules:
    """What the definition of a model asks of a document."""

    __slots__ = (
        "_is_interface",
        "_kind",
        "_links",
        "_locked",
        "_named",
        "_unique",
        "_unique_error",
    )

    def __init__(self, header: InitHeader, definition: Mapping[str, Any]) -> None:
        self._kind, fields = _account_relation(definition)
        self._named = fields if self._kind == "set" else ()
        self._unique = header.unique
        self._unique_error = _unique_error(self._kind, header.unique)
        self._locked = tuple(dict.fromkeys((*self._named, *_immutable_fields(definition))))
        self._links = _document_relations(definition)
        self._is_interface = definition.get("interface") is True

    def check(self, before: Any, after: Any, is_init: bool) -> Errors:
        if self._is_interface:
            return ["there can be no documents of an interface: use a model that implements it"]
        errors: Errors = []
        if is_init and after is not None and self._kind in ("single", "set"):
            kind = self._kind
            errors.append(f"a document with the account relation {kind!r} starts without content")
        if self._unique_error is not None:
            errors.append(self._unique_error)
        elif self._kind == "set" and after is not None and self._said_by(after) != self._unique:
            errors.append(f"the fields {', '.join(self._named)} do not say what 'unique' does")
        if self._locked and before is not None:
            errors += self._check_locked(before, after)
        if self._links and after is not None:
            errors += self._check_links(after)
        return errors

    def _said_by(self, content: Mapping[str, Any]) -> bytes:
        """`unique` as the fields that it is made of have it."""
        return "|".join(_as_text(content.get(name)) for name in self._named).encode()

    def _check_locked(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Errors:
        return [
            f"the field {name!r} is immutable"
            for name in self._locked
            if not _same(before.get(name, _ABSENT), after.get(name, _ABSENT))
        ]

    def _check_links(self, after: Mapping[str, Any]) -> Errors:
        return [
            f"the field {name!r} should hold the StreamID of a document"
            for name in self._links
            if after.get(name) is not None and not _is_document_id(after[name])
        ]


def _unique_error(kind: str | None, unique: bytes | None) -> str | None:
    if kind == "single" and unique:
        return "a document with the account relation 'single' has no 'unique'"
    if kind in ("list", "set") and not unique:
        return f"a document with the account relation {kind!r} needs 'unique'"
    return None


def _document_relations(definition: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that relate a document to another one."""
    relations = definition.get("relations")
    if not isinstance(relations, dict):
        return ()
    return tuple(
        name
        for name, relation in relations.items()
        if isinstance(relation, dict) and relation.get("type") == "document"
    )


def _account_relation(definition: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    relation = definition.get("accountRelation")
    if not isinstance(relation, dict) or relation.get("type") not in _RELATIONS:
        return None, ()
    return relation["type"], _texts(relation.get("fields"))


def _immutable_fields(definition: Mapping[str, Any]) -> tuple[str, ...]:
    return _texts(definition.get("immutableFields"))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()


def _is_document_id(value: Any) -> bool:
    try:
        return isinstance(value, str) and (StreamId.parse(value).type == StreamType.MODEL_INSTANCE)
    except StreamIdError:
        return False


def _as_text(value: Any) -> str:
    """A value as the SDK writes it into `unique`: JavaScript's `String(value)`, "" for null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int | float) else ""


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON; Python holds true for 1."""
    return one is other or (bool(one == other) and isinstance(one, bool) == isinstance(other, bool))
