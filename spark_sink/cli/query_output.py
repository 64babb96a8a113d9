"""Printing query results: JSON lines for programs, a table on a terminal; and hints.

Hints are for a query that finds nothing because of a mistake that is valid SQL. CIDs and StreamIDs
are bytes in the tables, but people write them as text. Comparing bytes with text is valid SQL, but
they are never equal; so is reading JSON from bytes, but it finds nothing.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from rich.console import Console
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from recon_node.base.terminal import counted, echo
from recon_node.ceramic import StreamId, StreamIdError
from recon_node.ipld import CID, CidError
from spark_sink.query.question import QueryAnswer, run_query
from spark_sink.query.show import to_json, to_text
from spark_sink.tables.catalog import At
from spark_sink.tables.location import Location

_ANY_WIDTH: Final = 1_000_000
_MAX_CELL: Final = 500
"""Characters of a value that are shown on a terminal: a few lines."""


def ask(tables: Location, sql: str, at: At, *, as_json: bool, wide: bool) -> None:
    """Run a query, print its result, and print everything else on standard error.

    On a terminal, long values are cut unless `wide`.

    Ctrl-C ends the process, because some of DuckDB's operations cannot be interrupted.
    """
    try:
        with run_query(tables, sql, at) as answer:
            findings = Findings(len(answer.columns))
            noted = replace(answer, rows=findings.noted(answer.rows))
            if as_json:
                print_json(noted)
            elif answer.columns:
                colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
                print_table(noted, Console(highlight=False, color_system=colors), wide=wide)
    except KeyboardInterrupt:
        with suppress(OSError, RuntimeError):  # interrupted in the middle of a write
            sys.stdout.flush()
        echo("Aborted!", err=True)
        os._exit(130)
    if answer.written is not None:
        echo(f"{counted(answer.written, 'row')} written", err=True)
    if answer.columns:
        for hint in hints(sql, findings):
            echo(f"Hint: {hint}", err=True)


def print_json(answer: QueryAnswer) -> None:
    """Print each row as an object on its own line."""
    for row in answer.rows:
        echo(to_json(dict(zip(_distinct(answer.columns), row, strict=True))))


def _distinct(names: Iterable[str]) -> list[str]:
    """Number repeated names, as in a, a_1, a_2: the keys of an object must be unique."""
    seen: list[str] = []
    for name in names:
        number, new = 0, name
        while new in seen:
            number += 1
            new = f"{name}_{number}"
        seen.append(new)
    return seen


def print_table(answer: QueryAnswer, console: Console, *, wide: bool) -> None:
    """Print rows as a table; if they are wider than the terminal, one `name  value` per line.

    Long values are cut unless `wide`.
    """
    cell = partial(_cell, most=None if wide else _MAX_CELL)
    rows = list(answer.rows)
    if not rows:
        console.print("no rows", style="dim")
        return
    cells = [[cell(value) for value in row] for row in rows]
    table = Table(box=None, pad_edge=False)
    for name, is_number in zip(answer.columns, answer.numbers, strict=True):
        table.add_column(Text(name), overflow="fold", justify="right" if is_number else "left")
    for row in cells:
        table.add_row(*row)
    unbounded = console.options.update(width=_ANY_WIDTH)
    fits = Measurement.get(console, unbounded, table).maximum <= console.width
    # Nothing in a single column would show where a value of several lines ends.
    is_column = len(answer.columns) == 1
    if not any("\n" in row[0].plain for row in cells) if is_column else fits:
        console.print(table)
    else:
        _print_rows(answer.columns, cells, console)


def _print_rows(columns: Sequence[str], rows: Sequence[Sequence[Text]], console: Console) -> None:
    for number, row in enumerate(rows):
        if number:
            console.print(Rule(style="dim"))
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        for name, value in zip(columns, row, strict=True):
            table.add_row(Text(name, "bold"), value)
        console.print(table)


def _cell(value: Any, most: int | None) -> Text:
    text = to_text(value)
    if most is not None and len(text) > most:
        text = f"{text[:most]}… ({len(text):,} characters; --wide shows all of them)"
    return Text(text, "dim" if value is None else "")


_NAME: Final = r'(?:"?\w+"?\s*\.\s*)?("?(?:event_cid|stream_cid)"?|dimensions\s*\[[^\]]*\])'
_COMPARED: Final = (
    rf"(?<![\w.\"]){_NAME}\s*(?:==?|<>|!=)\s*'(\w+)'",
    rf"(?<![\w.\"]){_NAME}\s+(?:not\s+)?in\s*\(\s*'(\w+)'",
    rf"'(?P<text>\w+)'\s*(?:==?|<>|!=)\s*{_NAME}",
)
_JSON_IN_BYTES: Final = re.compile(r"\bdata\"?\s*->>?\s*('[^']*')", re.IGNORECASE)
# The query converts the column itself.
_DECODED: Final = re.compile(r"\bdecode\s*\(|\bas\s+\"?data\b", re.IGNORECASE)


class Findings:
    """Observes the rows of a result with some columns while they are read."""

    def __init__(self, columns: int) -> None:
        self._rows = 0
        self._something = False
        self._empty = set(range(columns))

    def noted(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Pass the rows on."""
        for row in rows:
            self._rows += 1
            if self._empty:
                self._empty = {i for i in self._empty if row[i] is None}
            if not self._something:
                self._something = any(value is not None and value != 0 for value in row)
            yield row

    @property
    def nothing(self) -> bool:
        """Whether there was no row, or only one of NULLs and zeros, such as a count or a sum."""
        return self._rows == 0 or (self._rows == 1 and not self._something)

    @property
    def no_values(self) -> bool:
        """Whether there was no row, or a column was always NULL."""
        return self._rows == 0 or bool(self._empty)


def hints(sql: str, findings: Findings) -> Sequence[str]:
    """Return the hints for a query with these findings."""
    texts = _bytes_as_text(sql) if findings.nothing else []
    json = _JSON_IN_BYTES.search(sql)
    if json and findings.no_values and not _DECODED.search(sql):
        texts.append(f"data is bytes: use decode(data)->{json[1]}")
    return texts


def _bytes_as_text(sql: str) -> list[str]:
    """Find binary columns that are compared with CIDs and StreamIDs as text."""
    hints_ = []
    for pattern in _COMPARED:
        for match in re.finditer(pattern, sql, re.IGNORECASE):
            text = match["text"] if "text" in match.re.groupindex else match[2]
            name = match[2] if "text" in match.re.groupindex else match[1]
            if function := _function(text, name):
                hints_.append(f"{name} is bytes, not text: compare it with {function}('{text}')")
    return list(dict.fromkeys(hints_))


def _function(text: str, name: str) -> str | None:
    """Return the function that turns text into a column's bytes; None if it is not an id."""
    try:
        StreamId.parse(text)
    except StreamIdError:
        pass
    else:
        return "from_stream_id" if name.startswith("dimensions") else "stream_cid_of"
    try:
        CID.parse(text)
    except CidError:
        return None
    return "from_cid"
