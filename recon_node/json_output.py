"""Results of commands for other programs: the option `--json`, and what it prints.

`recon-node` and `spark-sink` share it. With `--json`, a command prints one JSON value on standard
output, and nothing else there: progress, hints and errors are on standard error, and the exit code
is the same as without it. Fields that the node's API has, too, have its names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from recon_node.terminal_text import echo

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2))


def print_result(facts: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Print what a command did: its facts as JSON, or the text."""
    if as_json:
        print_json(facts)
    else:
        echo(text, lines=True)


def keep_stdout_for_json(as_json: bool, *files: Path | None) -> None:
    """Raise `UsageError` if JSON and a file would both go to standard output."""
    if as_json and Path("-") in files:
        raise click.UsageError("with --json, standard output has the JSON: name a file, not -")
