"""The columns of a model's view: its JSON Schema as types, and content as values of these types.

Schema and content come from strangers, and a document need not conform to the schema that a view
has its columns from: it may name another version of the model, or have arrived before it. So
nothing here raises: a part of a schema that has no type of its own becomes JSON as text, and a
value that does not fit its type is null, with the reason among the row's misfits. An object takes
a value for each member that the schema has, also if it has none of them; so the values of a row
are counted, and the column in which they are too many is null.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import count, islice
from typing import Any, Final, NamedTuple

import pyarrow as pa

from recon_node.ceramic import StreamId, StreamIdError
from spark_sink.schema import TAKEN

_MAX_COLUMNS: Final = 1_000
"""Columns that a stranger's schema makes; databases have their limits, too."""
_MAX_DEPTH: Final = 12
"""The depth of the type of such a column."""
_MAX_FIELDS: Final = 2_000
"""The fields of the types of all such columns; an object that has more of its own is JSON."""
MAX_VALUES: Final = 1_000_000
"""In the objects and lists of a row."""
_MAX_MISFITS: Final = 20
"""Reasons that are kept for a row."""
_SHOWN: Final = 80
"""Characters of a value in a reason."""
_LONGS: Final = range(-(2**63), 2**63)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
_REFERENCE: Final = "#/"
_OF_DELTA: Final = ("_change_type", "_commit_", "__delta_rs")
"""How the names of columns begin that the change feed of Delta and its writer have."""

Misfit = tuple[str, str]
"""Where a value is, as a JSON path, and why it does not fit."""
Path = tuple[Any, str | int] | str
"""Where a value is: the path of what it is in, and its name or index there; or "$"."""


class _TooManyError(Exception):
    """A row has more values than it may have."""


@dataclass(slots=True)
class _Row:
    """A row while it is made: how many values it may still have, and what does not fit."""

    left: int
    misfits: list[Misfit] = field(default_factory=list)

    def take(self, values: int) -> None:
        """Count values; raise `_TooManyError` if they are too many."""
        self.left -= values
        if self.left < 0:
            raise _TooManyError

    def note(self, path: Path, value: Any, wanted: str) -> None:
        """Note that a value does not fit."""
        if len(self.misfits) < _MAX_MISFITS:
            text = _json(value)
            self.misfits.append((_shortened(_path(path)), f"{_shortened(text)} is not {wanted}"))


Convert = Callable[[Any, Path, _Row], Any]
"""Returns a value that is not null as one of the column; if it does not fit, notes why."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of Arrow, and how a JSON value becomes one of it."""

    type: pa.DataType
    convert: Convert


class Column(NamedTuple):
    """A column: `name` is that of the content's member `member`, as far as it is usable."""

    name: str
    member: str
    kind: Kind


class Columns:
    """The columns that a model's definition asks for."""

    def __init__(self, definition: Any) -> None:
        schema = _mapping(_mapping(definition).get("schema"))
        relations = _mapping(_mapping(definition).get("relations"))
        reader = _SchemaReader(schema)
        kinds: dict[str, Kind] = {}
        for member, part in islice(_mapping(schema.get("properties")).items(), _MAX_COLUMNS):
            to = _mapping(relations.get(member)).get("type")
            kinds[member] = _RELATION if to == "document" else reader.kind(part)
        self.columns = _named(kinds, TAKEN)

    @property
    def fields(self) -> list[pa.Field]:
        """The columns in Arrow; all can be null."""
        return [pa.field(column.name, column.kind.type) for column in self.columns]

    def values(
        self, content: Any, limit: int = MAX_VALUES
    ) -> tuple[dict[str, Any], list[Misfit], int]:
        """Return the values of a document's content by column, what does not fit, and how many
        values they are.

        Args:
            content: as JSON has it.
            limit: of values in objects and lists.
        """
        row = _Row(limit)
        if content is not None and not isinstance(content, dict):
            row.note("$", content, "an object")
        members = _mapping(content)
        values = {}
        for column in self.columns:
            path: Path = ("$", column.member)
            try:
                values[column.name] = _converted(column.kind, members.get(column.member), path, row)
            except _TooManyError:
                values[column.name] = None
                reason = f"the row would have more than {limit:,} values"
                row.misfits.append((_shortened(_path(path)), reason))
                row.left = 0
        return values, row.misfits[:_MAX_MISFITS], len(values) + limit - row.left


