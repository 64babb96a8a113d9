"""`recon-node key new` and `recon-node key show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from recon_node.cli.output import CommandError
from recon_node.client import Key, KeyFileError
from recon_node.json_output import json_option, print_result


@click.group("key")
def key() -> None:
    """Make keys that sign events."""


@key.command("new")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--kind",
    type=click.Choice(["ed25519", "secp256k1", "p256"]),
    default="ed25519",
    show_default=True,
    help="The kind of key.",
)
@json_option
def new_key(file: Path, kind: Any, as_json: bool) -> None:
    """Write a new key to FILE, which only you can read, and print its did:key.

    \b
    Example:
      recon-node key new my.key
    """
    made = Key.generate(kind)
    try:
        made.save(file)
    except KeyFileError as error:
        raise CommandError(str(error)) from None
    _print_key(made, file, as_json=as_json)


@key.command("show")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def show_key(file: Path, as_json: bool) -> None:
    """Print the did:key of the key in FILE."""
    try:
        found = Key.load(file)
    except KeyFileError as error:
        raise CommandError(str(error)) from None
    _print_key(found, file, as_json=as_json)


def _print_key(key: Key, file: Path, *, as_json: bool) -> None:
    print_result({"did": key.did, "file": str(file)}, key.did, as_json=as_json)
