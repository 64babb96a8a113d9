"""Python types of models' documents: TypedDicts, for mypy and pyright, from the models' schemas.

    print(typed_dicts(read_models(ceramic, [post_model])))

TypedDicts need only the standard library, and describe what the client takes and returns, as in
`post: Post = ceramic.read(stream).content`. The module has a constant with the StreamID of each
model, and a class for each object with named members, those that are referred to first.

Theory of operation. Whatever a schema accepts fits the type that is written for it, but not the
reverse: lengths, patterns and other limits have no types in Python. A keyword that cannot be
expressed is left out, so that the type is wider; at worst it is `Any`. Names, descriptions and
values come from strangers: they are reduced to identifiers or written as literals, so that they
cannot become code. Lines are broken as ruff and Black do, which leave the module as it is.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from recon_node.base.connection import InvalidArgumentError
from recon_node.ceramic import StreamId, StreamIdError, StreamType
from recon_node.client.arguments import StreamRef, to_stream_id
from recon_node.client.clients import Ceramic

_WIDTH: Final = 88
"""Characters of a line, as ruff and Black have it."""
_INLINE: Final = 25
"""Characters of a union, or of a list of values, that gets no name of its own."""
_LONGEST_NAME: Final = 35
"""Characters of a class's name, to which a number may be appended."""
_LONGEST_VALUE: Final = 60
"""Characters of a value that a type names; beyond, its type is that of all texts or numbers."""
_LONGEST_TEXT: Final = 60
"""Characters of what others wrote, in docstrings."""
_MOST_REFERENCES: Final = 50
"""References of references that are followed."""
_TAB: Final = "    "
_IMPORTED: Final = ("Any", "Final", "Literal", "NotRequired", "TypeAlias", "TypedDict", "Union")
_BUILTINS: Final = ("bool", "dict", "float", "int", "list", "str", "None", "True", "False")
_SIMPLE: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_ACCOUNT: Final = {
    "list": "An account has any number of them.",
    "single": "An account has one of them.",
    "none": "They have no documents: other models implement this one.",
}


def read_models(ceramic: Ceramic, models: Iterable[StreamRef]) -> dict[StreamId, Any]:
    """Return the definitions of models, and of those that they relate to or implement.

    Raises:
        ClientError: a model is not on the node, or the node does not answer.
        InvalidArgumentError: not the StreamID of a model.
    """
    definitions: dict[StreamId, Any] = {}
    waiting = [to_stream_id(model) for model in models]
    for model in waiting:
        if model.type != StreamType.MODEL:
            raise InvalidArgumentError(f"{model} is not the StreamID of a model")
    while waiting:
        model = waiting.pop(0)
        if model not in definitions:
            definitions[model] = ceramic.read(model).content
            waiting += _related(definitions[model])
    return definitions


def typed_dicts(definitions: Mapping[StreamId, Any]) -> str:
    """Return a Python module with the types of models' documents.

    Args:
        definitions: the contents of the models' streams, by their StreamIDs.
    """
    module = _Module()
    names = {
        model: module.name(_text(definition, "name")) for model, definition in definitions.items()
    }
    ids = {str(model): name for model, name in names.items()}
    for model, definition in definitions.items():
        snake = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", names[model]).upper()
        module.constant(f"{snake}_MODEL", str(model))
        writer = _Writer(module, _map(definition, "schema"), _notes(definition, ids))
        writer.root(names[model], _about(definition, model))
    return module.text()


