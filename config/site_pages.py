"""Hooks of mkdocs: the pages that follow from the code, and links to files outside docs/.

A page of docs/ may link to any file of the repository, as it should on a code host. The site gets a
copy of such a file, and its link leads there; a link to a directory becomes plain text.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
COPIES: Final = "source"
"""Where the copies of files outside docs/ are in the site."""
_LINK: Final = re.compile(r"\[([^\]]*)\]\(((?![a-z]+:)[^)#\s]+)(#[^)\s]*)?\)")
"""A link of Markdown to another file: its text, its path and its anchor."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the files outside docs/ that pages link to."""
    for name, text in generated_pages().items():
        files.append(File.generated(config, name, content=text))
    outside: set[PurePosixPath] = set()
    for file in files.documentation_pages():
        for match in _LINK.finditer(file.content_string):
            path = _target(file.src_uri, match[2])
            if path.parts[0] != "docs" and (ROOT / path).is_file():
                outside.add(path)
    for path in outside:
        content = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, f"{COPIES}/{path}.txt", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links to files outside docs/ lead to their copies, and those to directories nowhere."""

    def replaced(match: re.Match[str]) -> str:
        path = _target(page.file.src_uri, match[2])
        if (ROOT / path).is_dir():
            return match[1]
        if path.parts[0] == "docs":
            return match[0]
        here = PurePosixPath(page.file.src_uri).parent
        return f"[{match[1]}]({os.path.relpath(f'{COPIES}/{path}.txt', here)})"

    return _LINK.sub(replaced, markdown)


def _target(page: str, link: str) -> PurePosixPath:
    """What a page's link means, as a path in the repository."""
    here = PurePosixPath("docs") / PurePosixPath(page).parent
    return PurePosixPath(os.path.normpath(here / link))


def generated_pages() -> dict[str, str]:
    """The pages that follow from the code, by their paths."""
    from recon_node.cli import main as recon_node
    from spark_sink.cli import main as spark_sink

    return {
        "reference/settings.md": _settings(),
        "reference/recon-node.md": _program("recon-node", recon_node),
        "reference/spark-sink.md": _program("spark-sink", spark_sink),
        "reference/http.md": _http(),
    }


def _settings() -> str:
    from recon_node.settings import example_file

    return (
        "# Settings\n\nEvery setting of a node, with its default, as a file for "
        "`recon-node run --config FILE`. `recon-node config show` prints those that are set and "
        "where each comes from.\n\n"
        f"```toml\n{example_file()}```\n"
    )


def _program(name: str, command: click.Command) -> str:
    return "\n".join([f"# {name}", "", _JSON, *_sections(name, command, None)])


_JSON: Final = """\
With `--json`, a command prints its result on standard output as one JSON value (`feed tail`,
`spark-sink run` and `spark-sink query`: as a line for each event, batch or row). Fields that the
API has, too, have the same names. Progress and errors are on standard error, and the exit code is
the same as without it.
"""


def _sections(name: str, command: click.Command, parent: click.Context | None) -> Iterator[str]:
    """Yield the help of a command and of all below it."""
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100)
    if parent is not None:
        yield f"## {context.command_path}\n"
    yield f"```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            if found is not None and not found.hidden:
                yield from _sections(each, found, context)


def _http() -> str:
    from recon_node.api.app import openapi_document

    described = openapi_document()
    lines = [
        "# HTTP API, all requests",
        "",
        "A running node serves this description as OpenAPI at `/openapi.json`, and as a "
        "page to try it out at `/docs`. [The HTTP API](../api.md) explains it.",
        "",
    ]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            lines += _operation(method.upper(), path, operation)
    return "\n".join(lines)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## {method} {path}\n"
    yield f"{operation.get('description') or operation.get('summary', '')}\n"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "| parameter | in | type | meaning |"
        yield "|---|---|---|---|"
        for each in parameters:
            text = " ".join(each.get("description", "").split())
            kind = _kind(each.get("schema", {}))
            yield f"| `{each['name']}` | {each['in']} | {kind} | {_cell(text)} |"
        yield ""
    yield "| answer | meaning | body |"
    yield "|---|---|---|"
    for status, answer in operation["responses"].items():
        content = answer.get("content", {})
        bodies = ", ".join(_kind(each.get("schema", {})) or kind for kind, each in content.items())
        yield f"| {status} | {_cell(' '.join(answer['description'].split()))} | {bodies} |"
    yield ""


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(filter(None, map(_kind, schema["anyOf"])))
    if schema.get("type") == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    return str(schema.get("type", ""))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
