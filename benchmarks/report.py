"""Shared by all benchmarks: printing rows as a table, and writing them as JSON.

A row is a flat mapping; `machine` says in words what it was measured on.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
from argparse import ArgumentParser, ArgumentTypeError, RawTextHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

Row = dict[str, Any]
T = TypeVar("T")


def progress(text: str) -> None:
    """Say on standard error what is being measured, so that standard output stays clean."""
    print(f"  {text} ...", file=sys.stderr, flush=True)


def track(steps: Sequence[T], describe: Callable[[T], str]) -> Iterator[T]:
    """Yield the steps, with a progress bar on a terminal, else with a line for each.

    What one step leaves behind is collected before the next, for that is not the next one's cost.
    """
    gc.freeze()
    try:
        for step in _track(steps, describe):
            gc.collect()
            yield step
    finally:
        gc.unfreeze()


def _track(steps: Sequence[T], describe: Callable[[T], str]) -> Iterator[T]:
    console = Console(stderr=True)
    if not console.is_terminal:
        for step in steps:
            progress(describe(step))
            yield step
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(steps))
        for step in steps:
            bar.update(task, description=describe(step))
            yield step
            bar.advance(task)


def numbers(text: str) -> list[int]:
    """Read a list such as `10000,1000000` (the type of a command-line option)."""
    listed = text.split(",")
    if not all(size.isdecimal() for size in listed):
        raise ArgumentTypeError(f"{text!r} is not a list of numbers like 0,1,100")
    return [int(size) for size in listed]


def count(text: str) -> int:
    """Read a number from 1 on (the type of a command-line option)."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def new_file(text: str) -> Path:
    """Read where to write a file, so that a typo does not cost a whole run (an option's type)."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ArgumentTypeError(f"no file can be written at {text!r}")
    return path


def command_line(module: str, description: str | None) -> ArgumentParser:
    """Return the parser of a benchmark's command line, to which its options are to be added."""
    parser = ArgumentParser(
        prog=f"python -m benchmarks.{module}",
        description=description,
        formatter_class=RawTextHelpFormatter,
    )
    help_ = "write the rows there as JSON"
    parser.add_argument("--json", type=new_file, metavar="FILE", help=help_)
    return parser


def machine() -> str:
    """Describe this machine in a few words."""
    processor = _processor() or platform.machine()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{os.cpu_count()} cores, {processor}, {platform.system()}, {python}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")


def show(title: str, rows: Sequence[Row], json_file: Path | None) -> None:
    """Print the rows as a table, and write them as JSON where a file is named."""
    described = [row if "machine" in row else {**row, "machine": machine()} for row in rows]
    samples = {column: value for row in described for column, value in row.items()}
    del samples["machine"]
    table = Table(title=title, caption=described[0]["machine"])
    for column, sample in samples.items():
        numeric = isinstance(sample, int | float)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in described:
        table.add_row(*(_format(row.get(column, "")) for column in samples))
    Console(width=max(140, Console().width)).print(table)
    if json_file is not None:
        write_rows(described, json_file)


def write_rows(rows: Iterable[Row], json_file: Path) -> None:
    """Write rows as a JSON list, one row per line."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    json_file.write_text(f"[\n{lines}\n]\n")


def read_rows(json_files: Iterable[Path]) -> list[Row]:
    """Read the rows of some files, one after the other."""
    return [row for file in json_files for row in json.loads(file.read_text())]


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