class _Module:
    def __init__(self) -> None:
        self._taken = {*_IMPORTED, *_BUILTINS}
        self._constants: list[str] = []
        self._parts: list[str] = []

    def name(self, wish: str) -> str:
        """Return an identifier like a text that nothing else has."""
        words = re.findall(r"[A-Za-z0-9]+", wish)
        name = "".join(word[0].upper() + word[1:] for word in words)[:_LONGEST_NAME]
        if not name or name[0].isdigit():
            name = f"Model{name}"
        return self._unused(name)

    def _unused(self, name: str) -> str:
        free, count = name, 1
        while free in self._taken:
            count += 1
            free = f"{name}{count}"
        self._taken.add(free)
        return free

    def constant(self, name: str, value: str) -> None:
        self._constants.append(_assignment(f"{self._unused(name)}: Final", f'"{value}"'))

    def add(self, part: str) -> None:
        self._parts.append(part)

    def text(self) -> str:
        code = "\n".join((*self._constants, *self._parts))
        used = [name for name in _IMPORTED if re.search(rf"\b{name}\b", code)]
        head = (
            '"""Documents of Ceramic models; written by `recon-node model codegen`."""\n\n'
            f"from __future__ import annotations\n\nfrom typing import {', '.join(used)}\n\n"
        )
        constants = "\n".join(self._constants)
        return "\n\n\n".join((head + constants, *self._parts)) + "\n"


def _assignment(target: str, text: str) -> str:
    """Assign a text, in parentheses if it fits into a line of its own alone."""
    line = f"{target} = {text}"
    if len(line) <= _WIDTH or len(_TAB + text) > _WIDTH:
        return line
    return f"{target} = (\n{_TAB}{text}\n)"


class _Writer:
    def __init__(self, module: _Module, schema: Mapping[str, Any], notes: dict[str, str]) -> None:
        self._module, self._schema, self._notes = module, schema, notes
        self._referred: dict[str, str] = {}  # the types of references
        self._open: list[str] = []  # references that are being written
        self._about_part: list[str] = []

    def root(self, name: str, about: list[str]) -> None:
        """Write the class of the documents, which are objects whatever the schema says."""
        self._referred["#"] = name
        self._about_part = [f"A part of {name}."]
        self._class(name, self._schema, about, self._notes)

    def _type(self, schema: Any, name: str) -> str:
        """Return the type of what a schema accepts, and write what it refers to.

        `name` is for classes that have to be written.
        """
        if not isinstance(schema, dict):
            return "Any"
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema["$ref"])
        if "const" in schema:
            return self._values([schema["const"]], name)
        if isinstance(schema.get("enum"), list):
            return self._values(schema["enum"], name)
        kinds = schema.get("type")
        if isinstance(kinds, str):
            return self._of_kind(kinds, schema, name)
        if isinstance(kinds, list):
            return self._union([self._of_kind(kind, schema, name) for kind in kinds], name)
        for keyword_ in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword_), list):
                return self._union([self._type(option, name) for option in schema[keyword_]], name)
        together = schema.get("allOf")
        if isinstance(together, list):
            # Each of them is wide enough; the first that says something is taken.
            types = (self._type(part, name) for part in together)
            return next((shown for shown in types if shown != "Any"), "Any")
        return "Any"

    def _of_kind(self, kind: Any, schema: dict[str, Any], name: str) -> str:
        if kind == "array":
            return f"list[{self._type(schema.get('items'), name)}]"
        if kind != "object":
            return _SIMPLE.get(kind, "Any") if isinstance(kind, str) else "Any"
        if not _map(schema, "properties"):
            others = schema.get("additionalProperties")
            is_any = "patternProperties" in schema or not isinstance(others, dict)
            return "dict[str, Any]" if is_any else f"dict[str, {self._type(others, name)}]"
        class_name = self._module.name(name)
        self._class(class_name, schema, self._about_part, {})
        return class_name

    def _reference(self, reference: str) -> str:
        """The type of what a reference names; a type that contains itself is a class."""
        if reference in self._referred:
            return self._referred[reference]
        part = _resolved(self._schema, reference)
        if part is None or reference in self._open or len(self._open) > _MOST_REFERENCES:
            return "Any"
        wish = reference.rpartition("/")[2].lstrip("#")
        self._open.append(reference)
        if part.get("type") == "object" and _map(part, "properties") and "$ref" not in part:
            self._referred[reference] = self._module.name(wish)
            self._class(self._referred[reference], part, self._about_part, {})
        else:
            self._referred[reference] = self._type(part, wish)
        self._open.pop()
        return self._referred[reference]

    def _class(
        self, name: str, schema: Mapping[str, Any], about: list[str], notes: dict[str, str]
    ) -> None:
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        fields: dict[str, str] = {}
        for field, of_field in _map(schema, "properties").items():
            if of_field is not False:
                kind = self._type(of_field, f"{name} {field}")
                if len(field) > _INLINE and " | " in kind:
                    alias = self._module.name(f"{name} {field}")
                    self._module.add(_assignment(f"{alias}: TypeAlias", _literal(kind)))
                    kind = alias
                fields[field] = kind if field in required else f"NotRequired[{kind}]"
                notes = {field: self._format(of_field), **notes}
        used = set(re.findall(r"\w+", " ".join(fields.values())))
        is_plain = all(_is_plain(field) for field in fields) and used.isdisjoint(fields)
        self._module.add((_class_text if is_plain else _call_text)(name, fields, about, notes))

    def _format(self, schema: Any) -> str:
        """What a schema says that texts are, such as `date-time`."""
        if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            schema = _resolved(self._schema, schema["$ref"])
        format_ = _text(schema, "format")
        return format_ if re.fullmatch(r"[a-z0-9-]{1,30}", format_) else ""

    def _values(self, values: list[Any], name: str) -> str:
        """The type of some values: they themselves, or what kind they are."""
        kinds = [_kind_of(value) for value in values]
        if None in kinds or not values:
            return "Any"
        literals = list(dict.fromkeys(map(_literal, values)))
        if "float" in kinds or max(map(len, literals)) > _LONGEST_VALUE:
            return self._union([kind for kind in kinds if kind is not None], name)
        flat = f"Literal[{', '.join(literals)}]"
        if len(flat) <= _INLINE:
            return flat
        lines = "".join(f"{_TAB}{literal},\n" for literal in literals)
        if len(literals) == 1:
            return flat
        alias = self._module.name(name)
        self._module.add(f"{alias}: TypeAlias = Literal[\n{lines}]")
        return alias

    def _union(self, types: list[str], name: str) -> str:
        types = list(dict.fromkeys(types))
        if "Any" in types or not types:
            return "Any"
        types.sort(key=lambda kind: kind == "None")
        flat = " | ".join(types)
        if len(flat) <= _INLINE or len(types) == 1:
            return flat
        alias = self._module.name(name)
        # As texts: a class that contains itself is written after them.
        lines = "".join(f"{_TAB}{_literal(literal)},\n" for literal in types)
        self._module.add(f"{alias}: TypeAlias = Union[\n{lines}]")
        return alias


