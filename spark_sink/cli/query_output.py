"""Printing query results: JSON lines for programs, a table on a terminal."""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from rich.console import Console
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from recon_node.terminal_text import echo
from spark_sink.query.hints import Findings, hints
from spark_sink.query.question import QueryAnswer, run_query
from spark_sink.query.show import to_json, to_text
from spark_sink.tables.location import Location
from spark_sink.tables.versions import At

_ANY_WIDTH: Final = 1_000_000
# Characters of a value that are shown on a terminal: a few lines.
_MAX_CELL: Final = 500


def ask(tables: Location, sql: str, at: At, *, as_json: bool, wide: bool) -> None:
    """Run a query, print its result, and print everything else on standard error.

    On a terminal, long values are cut unless `wide`.

    Ctrl-C ends the process, because some of DuckDB's operations cannot be interrupted.
    """
    try:
        with run_query(tables, sql, at) as answer:
            found = Findings(len(answer.columns))
            noted = replace(answer, rows=found.noted(answer.rows))
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
        echo(f"{answer.written} rows written", err=True)
    if answer.columns:
        for hint in hints(sql, found):
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


def print_table(answer: QueryAnswer, console: Console, *, wide: bool = False) -> None:
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
