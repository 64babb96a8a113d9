"""`recon-node peers`: whom a node knows."""

import time
from typing import NotRequired, TypedDict

import click
from click.core import ParameterSource

from recon_node.base.connection import Connection, segment
from recon_node.base.terminal import (
    CommandError,
    command_errors,
    counted,
    echo,
    json_option,
    node_options,
    print_json,
    print_result,
)
from recon_node.cli.command import Seconds, make_console, make_table, understood

FIRST_SYNC = 3.0
"""Seconds that `peers add` waits for the first sync."""
RESPONSE_TIME = 0.7
"""Seconds after our own sync in which a peer of another network will have started one, too."""
CLOCK_SLACK = 1.0
"""Seconds by which a node's clock may differ from ours."""
SHARES_SHOWN = 3
ANOTHER_NETWORK = "another network"
"""How the outcome of a sync with such a peer begins; see `recon_node.p2p.sync.sessions`."""


class Peer(TypedDict):
    """What is shown of a peer; earlier versions of nodes say less."""

    id: str
    connected: bool
    addresses: list[str]
    speaks: NotRequired[list[str]]
    shares: NotRequired[list[str] | None]
    covers: NotRequired[float | None]
    latency: NotRequired[float | None]
    behind: NotRequired[float]
    score: NotRequired[float | None]
    last_sync: NotRequired[Seconds | None]


class Peers(TypedDict):
    """What is shown of GET /ceramic/recon."""

    peers: NotRequired[list[Peer]]
    removed_peers: NotRequired[list[str]]


@click.group(invoke_without_command=True)
@node_options
@json_option
@click.pass_context
def peers(context: click.Context, node: Connection, as_json: bool) -> None:
    """List the peers that a node knows, or connect it to another one.

    "shares" lists the interests that a peer has in common with this node, and the share of this
    node's events that they cover. "behind" is the share of the common events that one of the two
    lacked at the latest syncs; it halves every ten minutes, so it is high after a first sync.

    \b
    Examples:
      recon-node peers
      recon-node peers add /ip4/192.0.2.7/tcp/4101/p2p/12D3KooW...
      recon-node peers remove 12D3KooW...
    """
    context.obj = node  # for `peers add`: which node it is
    if context.invoked_subcommand is not None:
        return
    answer = node.request("GET", "/ceramic/recon")
    if as_json:
        print_json(answer.get("peers", []))
        return
    recon = understood(node, answer, Peers)
    known = recon.get("peers", [])
    numbers = ("latency", "behind", "score")
    columns = ("peer", "connected", "speaks", "shares", *numbers, "last sync", "addresses")
    table = make_table(*columns, numbers=numbers)
    for peer in sorted(known, key=lambda peer: (not peer["connected"], peer["id"])):
        table.add_row(
            peer["id"],
            "yes" if peer["connected"] else "no",
            list(peer.get("speaks", ())),
            _shared_with(peer),
            "" if (latency := peer.get("latency")) is None else f"{latency * 1000:.0f} ms",
            f"{peer.get('behind', 0):.0%}",
            "" if (score := peer.get("score")) is None else f"{score:.0%}",
            ago(peer.get("last_sync")),
            [address.removesuffix(f"/p2p/{peer['id']}") for address in peer["addresses"]],
        )
    if "peers" not in recon:
        echo("the node runs offline: it has no peers")
    elif known:
        make_console().print(table)
    else:
        echo("no peers yet; connect one with `recon-node peers add MULTIADDR`")
    if removed := recon.get("removed_peers"):
        echo(f"removed, and refused: {', '.join(removed)}")


def _shared_with(peer: Peer) -> list[str]:
    """Return what a peer shares of the node's interests."""
    covers, shares = peer.get("covers"), peer.get("shares")
    if covers is None or shares is None:
        return ["unknown"]
    more = [f"and {counted(len(shares) - SHARES_SHOWN, 'other')}"] * (len(shares) > SHARES_SHOWN)
    return [*shares[:SHARES_SHOWN], *more, f"{covers:.0%} of the events"]


