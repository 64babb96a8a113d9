"""What a change of a stream's content may do, by the kind of stream and by its model.

The rules are those of ceramic-one's pipeline (rust-ceramic, `pipeline/src/aggregator/validation`);
docs/api.md lists the differences.

- A **model** has a schema without additional properties. In version 1.0 it never changes. In
  version 2.0, name, description, `implements` and schema may change, but not those of an interface.
- A **document** conforms to the JSON Schema of its model (`document_schema`). It belongs to its
  controller by the model's account relation. If an account can have one document ("single") or one
  for some fields ("set"), its init event is unsigned and without content, and `unique` is empty or
  made of these fields. Such fields, and the model's `immutableFields`, keep the values of the
  document's first content.
- A field that relates a document to another holds the StreamID of a document.

No document conforms to a model whose definition cannot be read, or whose schema cannot be used. If
the definition breaks another rule, only its model is rejected.

A version of a model is an event of the model's stream. A document follows the one that its header
names as `modelVersion`, until one of its data events names another; by default, the model's init
event. The definition after an event never changes, so later events of the model's stream do not
affect existing documents.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Set
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

from recon_node.ceramic import Event, InitHeader, StreamId, StreamIdError, StreamType
from recon_node.ipld import CID, IpldError
from recon_node.ipld.dag_json import number_text
from recon_node.streams.document_schema import DocumentSchema, compiled, is_satisfiable
from recon_node.streams.json_values import Budget, equal_within
from recon_node.streams.schema_normal_form import SchemaError

T = TypeVar("T")
Errors = list[str]
Definitions = Mapping[CID, Any]
"""A model's definitions, by version: after its init event, and after the accepted events that
documents name as `modelVersion`."""

MAX_VERSIONS: Final = 100
"""Versions of its model that a document can name."""
_METADATA: Final = ("shouldIndex", "modelVersion")
_FIXED_IN_MODELS: Final = (
    "version",
    "interface",
    "immutableFields",
    "accountRelation",
    "relations",
    "views",
)
_RELATIONS: Final = ("list", "single", "set", "none")
_FORMS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "relations": {"account": (), "document": ("model",)},
    "views": {
        "documentAccount": (),
        "documentVersion": (),
        "relationDocument": ("model", "property"),
        "relationFrom": ("model", "property"),
        "relationCountFrom": ("model", "property"),
        "relationSetFrom": ("model", "property"),
    },
}
"""The types of a model's relations and views, and what they name: a model, and a property of it."""
_TO_ANY_MODEL: Final = ("document", "relationDocument")
"""Types that need not name a model, since version 2.0."""
_SINCE_2: Final = ("relationSetFrom",)
_TYPES: Final = 6
"""Types of streams that ceramic-one knows, from 0."""
_ABSENT: Final = object()
_STEPS_PER_FIELD: Final = 1_000
"""Steps to write a number as text, or to read a StreamID."""
_BYTES: Final = 8
"""Bytes that are joined, or compared, in one step."""
_MAX_REMEMBERED: Final = 32
"""Definitions, for `once`."""


class ContentChange(NamedTuple):
    """A change of content.

    Attributes:
        before: the content before the event; None if there is none.
        after: the content after it; None if there is none.
        weight: of `after`, at most; see `recon_node.streams.json_values`.
        touched: the only members that may differ from those of a content that conformed; None: all.
        is_init: whether the event is the init event.
    """

    before: Any
    after: Any
    weight: int
    touched: Set[str] | None = None
    is_init: bool = False


