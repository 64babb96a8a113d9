"""The docstrings below attributes, read from the source when somebody wants to see them.

pydantic can read them while it makes a class. But looking for the source of a hundred classes takes
a node a third of a second of CPU whenever it starts, and only the help, the example of a settings
file and the API's OpenAPI document show them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise


@cache
def attribute_docs(kind: type) -> dict[str, str]:
    """Return the docstrings of a class's attributes, by name, inherited ones included.

    Classes are found at the top of their modules. Those of other packages count as having none, and
    as do all attributes if the source is missing.
    """
    package = kind.__module__.partition(".")[0]
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.partition(".")[0] == package:
            found |= _docs_in(each.__module__).get(each.__name__, {})
    return found


@cache
def _docs_in(module: str) -> dict[str, dict[str, str]]:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # it has none, or is built in
        return {}
    classes = (each for each in ast.parse(source).body if isinstance(each, ast.ClassDef))
    return {class_.name: _docs_below(class_.body) for class_ in classes}


def _docs_below(body: list[ast.stmt]) -> dict[str, str]:
    found = {}
    for attribute, below in pairwise(body):
        match attribute, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found