@peers.command("add")
@click.argument("multiaddr")
@node_options
@json_option
@click.pass_context
def add_peer(context: click.Context, multiaddr: str, node: Connection, as_json: bool) -> None:
    """Connect the node to the peer at MULTIADDR, which ends with /p2p/PEER_ID.

    The peer must answer there over TCP, and be on the same network. Names (/dns4, /dns6, /dnsaddr)
    are resolved. Waits a moment for the first sync and shows its outcome.

    \b
    Example:
      recon-node peers add /ip4/192.0.2.7/tcp/4101/p2p/12D3KooW...
    """
    as_json = _wants_json(context, as_json)
    peer, started = multiaddr.rpartition("/p2p/")[2], time.time()
    with command_errors(node.url), _chosen_node(context, node) as chosen:
        chosen.request("POST", "/ceramic/peers", params={"addresses": multiaddr})
        echo(f"connected to {multiaddr}", err=as_json)
        outcome = _first_outcome(chosen, peer, started - CLOCK_SLACK)
    if outcome is not None and outcome.startswith(ANOTHER_NETWORK):
        raise CommandError(f"the peer is on {outcome}; check the `network` of both nodes")
    if as_json:
        print_json({"address": multiaddr, "peer": peer, "outcome": outcome})
    elif outcome is not None:
        echo(f"first sync: {outcome}")


@peers.command("remove")
@click.argument("peer")
@node_options
@json_option
@click.pass_context
def remove_peer(context: click.Context, peer: str, node: Connection, as_json: bool) -> None:
    """Disconnect the node from PEER, a peer id or a multiaddr that ends with one, for good.

    The node no longer dials PEER or lets it connect, even after a restart; `peers add` ends that.
    The node keeps the events that came from PEER, and may get more of them from other peers.

    \b
    Example:
      recon-node peers remove 12D3KooW...
    """
    as_json = _wants_json(context, as_json)
    peer_id = peer.rpartition("/p2p/")[2]
    with command_errors(node.url), _chosen_node(context, node) as chosen:
        chosen.request("DELETE", f"/ceramic/peers/{segment(peer_id)}")
    print_result({"removed": peer_id}, f"removed {peer_id}", as_json=as_json)


def _wants_json(context: click.Context, as_json: bool) -> bool:
    """Whether --json is given after `peers add`, or between the two words."""
    return as_json or (context.parent is not None and context.parent.params["as_json"])


def _chosen_node(context: click.Context, own: Connection) -> Connection:
    """Return the node that is named after `peers add`, or between the two words."""
    named = {
        name: own if context.get_parameter_source(name) is ParameterSource.COMMANDLINE else None
        for name in ("url", "token", "token_file")
    }
    group: Connection = context.obj
    url, token = named["url"] or group, named["token"] or named["token_file"] or group
    return Connection(url.url, token=token.token)


class SyncOutcome(TypedDict):
    """How a sync ended."""

    peer: str
    role: str
    outcome: str
    finished_at: Seconds


def _first_outcome(node: Connection, peer: str, since: float) -> str | None:
    """Return the outcome of the first sync that the peer started, which shows what it wants; or
    else of our own first sync."""
    outcome: str | None = None
    deadline = time.monotonic() + FIRST_SYNC
    while time.monotonic() < deadline:
        syncs = node.request("GET", "/ceramic/recon")["syncs"]
        for sync in understood(node, syncs, list[SyncOutcome]):
            if sync["peer"] != peer or sync["finished_at"] < since:
                continue
            if sync["role"] == "responder":
                return sync["outcome"]
            if outcome is None:
                outcome = sync["outcome"]
                deadline = min(deadline, time.monotonic() + RESPONSE_TIME)
        time.sleep(0.1)
    return outcome


def ago(unix_time: float | None) -> str:
    """Return how long ago a time was, in words."""
    if unix_time is None:
        return "never"
    seconds = max(0, round(time.time() - unix_time))
    return f"{seconds} s ago" if seconds < 120 else f"{seconds // 60} min ago"
