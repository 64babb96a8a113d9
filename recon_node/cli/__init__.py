"""The command line. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import click

from recon_node import __version__
from recon_node.cli.dag import dag
from recon_node.cli.events import events
from recon_node.cli.interests import interests
from recon_node.cli.peers import peers, status
from recon_node.cli.run import identity, run
from recon_node.cli.standard_output import CarefulGroup
from recon_node.cli.store import store
from recon_node.cli.stream import stream
from recon_node.cli.tangle import tangle
from recon_node.cli.testnet import testnet

__all__ = ["main"]


@click.group(
    cls=CarefulGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Try it: `recon-node testnet` starts three nodes on this machine. "
    "`recon-node COMMAND --help` explains a command.",
)
@click.version_option(__version__, prog_name="recon-node")
def main() -> None:
    """A node of the Ceramic network.

    It keeps a set of events equal to its peers' (Recon, over libp2p), in a log on disk, and serves
    that log as a feed over HTTP.
    """


for command in (
    run,
    identity,
    events,
    dag,
    interests,
    peers,
    status,
    store,
    stream,
    tangle,
    testnet,
):
    main.add_command(command)