def _class_text(name: str, fields: dict[str, str], about: list[str], notes: dict[str, str]) -> str:
    lines = [f"class {name}(TypedDict):"]
    more = [f"\n{_TAB}{line}" for line in about[1:]]
    lines += [f'{_TAB}"""{about[0]}', *more, f'{_TAB}"""'] if more else [f'{_TAB}"""{about[0]}"""']
    lines += [""] if fields else []
    for field, kind in fields.items():
        lines.append(_annotation(f"{_TAB}{field}: ", kind))
        if notes.get(field):
            lines.append(f'{_TAB}"""{notes[field]}"""')
    return "\n".join(lines)


def _call_text(name: str, fields: dict[str, str], about: list[str], notes: dict[str, str]) -> str:
    """The other syntax, for members that are not identifiers."""
    lines = [f"# {line.replace('#', '')}" for line in about]
    lines += [f"{name} = TypedDict(", f'{_TAB}"{name}",', f"{_TAB}{{"]
    for field, kind in fields.items():
        if notes.get(field):
            lines.append(f"{_TAB * 2}# {notes[field]}")
        lines.append(f"{_TAB * 2}{_literal(field)}: {_literal(kind)},")
    return "\n".join((*lines, f"{_TAB}}},", ")"))


def _annotation(prefix: str, kind: str) -> str:
    """A line with a type; one that is too long is broken in its outer brackets."""
    line = prefix + kind
    if len(line) <= _WIDTH or not kind.endswith("]"):
        return line
    outer, _, inner = kind[:-1].partition("[")
    return f"{prefix}{outer}[\n{_TAB * 2}{inner}\n{_TAB}]"


