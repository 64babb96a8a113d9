"""Write the table of docs/api.md from the endpoints: `python config/api_reference.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from recon_node.api.app import ENDPOINTS
from recon_node.api.endpoint import NDJSON, Answer, Endpoint
from recon_node.base.setting_types import attribute_docs

PAGE: Final = Path(__file__).parents[1] / "docs" / "api.md"
_TABLE: Final = re.compile(r"(?<=<!-- requests -->\n).*?(?=\n<!-- end of requests -->)", re.DOTALL)


def filled_in(page: str) -> str:
    """Return the page with the table as it follows from the endpoints."""
    rows = ["| request | what for | answer |", "|---|---|---|", *map(_row, ENDPOINTS)]
    page, found = _TABLE.subn(lambda _: "\n".join(rows), page)
    assert found == 1, f"{PAGE} has no place for the requests"
    return page


def _row(endpoint: Endpoint) -> str:
    text = " ".join((inspect.getdoc(endpoint.handle) or "").split())
    seen: set[type] = set()
    answers = [_answer(each, seen) for each in endpoint.answers]
    answers += map(str, sorted(endpoint.errors))
    return f"| {_request(endpoint)} | {_cell(text)} | {_cell('; '.join(answers))} |"


def _request(endpoint: Endpoint) -> str:
    own = inspect.get_annotations(endpoint.parameters)
    declared = msgspec.structs.fields(endpoint.parameters)
    names = [f.encode_name for f in sorted(declared, key=lambda field: field.name not in own)]
    query = "&".join(name for name in names if f"{{{name}}}" not in endpoint.path)
    request = f"{endpoint.method} {endpoint.path}{'?' * bool(query)}{query}"
    mark = "+ " if endpoint.own else ""
    if endpoint.body is not None:
        body = f" `{_shape(endpoint.body, set())}`"
        lines = f", or + many of them as `{NDJSON}`" if endpoint.lines else ""
        return f"{mark}{request}{body}{lines}"
    if endpoint.binary is not None:
        return f"{mark}{request}, body: {endpoint.binary.rstrip('.')}"
    return f"{mark}{request}"


def _answer(answer: Answer, seen: set[type]) -> str:
    status = f"{'+ ' if answer.own else ''}{answer.status}"
    if answer.body is None:
        return f"{status}: {answer.description}".rstrip(".")
    shape = _shape(answer.body, seen)
    return f"{status} `{shape}`" if shape else f"{status}, {answer.media_type}"


def _shape(kind: Any, seen: set[type]) -> str:
    """The fields of a type in JSON, once; empty if it has none."""
    inner = next(filter(None, (_shape(each, seen) for each in get_args(kind))), "")
    if inner:
        return f"[{inner}]" if get_origin(kind) in (list, Sequence) else inner
    if not isinstance(kind, type) or not (issubclass(kind, Struct) or is_dataclass(kind)):
        return ""
    if kind in seen:
        return "{...}"
    seen.add(kind)
    return f"{{{', '.join(_fields(kind, seen))}}}"


def _fields(model: type, seen: set[type]) -> Iterator[str]:
    described: dict[str, tuple[str, bool]] = {}
    if is_dataclass(model):
        described = {each.name: (each.name, True) for each in fields(model)}
    elif issubclass(model, Struct):
        found = msgspec.structs.fields(model)
        described = {each.name: (each.encode_name, each.required) for each in found}
    docs, hints = attribute_docs(model), get_type_hints(model, include_extras=True)
    for name, (shown, is_required) in described.items():
        mark = "+" if docs.get(name, "").startswith("(+)") else ""
        shape = _shape(hints[name], seen)
        yield f'"{shown}"{"" if is_required else "?"}{mark}' + (f": {shape}" if shape else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(filled_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
