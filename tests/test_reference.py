"""The API reference can be built, and its docstrings say what they should."""

import ast
import builtins
import importlib
import inspect
import re
import runpy
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pdoc.doc
import pytest

ROOT = Path(__file__).parent.parent
REFERENCE = runpy.run_path(str(ROOT / "config" / "reference.py"))
PAGES: tuple[str, ...] = REFERENCE["PAGES"]

BUGS = {"AssertionError", "NotImplementedError", "RuntimeError"}
"""Errors that say that the program is wrong, not the caller."""


def members(namespace: pdoc.doc.Namespace[Any]) -> Iterator[pdoc.doc.Doc[Any]]:
    """The public objects that a page documents."""
    for name, member in namespace.members.items():
        own = member.modulename.startswith(("recon_node", "spark_sink"))
        if name.startswith("_") or member.is_inherited or not own:
            continue
        yield member
        if isinstance(member, pdoc.doc.Class):
            yield from members(member)


def raised(function: Callable[..., Any]) -> set[str]:
    """The names of the errors that a function raises itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = set()
    todo: list[ast.AST] = list(tree.body[0].body)  # type: ignore[attr-defined]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            names.add(ast.unparse(node.exc.func))
        todo.extend(ast.iter_child_nodes(node))
    return {name for name in names if name[:1].isupper()} - BUGS


def covers(documented: str, name: str, scope: dict[str, Any]) -> bool:
    """Whether an error is the documented one, or a kind of it."""
    kinds = [scope.get(text, getattr(builtins, text, None)) for text in (documented, name)]
    both = [kind for kind in kinds if isinstance(kind, type)]
    return documented == name or (len(both) == 2 and issubclass(both[1], both[0]))


@pytest.mark.parametrize("page", PAGES)
def test_every_public_object_is_described(page: str) -> None:
    wrong = []
    for member in members(pdoc.doc.Module(importlib.import_module(page))):
        if isinstance(member, pdoc.doc.Variable | pdoc.doc.Module):
            continue  # a variable's name may say it all
        if not member.docstring:
            wrong.append(f"{member.fullname} has no docstring")
        elif isinstance(member, pdoc.doc.Function):
            function = inspect.unwrap(getattr(member.obj, "__func__", member.obj))
            said = re.findall(r"\w+(?=[^\n]*:)", member.docstring.partition("Raises:")[2])
            wrong += [
                f"{member.fullname} raises {name}, which its docstring does not say"
                for name in raised(function)
                if not any(covers(text, name, function.__globals__) for text in said)
            ]
    assert wrong == []
