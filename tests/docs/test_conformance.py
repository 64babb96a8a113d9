"""The table of the specifications names code and tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| ([A-F]\d+[a-c]?) \| (.+) \| (.*) \| (.*) \| (.*) \|")


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of the tests in a file, without importing it."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


def test_every_statement_has_a_test_or_says_how_it_differs() -> None:
    rows = [
        match.groups()
        for line in (ROOT / "docs" / "conformance.md").read_text().splitlines()
        if (match := ROW.fullmatch(line))
    ]
    assert len(rows) == 226
    assert len({row[0] for row in rows}) == 226
    for number, _, code, tests, difference in rows:
        named = re.findall("`([^`]+)`", tests)
        assert named or difference.strip(), number
        for test in named:
            file, _, name = test.partition("::")
            assert (ROOT / "tests" / file).is_file(), f"{number}: there is no tests/{file}"
            assert name in names_in(file), f"{number}: {file} has no {name}"
        for place in re.findall("`([^`]+)`", code):
            assert (ROOT / "recon_node" / place).exists() or (ROOT / place).exists(), number
