"""`recon-node run` and `recon-node id`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recon_node.cli.errors import BadSettingsError, CommandError

if TYPE_CHECKING:
    from recon_node.settings import Settings

SHUTDOWN_LIMIT = 4.5
"""Seconds; an orderly end that takes longer is cut short. What was acknowledged is on disk."""

config_option = click.option(
    "--config",
    envvar="RECON_NODE_CONFIG",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="TOML file with settings; config/recon-node.toml in the source shows them all.",
)
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the identity and the event log live.  [default: ~/.recon-node]",
)


@click.command()
@config_option
@data_dir_option
@click.option(
    "--network",
    metavar="NAME",
    help="mainnet, testnet-clay, dev-unstable, inmemory or local-NUMBER.  [default: testnet-clay]",
)
@click.option(
    "--interest",
    "interests",
    multiple=True,
    metavar="INTEREST",
    help="What to sync: a model's or a document's StreamID, or 'model=STREAM_ID controller=DID'; "
    "may be repeated.  [default: everything of the network]",
)
@click.option(
    "--listen",
    multiple=True,
    metavar="MULTIADDR",
    help="Where peers connect to; may be repeated.  [default: /ip4/0.0.0.0/tcp/4101]",
)
@click.option(
    "--announce",
    multiple=True,
    metavar="MULTIADDR",
    help="An address told to peers instead, for a node behind NAT; may be repeated.",
)
@click.option(
    "--bootstrap",
    multiple=True,
    metavar="MULTIADDR",
    help="A peer to join the network by, with /p2p/PEER_ID; may be repeated.",
)
@click.option(
    "--peer-id-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the peer id to FILE once the node listens, for others' --bootstrap.",
)
@click.option(
    "--discovery/--no-discovery", default=None, help="Find peers, and be found, by the DHT."
)
@click.option(
    "--sync-interval",
    type=float,
    metavar="SECONDS",
    help="Time between syncs with known peers while nothing is new.  [default: 30]",
)
@click.option(
    "--api", metavar="HOST:PORT", help="Where the HTTP API listens.  [default: 127.0.0.1:5101]"
)
@click.option(
    "--chain-rpc",
    multiple=True,
    metavar="CHAIN=URL",
    help="A JSON-RPC endpoint to check time events by, like eip155:1=https://...; may be repeated. "
    "A URL with a key in it is better kept in the file or the environment.",
)
@click.option(
    "--chain-confirmations",
    metavar="BLOCKS",
    help="Blocks after which an anchor's block counts, or finalized.  [default: finalized]",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file with the token that clients of the API must show.",
)
@click.option(
    "--token-for",
    type=click.Choice(["writes", "all"]),
    help="What the token is asked for: whatever changes the node, or everything.  "
    "[default: writes]",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "pretty", "json"]),
    help="auto: pretty on a terminal, JSON lines otherwise.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The least important lines to write.  [default: info]",
)
@click.option("--watch-stdin", is_flag=True, hidden=True, help="End when standard input closes.")
def run(config: Path | None, watch_stdin: bool, **flags: Any) -> None:
    """Run a node until SIGTERM or Ctrl-C.

    Every setting can stand in the TOML file, in the environment (RECON_NODE_DATA_DIR, ...) or in a
    flag; a flag beats the environment, which beats the file.

    \b
    Examples:
      recon-node run
      recon-node run --network local-7 --data-dir /tmp/a --api 127.0.0.1:0 \\
        --listen /ip4/127.0.0.1/tcp/4201
      recon-node run --interest kjzl6hvfrbw6c... --interest 'model=k... controller=did:key:z...'
      recon-node run --config /etc/recon-node.toml
    """
    import structlog
    import trio

    from recon_node.logs import configure_logging
    from recon_node.node import fatal_messages, run_node
    from recon_node.settings import unknown_variables

    settings = read_settings(config, flags)
    configure_logging(settings.log_format, settings.log_level)
    log = structlog.get_logger("recon_node")
    for name in unknown_variables():
        log.warning("An environment variable is not a setting", name=name)
    watchdog = threading.Timer(SHUTDOWN_LIMIT, _give_up)
    watchdog.daemon = True
    try:
        trio.run(partial(run_node, settings, watch_stdin=watch_stdin, on_ending=watchdog.start))
    except BaseException as error:
        messages = fatal_messages(error)
        if messages is None:
            log.critical("A bug ended the node", exc_info=error)
            raise CommandError("internal error: the log above has the details") from None
        raise CommandError("; ".join(messages)) from None
    finally:
        watchdog.cancel()


@click.command("id", short_help="Print this node's peer id.")
@config_option
@data_dir_option
def identity(config: Path | None, data_dir: Path | None) -> None:
    """Print this node's peer id.

    A data directory without an identity gets a new one, which standard error says: if that is not
    what you wanted, name the node's own directory with --data-dir.

    \b
    Example: the address that other nodes can use as --bootstrap
      echo /ip4/192.0.2.7/tcp/4101/p2p/$(recon-node id)
    """
    from recon_node.p2p import P2PError
    from recon_node.p2p.transport.identity import IDENTITY_FILE, open_identity, peer_id_of

    settings = read_settings(config, {"data_dir": data_dir})
    path = settings.data_dir / IDENTITY_FILE
    is_new = not path.exists()
    try:
        peer_id = peer_id_of(open_identity(settings.data_dir))
    except P2PError as error:
        raise CommandError(str(error)) from None
    if is_new:
        click.echo(f"made a new identity: {path}", err=True)
    click.echo(peer_id)


def read_settings(config: Path | None, flags: Mapping[str, Any]) -> Settings:
    """The settings of all layers; flags that were not given (None or empty) do not count."""
    from recon_node.settings import SettingsError, load_settings

    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    try:
        return load_settings(config, given)
    except SettingsError as error:
        raise BadSettingsError(str(error)) from None


def _give_up() -> None:
    """End the process at once; called when an orderly end takes too long."""
    sys.stderr.write(
        f"recon-node: not done after {SHUTDOWN_LIMIT} seconds, leaving now; "
        "every acknowledged event is on disk\n"
    )
    sys.stderr.flush()
    os._exit(1)
