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


def check_content(
    header: InitHeader, model: Any, before: Any, after: Any, *, is_init: bool
) -> Errors:
    """What is wrong with a stream's content becoming `after`, for people; nothing when all is well.

    Args:
        header: of the stream's init event.
        model: the content of the stream of the document's model; None when it is not known, and
            for models. A document of an unknown model is held to the general rules only.
        before: the content that the event changes; None for an init event, or when there is none.
        after: the content that the event leads to; None when there is none.
        is_init: whether the event is the init event.
    """
    if not (isinstance(after, dict) or (is_init and after is None)):
        return ["the content is not a JSON object"]
    if header.stream_type is StreamType.MODEL:
        return _check_model(before, after)
    definition = model if isinstance(model, dict) else None
    if definition is None:
        return []
    if definition.get("interface") is True:
        return ["there can be no documents of an interface: use a model that implements it"]
    return [
        *_check_account_relation(definition, header, after, is_init=is_init),
        *_check_locked_fields(definition, before, after),
        *_check_relations(definition, after),
    ]


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


def _check_account_relation(
    definition: Mapping[str, Any], header: InitHeader, after: Any, *, is_init: bool
) -> Errors:
    kind, fields = _account_relation(definition)
    errors: Errors = []
    if is_init and after is not None and kind in ("single", "set"):
        errors.append(f"a document with the account relation {kind!r} starts without content")
    if kind == "single" and header.unique:
        errors.append("a document with the account relation 'single' has no 'unique'")
    elif kind in ("list", "set") and not header.unique:
        errors.append(f"a document with the account relation {kind!r} needs 'unique'")
    elif kind == "set" and after is not None:
        found = "|".join(_as_text(after.get(field)) for field in fields).encode()
        if found != header.unique:
            errors.append(f"the fields {', '.join(fields)} do not say what 'unique' does")
    return errors


def _check_locked_fields(definition: Mapping[str, Any], before: Any, after: Any) -> Errors:
    if before is None:
        return []
    kind, unique = _account_relation(definition)
    locked = dict.fromkeys((*(unique if kind == "set" else ()), *_immutable_fields(definition)))
    return [
        f"the field {name!r} is immutable"
        for name in locked
        if not _same(before.get(name, _ABSENT), after.get(name, _ABSENT))
    ]


def _check_relations(definition: Mapping[str, Any], after: Any) -> Errors:
    relations = definition.get("relations")
    if after is None or not isinstance(relations, dict):
        return []
    return [
        f"the field {name!r} should hold the StreamID of a document"
        for name, relation in relations.items()
        if isinstance(relation, dict)
        and relation.get("type") == "document"
        and after.get(name) is not None
        and not _is_document_id(after[name])
    ]


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
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
