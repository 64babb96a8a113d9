"""Types written for models: what a schema accepts fits its type, and the module is as ruff has it.

The oracles: jsonschema-rs says what a schema accepts, pydantic (strict) and mypy what fits a type.
"""

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, TypeAdapter, ValidationError
from stream_samples import PUBLIC_MODELS, documents
from support.waiting import finished
from typing_extensions import is_typeddict

from recon_node.ceramic import StreamId, StreamType
from recon_node.client import Ceramic, InvalidArgumentError
from recon_node.client.codegen import read_models, typed_dicts
from recon_node.streams.document_schema import SchemaError, compiled

MODEL = StreamId.parse(PUBLIC_MODELS[0]["model"])
OTHER = StreamId.parse(PUBLIC_MODELS[1]["model"])
BLOG = Path(__file__).parents[2] / "docs" / "examples" / "blog"
RUFF = Path(sys.executable).with_name("ruff")

# Names and values of strangers: keywords, builtins, quotes, line breaks, what looks like code.
NAMES = st.sampled_from(
    ["a", "title", "str", "Any", "class", "__a", "a-b", 'x"y', "x'y\n", "é", "Name", "n" * 45, "1"]
)
TEXTS = st.sampled_from(["", "a", 'say "hi"', "it's", '"""', "\\", "\n\u202e", "é" * 20, "z" * 70])
VALUES = TEXTS | st.integers(-3, 2**53) | st.booleans() | st.none()
LEAVES = st.one_of(
    st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda t: {"type": t}),
    st.lists(st.sampled_from(["string", "null", "object", "integer"]), min_size=1, unique=True).map(
        lambda types: {"type": types}
    ),
    st.lists(VALUES, min_size=1, max_size=6, unique_by=repr).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
    st.sampled_from(["#/$defs/Tree", "#/$defs/Tag", "#"]).map(lambda name: {"$ref": name}),
    st.just({}),
)


def objects(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def with_required(properties: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        names = st.sets(st.sampled_from(sorted(properties) or ["a"])).map(sorted)
        return names.map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": [name for name in required if name in properties],
                "additionalProperties": False,
            }
        )

    return st.dictionaries(NAMES, schemas, max_size=4).flatmap(with_required)


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        objects(inner),
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda value: {"type": "object", "additionalProperties": value}),
        st.lists(inner, min_size=1, max_size=4).map(lambda schemas: {"anyOf": schemas}),
        st.lists(inner, min_size=1, max_size=2).map(lambda schemas: {"allOf": schemas}),
    ),
    max_leaves=8,
)
DEFINITIONS = {
    "Tag": {"type": "string", "format": "date-time", "maxLength": 30},
    "Tree": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "left": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]},
            "more": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
}
ROOTS = objects(SCHEMAS).map(lambda schema: {**schema, "$defs": DEFINITIONS})


@st.composite
def instances(draw: st.DrawFn, schema: Any, root: Any, depth: int = 0) -> Any:
    """A value that a schema is likely to accept."""
    if "$ref" in schema:
        schema = root if schema["$ref"] == "#" else DEFINITIONS[schema["$ref"].split("/")[-1]]
    if "const" in schema:
        return schema["const"]
    for name in ("enum", "anyOf", "allOf"):
        if name in schema:
            chosen = draw(st.sampled_from(schema[name]))
            return chosen if name == "enum" else draw(instances(chosen, root, depth))
    kind = schema.get("type", draw(st.sampled_from(["string", "object", "null"])))
    kind = kind if isinstance(kind, str) else draw(st.sampled_from(kind))
    match kind:
        case "object":
            members = {
                name: draw(instances(field, root, depth + 1))
                for name, field in schema.get("properties", {}).items()
                if name in schema.get("required", ()) or (depth < 3 and draw(st.booleans()))
            }
            if isinstance(schema.get("additionalProperties"), dict) and draw(st.booleans()):
                of_others = schema["additionalProperties"]
                members["more"] = draw(instances(of_others, root, depth + 1))
            return members
        case "array":
            size = draw(st.integers(0, 2)) if depth < 3 else 0
            return [draw(instances(schema["items"], root, depth + 1)) for _ in range(size)]
        case "integer":
            return draw(st.integers(-(2**53), 2**53))
        case "number":
            return draw(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9))
        case "boolean":
            return draw(st.booleans())
        case "null":
            return None
        case _:
            return draw(st.text(max_size=5))


def definition(schema: Any, **more: Any) -> dict[str, Any]:
    return {"name": "Post", "schema": schema, "accountRelation": {"type": "list"}, **more}


def fits(code: str, name: str) -> TypeAdapter[Any]:
    """Check by a type of a module; pydantic needs the TypedDict of typing_extensions."""
    module = sys.modules["generated"] = ModuleType("generated")
    of_extensions = code.replace("from typing import", "from typing_extensions import")
    exec(compile(of_extensions, "generated", "exec"), module.__dict__)
    for value in vars(module).values():
        if is_typeddict(value):
            value.__pydantic_config__ = ConfigDict(strict=True, extra="forbid")
    return TypeAdapter(getattr(module, name))


