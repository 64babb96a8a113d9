"""What a client asks in SQL: one SELECT, its parameters, and whether it follows a feed.

DuckDB parses the text, and gives its syntax tree as JSON. From the tree we know that it is a
SELECT, which tables it reads and where its parameters are. Two things are written otherwise in the
SQL of ceramic-one, and are translated:

- `X'01ab'` is a value of bytes; to DuckDB it would be the text `x01ab`;
- a cast of bytes to text decodes UTF-8, as in `data::varchar->'content'`; DuckDB would escape the
  bytes. `text_of` is a macro that does so only to bytes.

A table `NAME_feed` has the rows of `NAME`, and those to come. So a query of a feed must be one that
can be answered row by row: columns and conditions, and how many rows at most.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection, StatementType

from spark_sink.errors import RequestError, invalid_request
from spark_sink.serve.allowed import Allowed

FEED: Final = "_feed"
"""The end of the name of a feed."""
TEXT_OF: Final = "text_of"
"""The macro that a cast to text becomes."""

_QUOTED: Final = re.compile(
    r"""[eE]'(?:\\.|''|[^'\\])*'|(?<!\w)[xX]'(?P<hex>[^']*)'|'(?:''|[^'])*'|"(?:""|[^"])*"
    |--[^\n]*|/\*.*?\*/|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$""",
    re.DOTALL | re.VERBOSE,
)
_TREE: Final = "SELECT json_serialize_sql(?::VARCHAR)"
_TEXT: Final = "SELECT json_deserialize_sql(?::JSON)"
_ADVICE: Final = r" (?:Possible solutions:|Database is launched|Did you mean)"
"""How the rest of a message of DuckDB begins, which is for those who can change its settings."""
_ONLY_SELECT: Final = "send one SELECT: the tables are read-only here"

Node = dict[str, Any]
"""A node of the syntax tree."""


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """A statement of a client.

    Attributes:
        text: as DuckDB executes it.
        tables: the names of the tables that it reads, without schemas.
        parameters: the type of each, by name, in the order of their numbers.
        feed: the table whose feed it follows, as schema (may be empty) and name; None: none.
        limit: how many rows it returns at most: a number, or the name of a parameter; None: all.
    """

    text: str
    tables: frozenset[str]
    parameters: Mapping[str, pa.DataType]
    feed: tuple[str, str] | None
    limit: int | str | None


def understand(connection: DuckDBPyConnection, sql: str, allowed: Allowed) -> SqlStatement:
    """Parse a client's statement, which may use what is allowed."""
    text = _with_bytes(sql)
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as error:
        raise query_error(error) from error
    if len(statements) != 1 or statements[0].type != StatementType.SELECT:
        raise invalid_request(_ONLY_SELECT)
    text = statements[0].query
    tree = _tree(connection, text)
    root = tree["statements"][0]["node"]
    allowed.check(list(_nodes(root)))
    if _decode_casts(root):
        text = _text(connection, tree)
    tables = list(_tables(root))
    feeds = [table for table in tables if table[1].endswith(FEED)]
    if feeds:
        _check_feed(connection, root, feeds)
    return SqlStatement(
        text=text.strip().rstrip(";"),
        tables=frozenset(name for _, name in tables),
        parameters=_parameters(connection, tree),
        feed=feeds[0] if feeds else None,
        limit=_limit(root),
    )


