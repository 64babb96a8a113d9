"""`recon-node testnet`."""

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from recon_node.base.terminal import counted, json_option, one_line, print_json
from recon_node.cli.command import make_console, make_table, number_option
from recon_node.testnet import Testnet, TestnetError


@click.command()
@number_option("--nodes", 3, "N", "Number of nodes.", least=1, most=50)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep data and logs in DIR; the same nodes continue when it is used again.  "
    "[default: a temporary directory]",
)
@click.option(
    "--network",
    metavar="NAME",
    help="The network's name.  [default: that of DIR, or local-<random number>]",
)
@number_option(
    "--sync-interval",
    2.0,
    "SECONDS",
    "Time between syncs while there are no new events.",
    least=0.1,
)
@click.option(
    "--anchor",
    is_flag=True,
    help="Anchor written events every ten seconds, by a clock that proves nothing.",
)
@json_option
def testnet(
    nodes: int,
    directory: Path | None,
    network: str | None,
    sync_interval: float,
    anchor: bool,
    as_json: bool,
) -> None:
    """Run several nodes on this machine until Ctrl-C.

    Each node is a process on free ports. The others only know the address of the first one, and
    find each other through the DHT. All nodes stop with the command, however it ends. --json
    prints the URLs once, as soon as all nodes answer.

    \b
    Example, with the URLs that the command prints:
      recon-node testnet --nodes 3
      recon-node events add events.jsonl --url http://127.0.0.1:41234
      recon-node status --url http://127.0.0.1:45678
    """
    signal.signal(signal.SIGTERM, _interrupt)
    flags = ["--sync-interval", str(sync_interval)]
    if anchor:
        flags += ["--development-time", "--anchor", "development", "--anchor-interval", "10s"]
    console = make_console(stderr=as_json)
    with one_line(TestnetError):
        net = Testnet(nodes, directory, network, flags)
        try:
            with console.status(f"starting {counted(nodes, 'node')}"):
                net.start()
            console.print(f"network {net.network}; data and logs in {net.directory}")
            if as_json:
                print_json(_facts(net))
            else:
                console.print(_table(net))
            console.print("Press Ctrl-C to stop.")
            _watch(net, console)
        except KeyboardInterrupt:
            console.print("stopping")
        finally:
            net.stop()


def _facts(net: Testnet) -> dict[str, Any]:
    return {
        "network": net.network,
        "directory": str(net.directory),
        "nodes": [
            {"name": node.name, "url": node.api_url, "pid": node.pid, "peer_id": node.peer_id}
            for node in net.nodes
        ],
    }


def _table(net: Testnet) -> Table:
    table = make_table("node", "API", "pid", "peer id")
    for node in net.nodes:
        table.add_row(node.name, node.api_url, str(node.pid), node.peer_id)
    return table


def _watch(net: Testnet, console: Console) -> None:
    """Wait for Ctrl-C, and report each node that stops by itself."""
    running = list(net.nodes)
    while True:
        for node in [node for node in running if not node.running]:
            running.remove(node)
            console.print(f"{node.name} has stopped; its last log lines:\n{node.log_tail()}")
        time.sleep(0.5)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
