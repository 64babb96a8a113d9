"""Tables and other text on standard output, whole also where that is no terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import click
from rich.console import Console
from rich.table import Table

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")

WIDTH_OF_FILES = 200
"""Columns, where the output is no terminal that has a width: ids and addresses fit unbroken."""


def color_system() -> Literal["auto"] | None:
    """What rich may style text with: nothing, not even bold, where NO_COLOR is set."""
    return None if os.environ.get("NO_COLOR") else "auto"


def make_console(*, stderr: bool = False) -> Console:
    """A console on standard output, or standard error, which prints text as it is.

    By default rich would take the middle of `did:key:z6Mk...` for an emoji, and `[...]` for markup.
    """
    console = Console(
        highlight=False, emoji=False, markup=False, stderr=stderr, color_system=color_system()
    )
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    return console


def interest_text(interest: Mapping[str, str]) -> str:
    """An interest of the API's JSON as `recon-node interests add` takes it."""
    names = {"controller": "controller", "streamId": "stream"}
    fields = [f"{name}={interest[key]}" for key, name in names.items() if key in interest]
    return " ".join([f"{interest['sep']}={interest['sepValue']}", *fields])


def make_table(*columns: str, numbers: tuple[str, ...] = (), title: str | None = None) -> Table:
    """A plain table. Text that is too wide is folded, never cut: it may have to be copied.

    Args:
        columns: the headings.
        numbers: those of them whose column is right-aligned.
        title: a line above the table.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        justify = "right" if column in numbers else "left"
        table.add_column(column, overflow="fold", justify=justify)  # type: ignore[arg-type]
    return table
