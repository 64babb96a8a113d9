"""`recon-node completion`: shell completion, installed by one command."""

from __future__ import annotations

import click

from recon_node.shell_completion import completion_command


def _main() -> click.Command:
    from recon_node.cli import main

    return main


completion = completion_command("recon-node", _main)