def query_error(error: Exception) -> RequestError:
    """Return the error for a query that DuckDB refuses or cannot finish."""
    text = re.split(r"\n\s*(?:LINE \d+:|At:)", str(error))[0]
    text = re.split(_ADVICE, " ".join(text.split()))[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        return RequestError("RESOURCE_EXHAUSTED", f"the query needs too much memory: {text}")
    if isinstance(error, duckdb.InternalException):
        return RequestError("INTERNAL", text)
    return invalid_request(text)


def _with_bytes(sql: str) -> str:
    """Write the literals X'...' as DuckDB does."""

    def written(match: re.Match[str]) -> str:
        digits = match["hex"]
        if digits is None:
            return match[0]
        if len(digits) % 2 or not re.fullmatch("[0-9a-fA-F]*", digits):
            raise invalid_request(f"X'{digits[:40]}' is not bytes in hex")
        return f"unhex('{digits}')"

    return _QUOTED.sub(written, sql)


def _tree(connection: DuckDBPyConnection, text: str) -> Node:
    row = connection.execute(_TREE, [text]).fetchone()
    tree: Node = json.loads(row[0]) if row else {"error": True}
    if tree["error"]:
        raise invalid_request(_ONLY_SELECT)
    return tree


def _text(connection: DuckDBPyConnection, tree: Node) -> str:
    row = connection.execute(_TEXT, [json.dumps(tree)]).fetchone()
    assert row is not None
    return str(row[0])


def _nodes(node: Any) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _decode_casts(root: Node) -> bool:
    """Replace the casts to text by calls of `text_of`; return whether there was one."""
    casts = [
        node
        for node in _nodes(root)
        if node.get("class") == "CAST"
        and node["cast_type"]["id"] == "VARCHAR"
        and not node["try_cast"]
    ]
    for node in casts:
        child, alias, location = node["child"], node["alias"], node["query_location"]
        names = child.get("column_names") or [""]
        node.clear()
        node.update(_call(TEXT_OF, child), alias=alias or names[-1], query_location=location)
    return bool(casts)


def _call(name: str, argument: Node) -> Node:
    return {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "function_name": name,
        "schema": "",
        "catalog": "",
        "children": [argument],
        "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False,
        "is_operator": False,
        "export_state": False,
    }


def _tables(root: Node) -> Iterator[tuple[str, str]]:
    for node in _nodes(root):
        if node.get("type") == "BASE_TABLE":
            yield node["schema_name"].lower(), node["table_name"].lower()


def _limit(root: Node) -> int | str | None:
    """Return the limit of the outermost SELECT, if it is a number or a parameter."""
    for modifier in root.get("modifiers") or []:
        if modifier["type"] == "LIMIT_MODIFIER" and (limit := modifier["limit"]):
            if limit["class"] == "CONSTANT":
                value = limit["value"]
                return value["value"] if value["type"]["id"] in ("INTEGER", "BIGINT") else None
            if limit["class"] == "PARAMETER":
                return str(limit["identifier"])
    return None


def _check_feed(connection: DuckDBPyConnection, root: Node, feeds: list[tuple[str, str]]) -> None:
    """Raise an error if the query of a feed cannot be answered row by row."""
    name = feeds[0][1]
    simple = root["type"] == "SELECT_NODE" and root["from_table"]["type"] == "BASE_TABLE"
    if len(feeds) > 1 or not simple or root["from_table"]["table_name"].lower() != name:
        raise invalid_request(
            f"{name} never ends: read it alone, as SELECT ... FROM {name} [WHERE ...] [LIMIT ...], "
            f"or read {name.removesuffix(FEED)}"
        )
    for what, is_endless in _endless(connection, root):
        if is_endless:
            raise invalid_request(
                f"{name} never ends, so that {what} would never be complete: read "
                f"{name.removesuffix(FEED)}, or leave it out"
            )


def _endless(connection: DuckDBPyConnection, root: Node) -> Iterator[tuple[str, bool]]:
    """Yield what needs all rows, and whether the query has it."""
    modifiers = {modifier["type"]: modifier for modifier in root["modifiers"]}
    limit = modifiers.get("LIMIT_MODIFIER", {"limit": None, "offset": None})
    yield "ORDER BY", "ORDER_MODIFIER" in modifiers
    yield "DISTINCT", "DISTINCT_MODIFIER" in modifiers
    yield "OFFSET", bool(limit["offset"])
    yield "such a LIMIT", bool(limit["limit"]) and _limit(root) is None
    yield "a LIMIT in percent", "LIMIT_PERCENT_MODIFIER" in modifiers
    grouped = root["group_expressions"] or root["aggregate_handling"] != "STANDARD_HANDLING"
    yield "GROUP BY", bool(grouped)
    yield "HAVING", bool(root["having"])
    yield "QUALIFY", bool(root["qualify"])
    yield "a sample", bool(root["sample"] or root["from_table"]["sample"])
    nodes = list(_nodes(root["select_list"]))
    yield "a window function", any(node.get("class") == "WINDOW" for node in nodes)
    called = {str(node.get("function_name")).lower() for node in nodes if "function_name" in node}
    if called:
        row = connection.execute(
            "SELECT count(*) FROM duckdb_functions() "
            "WHERE function_type = 'aggregate' AND list_contains(?, function_name)",
            [list(called)],
        ).fetchone()
        yield "an aggregate", bool(row and row[0])


def _parameters(connection: DuckDBPyConnection, tree: Node) -> dict[str, pa.DataType]:
    """Return the type of each parameter: that of what it is compared with, or text.

    DuckDB itself chooses the types only when it knows the values.
    """
    statement = tree["statements"][0]
    numbered = sorted(statement["named_param_map"], key=lambda parameter: int(parameter["value"]))
    types: dict[str, pa.DataType] = {}
    if numbered:
        _infer(statement["node"], None, lambda e, scope: _type_of(connection, e, scope), types)
    return {parameter["key"]: types.get(parameter["key"], pa.string()) for parameter in numbered}


def _infer(
    node: Any,
    scope: Node | None,
    type_of: Callable[[Node, Node | None], pa.DataType | None],
    types: dict[str, pa.DataType],
) -> None:
    """Note the types of the parameters below a node, which is in the SELECT `scope`."""
    if isinstance(node, list):
        for item in node:
            _infer(item, scope, type_of, types)
        return
    if not isinstance(node, dict):
        return
    if node.get("type") == "SELECT_NODE":
        scope = node
    parameters, others = _compared(node)
    for parameter in parameters:
        if node.get("type") == "LIMIT_MODIFIER":
            types.setdefault(parameter["identifier"], pa.int64())
        elif known := next((kind for other in others if (kind := type_of(other, scope))), None):
            types.setdefault(parameter["identifier"], known)
    for item in node.values():
        _infer(item, scope, type_of, types)


def _compared(node: Node) -> tuple[list[Node], list[Node]]:
    """Return the parameters that a node compares or casts, and what it compares them with."""
    kind, form = node.get("class"), node.get("type")
    if form == "LIMIT_MODIFIER":
        members = [node["limit"], node["offset"]]
    elif kind == "COMPARISON":
        members = [node["left"], node["right"]]
    elif kind == "BETWEEN":
        members = [node["input"], node["lower"], node["upper"]]
    elif kind == "OPERATOR" and form in ("COMPARE_IN", "COMPARE_NOT_IN"):
        members = node["children"]
    elif kind == "CAST" and node["child"].get("class") == "PARAMETER":
        null = {"type": {"id": "NULL", "type_info": None}, "is_null": True}
        value = {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "value": null}
        return [node["child"]], [{**node, "child": {**value, "query_location": 0}}]
    else:
        return [], []
    present = [member for member in members if member]
    parameters = [member for member in present if member.get("class") == "PARAMETER"]
    return parameters, [member for member in present if member.get("class") != "PARAMETER"]


def _type_of(
    connection: DuckDBPyConnection, expression: Node, scope: Node | None
) -> pa.DataType | None:
    """Return the type of an expression in a SELECT; None if it is unknown."""
    if scope is None:
        return None
    select = {**scope, "modifiers": [], "select_list": [expression], "where_clause": None}
    select |= {"group_expressions": [], "group_sets": [], "having": None, "qualify": None}
    tree = {"error": False, "statements": [{"node": select, "named_param_map": []}]}
    try:
        text = _text(connection, tree)
        kind = connection.execute(f"SELECT * FROM ({text}) LIMIT 0").to_arrow_reader().schema[0]
    except duckdb.Error:  # it has parameters itself, or belongs to an outer SELECT
        return None
    return kind.type