def _converted(kind: Kind, value: Any, path: Path, row: _Row) -> Any:
    return None if value is None else kind.convert(value, path, row)


def _path(path: Path) -> str:
    parts: list[str] = []
    while not isinstance(path, str):
        path, part = path
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return path + "".join(reversed(parts))


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _named(kinds: Mapping[str, Kind], taken: frozenset[str]) -> tuple[Column, ...]:
    """Give columns names that all engines accept and can distinguish."""
    used = set(taken)
    tried: dict[str, int] = {}  # how many underscores the last column of a name got
    columns = []
    for member, kind in kinds.items():
        plain = re.sub(r"\W", "_", member, flags=re.ASCII) or "_"
        if plain.lower().startswith(_OF_DELTA):
            plain = f"field{plain}"
        start = tried.get(plain.lower(), 0)
        number = next(n for n in count(start) if (plain + "_" * n).lower() not in used)
        tried[plain.lower()], name = number, plain + "_" * number
        used.add(name.lower())
        columns.append(Column(name, member, kind))
    return tuple(columns)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _scalar(kind: pa.DataType, wanted: str, convert: Callable[[Any], Any]) -> Kind:
    """Make a kind of a function that raises a ValueError for what is not `wanted`."""

    def converted(value: Any, path: Path, row: _Row) -> Any:
        try:
            return convert(value)
        except (ValueError, OverflowError, StreamIdError):
            row.note(path, value, wanted)
            return None

    return Kind(kind, converted)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    value.encode()  # half of a surrogate pair is not text: a UnicodeEncodeError is a ValueError
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(value)
    return float(value)


def _long(value: Any) -> int:
    number = value if isinstance(value, int) and not isinstance(value, bool) else _number(value)
    whole = int(number)
    if whole != number or whole not in _LONGS:
        raise ValueError(value)
    return whole


def _day(value: Any) -> date:
    if _DATE.fullmatch(_text(value)) is None:
        raise ValueError(value)
    return date.fromisoformat(value)


def _moment(value: Any) -> datetime:
    if _TIME.fullmatch(_text(value)) is None:
        raise ValueError(value)
    return datetime.fromisoformat(value.upper()).astimezone(UTC)


def _relation(value: Any) -> str:
    return str(StreamId.parse(_text(value)))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


_JSON: Final = _scalar(pa.string(), "JSON", _json)
_STRING: Final = _scalar(pa.string(), "text", _text)
_RELATION: Final = _scalar(pa.string(), "a StreamID", _relation)
_BOOLEAN: Final = _scalar(pa.bool_(), "true or false", _truth)
_INTEGER: Final = _scalar(pa.int64(), "an integer of 64 bits", _long)
_NUMBER: Final = _scalar(pa.float64(), "a number", _number)
_FORMATS: Final = {
    "date": _scalar(pa.date32(), "a date", _day),
    "date-time": _scalar(pa.timestamp("us", "UTC"), "a date and time with its zone", _moment),
}
_SCALARS: Final = {"boolean": _BOOLEAN, "integer": _INTEGER, "number": _NUMBER}