class ContentRules:
    """The rules for one stream's content, read once from its header and its model.

    Args:
        header: of the stream's init event.
        definition: of the document's model, in the version that the document names. None for
            models, and if the document's model is not here: then there are no rules.

    Attributes:
        schema_alone: the model's schema, if documents must conform to that and nothing else is
            asked of a change; else None.
    """

    __slots__ = ("_document", "_form_error", "_is_model", "schema_alone")

    def __init__(self, header: InitHeader, definition: Any) -> None:
        self._is_model = header.stream_type is StreamType.MODEL
        self._form_error = self._document = self.schema_alone = None
        if definition is None or self._is_model:
            return
        self._form_error = _form_error_of_known(definition)
        if self._form_error is None:
            self._document = _DocumentRules(header, definition)
            self.schema_alone = self._document.schema_alone

    def check(self, change: ContentChange, budget: Budget) -> Errors:
        """Return what is wrong with a change of content, in plain English; empty if nothing is.

        Raises:
            BudgetError: to check it takes too much work.
        """
        if self._is_model:
            budget.spend(change.weight)
            return _check_model(change.before, change.after, budget)
        if self._form_error is not None:
            return [f"the document's model cannot be used: {self._form_error}"]
        return [] if self._document is None else self._document.check(change, budget)


def _check_model(before: Any, after: Any, budget: Budget) -> Errors:
    error = _form_error(after) or _definition_error(after)
    return _check_change(before, after, budget) if error is None else [error]