def formatted(code: str) -> None:
    done = finished([RUFF, "format", "--isolated", "--diff", "-"], input=code)
    assert done.returncode == 0, done.stdout + done.stderr + code


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_what_a_schema_accepts_fits_its_type(data: st.DataObject) -> None:
    root = data.draw(ROOTS)
    instance = data.draw(instances(root, root))
    try:
        schema = compiled(json.loads(json.dumps(root)))
    except SchemaError:
        assume(False)
    assume(schema._whole.is_valid(instance))
    fits(typed_dicts({MODEL: definition(root)}), "Post").validate_python(instance)


def test_documents_of_public_models_fit_their_types() -> None:
    accepted = refused = 0
    for model in PUBLIC_MODELS:
        post = fits(typed_dicts({MODEL: definition(model["schema"])}), "Post")
        for document, verdict in documents(model):
            if verdict:
                post.validate_python(document)
                accepted += 1
            else:
                try:
                    post.validate_python(document)
                except ValidationError:
                    refused += 1
    assert accepted > 2_000
    assert refused > 5_000  # wrong types, and missing and unknown members; lengths have no types


def test_a_document_is_not_a_model() -> None:
    document = StreamId(StreamType.MODEL_INSTANCE, MODEL.cid)
    with (
        Ceramic("http://127.0.0.1:1") as ceramic,
        pytest.raises(InvalidArgumentError, match="is not the StreamID of a model"),
    ):
        read_models(ceramic, [document])


def test_types_of_many_models_are_formatted() -> None:
    definitions = {
        StreamId.parse(model["model"]): definition(model["schema"], name=f"{model['from']} {n % 9}")
        for n, model in enumerate(PUBLIC_MODELS)
    }
    code = typed_dicts(definitions)
    formatted(code)
    assert typed_dicts(definitions) == code


@pytest.mark.parametrize("levels", range(1, 12))
def test_types_with_names_of_their_own_are_formatted(levels: int) -> None:
    kind: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    for _ in range(levels):
        kind = {"type": "object", "additionalProperties": kind}
    schema = {"type": "object", "properties": {"n" * 45: kind}}
    formatted(typed_dicts({MODEL: definition(schema)}))


@settings(max_examples=8)
@given(st.tuples(ROOTS, ROOTS), TEXTS, TEXTS)
def test_strangers_texts_do_not_become_code(roots: Any, name: str, description: str) -> None:
    definitions = {
        model: definition(root, name=name, description=description)
        for model, root in zip((MODEL, OTHER), roots, strict=True)
    }
    formatted(typed_dicts(definitions))


@pytest.mark.parametrize("member", ["plain", "not plain"])
def test_descriptions_are_not_doctests_and_switch_no_checker_off(member: str) -> None:
    for description in (">>> 1 / 0", "# mypy: ignore-errors", "mypy: ignore-errors", "ruff: noqa"):
        schema = {"properties": {member: {"type": "string"}}}
        code = typed_dicts({MODEL: definition(schema, description=description)})
        assert description.lstrip("# ") in code
        for line in (line.strip() for line in code.splitlines()):
            assert not line.startswith(">>>")
            assert re.match(r"#\s*(mypy|ruff|type|pyright|fmt)\b", line) is None


def test_what_a_model_says_of_its_fields() -> None:
    code = typed_dicts(
        {
            MODEL: definition(
                {
                    "properties": {
                        "post": {"type": "string"},
                        "by": {"type": "string"},
                        "at": {"type": "string", "format": "date-time"},
                    },
                    "required": ["post"],
                },
                name="like of a post",
                accountRelation={"type": "set", "fields": ["post"]},
                relations={
                    "post": {"type": "document", "model": str(OTHER)},
                    "by": {"type": "account"},
                },
            ),
            OTHER: definition({"properties": {"tags": {"type": "array"}}}, description='A "post"'),
        }
    )
    assert (
        code
        == f'''"""Documents of Ceramic models; written by `recon-node model codegen`."""

from __future__ import annotations

from typing import Any, Final, NotRequired, TypedDict

LIKE_OF_APOST_MODEL: Final = (
    "{MODEL}"
)
POST_MODEL: Final = "{OTHER}"


class LikeOfAPost(TypedDict):
    """Documents of the model like of a post.

    An account has one of them for each value of: post.
    """

    post: str
    """The StreamID of a document, a Post. It keeps its first value."""
    by: NotRequired[str]
    """The DID of an account."""
    at: NotRequired[str]
    """date-time"""


class Post(TypedDict):
    """Documents of the model Post.

    Its description: A 'post'

    An account has any number of them.
    """

    tags: NotRequired[list[Any]]
'''
    )


@pytest.mark.long
def test_mypy_accepts_what_a_schema_accepts(tmp_path: Path) -> None:
    """Documents of public models, and the example application."""
    lines, file = [], tmp_path / "models.py"
    definitions = {}
    for number, model in enumerate(PUBLIC_MODELS):
        definitions[StreamId.parse(model["model"])] = definition(
            model["schema"], name=f"M{number} "
        )
        least, complete = model["least"], model["complete"]
        lines += [
            f"M{number}_{name}: M{number} = {value!r}"
            for name, (value, ok) in (("least", least), ("complete", complete))
            if ok
        ]
    file.write_text("\n".join((typed_dicts(definitions), *lines)) + "\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache"]
    done = finished([*mypy, file, "blog.py"], cwd=BLOG)
    assert done.returncode == 0, done.stdout