def _is_plain(field: str) -> bool:
    """Whether it can be an attribute of a class."""
    is_word = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field, re.ASCII) is not None
    return is_word and not keyword.iskeyword(field) and not field.startswith("__")


def _kind_of(value: Any) -> str | None:
    """The type of a value that `Literal` can name, or of a number."""
    if value is None:
        return "None"
    return type(value).__name__ if isinstance(value, bool | int | float | str) else None


def _literal(value: Any) -> str:
    """A value as Python has it, a text as ruff quotes it: in double quotes if these are fewer."""
    if not isinstance(value, str):
        return repr(value)
    quote = "'" if value.count('"') > value.count("'") else '"'
    shown = "".join(
        f"\\{character}"
        if character in (quote, "\\")
        else character
        if character.isprintable()
        else character.encode("unicode_escape").decode()
        for character in value
    )
    return f"{quote}{shown}{quote}"


def _said(text: str) -> str:
    """What others wrote as part of a docstring: on one line, and short."""
    shown = " ".join(
        "".join(character if character.isprintable() else " " for character in text).split()
    )
    shown = shown.replace("\\", "/").replace('"', "'")
    return shown if len(shown) <= _LONGEST_TEXT else f"{shown[:_LONGEST_TEXT].rstrip()}..."


def _about(definition: Any, model: StreamId) -> list[str]:
    relation = _map(definition, "accountRelation")
    kind = _text(relation, "type")
    account = _ACCOUNT.get(kind, "")
    if kind == "set":
        fields = ", ".join(_texts(relation.get("fields")))
        account = f"An account has one of them for each value of: {_said(fields)}."
    lines = [f"Documents of the model {_said(_text(definition, 'name'))}."]
    description = _said(_text(definition, "description"))
    if description:  # no line begins with it: it could be a doctest, or switch a checker off
        lines.append(f"Its description: {description}")
    return [line for line in (*lines, account) if line]


def _notes(definition: Any, names: Mapping[str, str]) -> dict[str, str]:
    """What a model says of its fields: by the name of the field."""
    notes: dict[str, str] = {}
    for field, relation in _map(definition, "relations").items():
        to = names.get(_text(relation, "model"))
        if _text(relation, "type") == "account":
            notes[field] = "The DID of an account."
        else:
            notes[field] = f"The StreamID of a document{(to and f', a {to}') or ''}."
    immutable = _texts(_map(definition).get("immutableFields"))
    for field in (*immutable, *_texts(_map(definition, "accountRelation").get("fields"))):
        notes[field] = f"{notes.get(field, '')} It keeps its first value.".strip()
    return notes


def _related(definition: Any) -> list[StreamId]:
    """The models that a model relates to or implements."""
    relations = _map(definition, "relations").values()
    named = [_text(relation, "model") for relation in relations]
    stream_ids = []
    for text in (*named, *_texts(_map(definition).get("implements"))):
        try:
            stream_ids.append(StreamId.parse(text))
        except StreamIdError:
            continue
    return stream_ids


def _resolved(schema: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    """The part of a schema that a reference into it names, by a JSON Pointer or an anchor."""
    path = unquote(reference.removeprefix("#"))
    target: Any = schema
    if path and not path.startswith("/"):
        named = (*_map(schema, "$defs").values(), *_map(schema, "definitions").values())
        target = next(
            (definition for definition in named if _text(definition, "$anchor") == path), None
        )
        path = ""
    for part in path.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, dict) else None
    return target if reference.startswith("#") and isinstance(target, dict) else None


def _map(value: Any, *names: str) -> Mapping[str, Any]:
    """A value, or its member of that name, if it is an object; otherwise an empty one."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _text(value: Any, name: str) -> str:
    text = value.get(name) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
