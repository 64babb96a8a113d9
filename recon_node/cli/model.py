"""`recon-node model`."""

from __future__ import annotations

import click

from recon_node.cli.listing import list_models
from recon_node.cli.stream import new_model


@click.group()
def model() -> None:
    """List and create models."""


model.add_command(list_models)
model.add_command(new_model)