@dataclass(slots=True)
class _SchemaReader:
    """Reads the parts of one schema; of a part that says too little, or too much, JSON is left."""

    root: Mapping[str, Any]
    fields: int = field(default=0)

    def kind(self, part: Any, above: tuple[str, ...] = ()) -> Kind:
        """Return the kind of the values that a part of the schema allows.

        Args:
            part: of the schema.
            above: what it is part of: references, so that a type is not part of itself, and an
                empty text for each level.
        """
        self.fields += 1
        schema, above = self._resolved(part, above)
        if schema is None or len(above) > _MAX_DEPTH or self.fields > _MAX_FIELDS:
            return _JSON
        name = _type_of(schema)
        if name == "object":
            return self._object(schema, (*above, ""))
        if name == "array":
            items = schema.get("items")
            if not isinstance(items, dict) or "prefixItems" in schema:
                return _JSON
            return _list_of(self.kind(items, (*above, "")))
        if name == "string":
            return _FORMATS.get(str(schema.get("format")), _STRING)
        return _SCALARS.get(str(name), _JSON)

    def _object(self, schema: Mapping[str, Any], above: tuple[str, ...]) -> Kind:
        members = _mapping(schema.get("properties"))
        others = schema.get("additionalProperties")
        if self.fields + len(members) > _MAX_FIELDS:
            return _JSON
        if members and not isinstance(others, dict):
            kinds = {name: self.kind(part, above) for name, part in members.items()}
            return _struct_of(_named(kinds, frozenset()))
        if isinstance(others, dict) and not (members or "patternProperties" in schema):
            return _map_of(self.kind(others, above))
        return _JSON

    def _resolved(
        self, part: Any, above: tuple[str, ...]
    ) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
        """Follow references, and alternatives that differ only in null; None if that fails."""
        while isinstance(part, dict) and len(above) <= _MAX_DEPTH:
            if "$ref" in part:
                reference = str(part["$ref"])
                if reference in above:
                    return None, above
                part, above = self._referred(reference), (*above, reference)
                continue
            name = next((name for name in ("anyOf", "oneOf", "allOf") if name in part), None)
            if name is None or "type" in part or "properties" in part:
                return part, above  # alternatives would only narrow it
            options = part[name] if isinstance(part[name], list) else []
            others = [option for option in options if option != {"type": "null"}]
            if len(others) != 1:
                return None, above
            part, above = others[0], (*above, "")
        return None, above

    def _referred(self, reference: str) -> Any:
        if not reference.startswith(_REFERENCE):
            return None
        part: Any = self.root
        for name in reference.removeprefix(_REFERENCE).split("/"):
            part = _mapping(part).get(name.replace("~1", "/").replace("~0", "~"))
        return part


def _type_of(schema: Mapping[str, Any]) -> str | None:
    """Return the one type of a schema's values besides null; None if there are several."""
    named = schema.get("type")
    if named is None:
        options = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(options, list):
            kinds = {_type_of_value(option) for option in options} - {"null"}
        else:
            named = {"properties": "object", "items": "array"}
            kinds = {kind for name, kind in named.items() if name in schema}
    else:
        texts = named if isinstance(named, list) else [named]
        kinds = {text for text in texts if isinstance(text, str)} - {"null"}
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else None


def _type_of_value(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "other"


def _nested(
    kind: pa.DataType, of: type[list[Any] | dict[str, Any]], size: int | None, convert: Convert
) -> Kind:
    """Make a kind of values with others in them: `size`, or as many as they have."""

    def converted(value: Any, path: Path, row: _Row) -> Any:
        if not isinstance(value, of):
            row.note(path, value, "a list" if of is list else "an object")
            return None
        row.take(len(value) if size is None else size)
        return convert(value, path, row)

    return Kind(kind, converted)


def _list_of(item: Kind) -> Kind:
    def convert(value: Any, path: Path, row: _Row) -> Any:
        return [_converted(item, member, (path, index), row) for index, member in enumerate(value)]

    return _nested(pa.list_(pa.field("element", item.type)), list, None, convert)


def _struct_of(columns: tuple[Column, ...]) -> Kind:
    def convert(value: Any, path: Path, row: _Row) -> Any:
        return {
            name: _converted(kind, value.get(member), (path, member), row)
            for name, member, kind in columns
        }

    fields = [pa.field(column.name, column.kind.type) for column in columns]
    return _nested(pa.struct(fields), dict, len(columns), convert)


def _map_of(item: Kind) -> Kind:
    def convert(value: Any, path: Path, row: _Row) -> Any:
        return [(name, _converted(item, part, (path, name), row)) for name, part in value.items()]

    return _nested(pa.map_(pa.string(), pa.field("value", item.type)), dict, None, convert)
