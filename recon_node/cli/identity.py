"""`recon-node id`."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from recon_node.cli.client import node_options
from recon_node.cli.output import CommandError
from recon_node.cli.settings_flags import SettingsCommand, read_settings
from recon_node.connection import Connection
from recon_node.terminal_text import echo, json_option, print_json


@click.command("id", cls=SettingsCommand)
@click.option("--create", is_flag=True, help="Create the identity if the directory has none.")
@node_options
@json_option
@click.pass_context
def identity(
    context: click.Context,
    config: Path | None,
    data_dir: Path | None,
    create: bool,
    node: Connection,
    as_json: bool,
) -> None:
    """Print a node's peer id.

    By default it is read from the identity in the data directory; the node need not run. With --url
    (or RECON_NODE_URL), the running node there is asked, and --json shows its addresses as well.

    A node creates its identity when it first runs. To know its id before that, use --create.

    \b
    Examples: the address that other nodes can use as --bootstrap
      echo /ip4/192.0.2.7/tcp/4101/p2p/$(recon-node id)
      echo /ip4/192.0.2.7/tcp/4101/p2p/$(recon-node id --create --data-dir /var/lib/new-node)
      recon-node id --url http://127.0.0.1:5201 --json
    """
    is_remote = context.get_parameter_source("url") is not ParameterSource.DEFAULT
    if is_remote and data_dir is None and not create:
        answer = node.request("GET", "/ceramic/recon")
        found = {"peer_id": answer["peer_id"], "addresses": answer["addresses"]}
    else:
        if context.get_parameter_source("url") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--url asks a running node: leave out --data-dir and --create")
        found = {"peer_id": _local_peer_id(config, data_dir, create)}
    if as_json:
        print_json(found)
    else:
        echo(found["peer_id"])


def _local_peer_id(config: Path | None, data_dir: Path | None, create: bool) -> str:
    from recon_node.p2p import P2PError
    from recon_node.p2p.transport.identity import IDENTITY_FILE, open_identity, peer_id_of

    directory = read_settings(config, {"data_dir": data_dir}).data_dir
    path = directory / IDENTITY_FILE
    is_new = not path.exists()
    if is_new and not create:
        raise CommandError(
            f"{directory} has no identity yet: `recon-node run` creates it, or `recon-node id "
            "--create`. If the node's directory is another one, name it with --data-dir"
        )
    try:
        peer_id = peer_id_of(open_identity(directory))
    except P2PError as error:
        raise CommandError(str(error)) from None
    if is_new:
        echo(f"created a new identity: {path}", err=True)
    return peer_id
