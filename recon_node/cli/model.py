"""`recon-node model`."""

from __future__ import annotations

from pathlib import Path

import click

from recon_node.cli.client import node_options
from recon_node.cli.listing import list_models
from recon_node.cli.output import CommandError
from recon_node.cli.stream import client_of, new_model
from recon_node.client.codegen import read_models, typed_dicts
from recon_node.connection import Connection
from recon_node.terminal_text import echo


@click.group()
def model() -> None:
    """List and create models, and write Python types of their documents."""


@click.command("codegen")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write to this file, instead of standard output.",
)
@node_options
def codegen(models: tuple[str, ...], out: Path | None, node: Connection) -> None:
    """Write Python types of the documents of each MODEL, a StreamID.

    They are TypedDicts, for mypy and pyright; they need only the standard library. The models that
    these relate to, or implement, are written, too. The same models give the same text.

    \b
    Example:
      recon-node model codegen kjzl6hvf... --out blog_models.py
    """
    with client_of(node) as ceramic:
        code = typed_dicts(read_models(ceramic, models))
    if out is None:
        echo(code.removesuffix("\n"), lines=True)
        return
    try:
        out.write_text(code, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{out}: {error.strerror or error}") from None


model.add_command(codegen)
model.add_command(list_models)
model.add_command(new_model)
