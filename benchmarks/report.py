"""What all benchmarks share: rows as a table for people, and as JSON for machines."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


def progress(text: str) -> None:
    """Say on standard error what is being measured, so that standard output stays clean."""
    print(f"  {text} ...", file=sys.stderr, flush=True)


def show(title: str, rows: Sequence[Row], json_file: Path | None) -> None:
    """Print the rows as a table, and write them as JSON where a file is named."""
    table = Table(title=f"{title} (Python {platform.python_version()}, {platform.machine()})")
    columns = list(rows[0])
    for column in columns:
        numeric = isinstance(rows[0][column], int | float)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_format(row[column]) for column in columns))
    Console(width=max(120, Console().width)).print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(list(rows), indent=1) + "\n")


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