def once(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a function that remembers what it says of a definition: documents share theirs."""
    # By id; holding the object keeps its id from being used again.
    known: dict[int, tuple[Any, T]] = {}

    def remembered(definition: Any) -> T:
        if (found := known.get(id(definition))) is None:
            if len(known) >= _MAX_REMEMBERED:
                known.clear()  # other threads' as well
            known[id(definition)] = found = definition, function(definition)
        return found[1]

    return remembered


def _form_error(definition: Any) -> str | None:
    """What is wrong with the form of a model's definition, without which nobody can read it."""
    if not isinstance(definition, dict):
        return "a model needs a definition, which is a JSON object"
    version = definition.get("version")
    if version not in ("1.0", "2.0"):
        return "the model's version is neither '1.0' nor '2.0'"
    if not isinstance(definition.get("name"), str):
        return "the model has no name"
    if not isinstance(definition.get("schema"), dict):
        return "the model has no schema"
    kind, fields = account_relation(definition)
    if kind is None or (version == "1.0" and kind not in ("list", "single")):
        return "the type of the model's account relation is not " + " or ".join(_RELATIONS)
    if kind == "set" and not fields:
        return "an account relation of the type 'set' needs a list of at least one field's name"
    for part in _FORMS:
        if (error := _entry_error(definition, part)) is not None:
            return error
    if version == "1.0":
        return None
    if not isinstance(definition.get("interface"), bool):
        return "the model does not say whether it is an interface"
    implements = definition.get("implements")
    if not (isinstance(implements, list) and all(map(_is_id, implements))):
        return "the model's 'implements' is not a list of StreamIDs"
    if not isinstance(definition.get("description", ""), str | None):
        return "the model's description is not a text"
    immutable = definition.get("immutableFields")
    if immutable is not None and not _are_texts(immutable):
        return "the model's 'immutableFields' is not a list of names"
    return None


# Only for documents: their definitions are limited in size, and those of models are not.
_form_error_of_known: Final = once(_form_error)


def _definition_error(definition: Mapping[str, Any]) -> str | None:
    """What is wrong with a model's definition, which has the form of one."""
    schema, (kind, fields) = definition["schema"], account_relation(definition)
    if _is_open(schema):
        return "the model's schema does not set 'additionalProperties' to false"
    if kind == "set" and len(set(fields)) < len(fields):
        return "the fields of an account relation must differ"
    properties, views = _mapping(schema.get("properties")), definition.get("views", {})
    if both := sorted(views.keys() & properties.keys()):
        return f"the view {both[0]!r} has the name of a property of the schema"
    if definition["version"] != "1.0" and definition["interface"] and not (properties or views):
        return "an interface needs a property or a view"
    return None


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether a schema of an object, or one right below it (`not`, `if`), allows any members."""
    todo: list[Any] = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict) and part.get("type") == "object":
            if part.get("additionalProperties") is not False:
                return True
            todo += part.values()
    return False


def _entry_error(definition: Mapping[str, Any], part: str) -> str | None:
    """What is wrong with the form of a model's relations, or of its views."""
    entries = definition.get(part, {})
    if not isinstance(entries, dict):
        return f"the model's {part!r} is not an object"
    is_first = definition["version"] == "1.0"
    for name, entry in entries.items():
        kind = entry.get("type") if isinstance(entry, dict) else None
        if not isinstance(kind, str) or kind not in _FORMS[part] or (is_first and kind in _SINCE_2):
            return f"the model's {part!r} has {name!r}, which is of no known type"
        for field in _FORMS[part][kind]:
            value = entry.get(field)
            is_named = _is_id(value) if field == "model" else isinstance(value, str)
            is_open = value is None and field == "model" and kind in _TO_ANY_MODEL and not is_first
            if not (is_named or is_open):
                return f"the model's {part!r} has {name!r}, which does not name its {field}"
    return None


def why_unusable(definition: Mapping[str, Any]) -> str | None:
    """Say why a model that breaks no rule could never have a document; None if it could.

    The network admits such a model, so this is for those who are about to create it.
    """
    try:
        compiled(definition.get("schema"))
    except SchemaError as error:
        return f"the model's schema cannot be used: {error}"
    if not is_satisfiable(definition["schema"]):
        return "no document can conform to the model's schema: it contradicts itself"
    return None


def _check_change(before: Any, after: Mapping[str, Any], budget: Budget) -> Errors:
    if not isinstance(before, dict) or equal_within(budget, before, after):
        return []
    if after["version"] == "1.0":
        return ["a model of version 1.0 cannot be changed"]
    if before.get("interface") is True:
        return ["an interface cannot be changed"]
    return [
        f"a model's {name!r} cannot be changed"
        for name in _FIXED_IN_MODELS
        if not equal_within(budget, before.get(name), after.get(name))
    ]


class _DocumentRules:
    """What the definition of a model asks of a document."""

    __slots__ = (
        "_is_interface",
        "_kind",
        "_links",
        "_locked",
        "_named",
        "_schema",
        "_schema_error",
        "_unique",
        "_unique_error",
    )

    def __init__(self, header: InitHeader, definition: Mapping[str, Any]) -> None:
        self._schema: DocumentSchema | None = None
        try:
            self._schema = compiled(definition["schema"])
        except SchemaError as error:
            self._schema_error = f"the schema of the document's model cannot be used: {error}"
        self._kind, fields = account_relation(definition)
        self._named = fields if self._kind == "set" else ()
        self._unique = (header.unique or b"").decode(errors="replace")
        self._unique_error = _unique_error(self._kind, self._named, header.unique)
        later = {} if definition["version"] == "1.0" else definition  # what came with 2.0
        locked = dict.fromkeys((*self._named, *(later.get("immutableFields") or ())))
        self._locked = {name: number for number, name in enumerate(locked)}
        self._links = tuple(
            name
            for name, relation in definition.get("relations", {}).items()
            if relation["type"] == "document"
        )
        self._is_interface = later.get("interface") is True

    @property
    def schema_alone(self) -> DocumentSchema | None:
        has_more = self._is_interface or self._unique_error is not None
        return None if has_more or self._named or self._locked or self._links else self._schema

    def check(self, change: ContentChange, budget: Budget) -> Errors:
        if self._is_interface:
            return ["an interface cannot have documents: use a model that implements it"]
        errors: Errors = []
        after = change.after
        if change.is_init and after is not None and self._kind in ("single", "set"):
            kind = self._kind
            errors.append(f"a document with the account relation {kind!r} starts without content")
        if self._unique_error is not None:
            errors.append(self._unique_error)
        elif self._named and not (change.is_init and after is None):
            budget.spend(change.weight // _BYTES + _STEPS_PER_FIELD * len(self._named))
            if not isinstance(after, dict) or _unique(self._named, after) != self._unique:
                errors.append(f"the fields {', '.join(self._named)} do not match 'unique'")
        if self._locked and isinstance(change.before, dict):
            budget.spend(change.weight // _BYTES + len(self._locked))
            errors += self._check_locked(change, budget)
        if after is not None:
            if self._links:
                budget.spend(_STEPS_PER_FIELD * len(self._links))
                errors += self._check_links(_mapping(after))
            if self._schema is None:
                errors.append(self._schema_error)
            else:
                error = self._schema.error(after, change.weight, budget, change.touched)
                errors += [] if error is None else [error]
        return errors

    def _check_locked(self, change: ContentChange, budget: Budget) -> Errors:
        before, after = change.before, _mapping(change.after)
        touched = before.keys() | after.keys() if change.touched is None else change.touched
        return [  # a model may lock far more fields than a document has
            f"the field {name!r} is immutable"
            for name in sorted(self._locked.keys() & touched, key=self._locked.__getitem__)
            if not _same(before.get(name, _ABSENT), after.get(name, _ABSENT), budget)
        ]

    def _check_links(self, after: Mapping[str, Any]) -> Errors:
        return [
            f"the field {name!r} should hold the StreamID of a document"
            for name in self._links
            if after.get(name) is not None and not _is_id(after[name], (StreamType.MODEL_INSTANCE,))
        ]


def unique_of(definition: Mapping[str, Any], content: Mapping[str, Any]) -> bytes:
    """Return `unique` of a document of a `set` model: made of some of its content's fields."""
    return _unique(account_relation(definition)[1], content).encode()


def _unique(fields: tuple[str, ...], content: Mapping[str, Any]) -> str:
    return "|".join(_as_text(content.get(name)) for name in fields)


def _unique_error(kind: str | None, fields: tuple[str, ...], unique: bytes | None) -> str | None:
    if len(set(fields)) < len(fields):
        return "the document's model cannot be used: the fields of its account relation repeat"
    if kind == "single" and unique:
        return "a document with the account relation 'single' has no 'unique'"
    if kind in ("list", "set") and not unique:
        return f"a document with the account relation {kind!r} needs 'unique'"
    return None


def account_relation(definition: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    """Return how many documents of a model an account can have, and the fields of a `set`."""
    relation = definition.get("accountRelation")
    if not isinstance(relation, dict) or relation.get("type") not in _RELATIONS:
        return None, ()
    fields = relation.get("fields")
    return relation["type"], tuple(fields) if _are_texts(fields) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_id(value: Any, types: Container[int] = range(_TYPES)) -> bool:
    """Whether it is the StreamID of a stream of one of these types, as text."""
    try:
        return isinstance(value, str) and StreamId.parse(value).type in types
    except StreamIdError:
        return False


def _as_text(value: Any) -> str:
    """A value as the SDK writes it into `unique`: JavaScript's `String(value)`; null is "".

    As in ceramic-one, so are arrays and objects.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return number_text(value)
    return str(value) if isinstance(value, str | int) else ""


def _same(one: Any, other: Any, budget: Budget) -> bool:
    """Whether both are equal as JSON. A patch shares what it does not change."""
    return one is other or equal_within(budget, one, other)


def event_metadata(event: Event) -> dict[str, Any]:
    """Return the metadata in an event, links as text; empty for a time event.

    `shouldIndex` is true unless the init event says otherwise.
    """
    if event.proof is not None:
        return {}
    fields: dict[str, Any] = {} if event.header is None else {"shouldIndex": True}
    header = event.payload.get("header")
    if isinstance(header, dict):
        for name in _METADATA:
            if name in header:
                value = header[name]
                fields[name] = str(value) if isinstance(value, CID) else value
    return fields


def version_of(metadata: Mapping[str, Any], init: CID) -> CID | None:
    """Return the version of its model that applies to a document; None if it is not a CID."""
    if "modelVersion" not in metadata:
        return init
    try:
        return CID.parse(str(metadata["modelVersion"]))
    except IpldError:
        return None


def named_versions(events: Iterable[Event]) -> set[CID]:
    """Return the versions of its model that a document names, without the model's init event.

    If there are more than `MAX_VERSIONS`, those with the lowest CIDs.
    """
    versions = set()
    for event in events:
        if event.proof is None and "header" in (payload := event.payload):
            header = payload["header"]
            versions.add(header.get("modelVersion") if isinstance(header, dict) else None)
    return set(sorted(version for version in versions if version is not None)[:MAX_VERSIONS])
