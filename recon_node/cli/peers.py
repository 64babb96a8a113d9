"""`recon-node peers` and `status`: whom a node knows, and what it holds.

`recon-node status --pending` shows which events the feed does not have, and why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NotRequired, TypedDict

import click
from click.core import ParameterSource
from rich.table import Table

from recon_node.base.connection import Connection, segment
from recon_node.base.terminal import (
    CommandError,
    command_errors,
    echo,
    human_size,
    json_option,
    node_options,
    print_json,
    print_result,
)
from recon_node.cli.command import Seconds, counted, make_console, make_table, pages, understood
from recon_node.cli.interest_commands import ListedInterest, interest_text

FIRST_SYNC = 3.0
"""Seconds that `peers add` waits for the first sync."""
RESPONSE_TIME = 0.7
"""Seconds after our own sync in which a peer of another network will have started one, too."""
CLOCK_SLACK = 1.0
"""Seconds by which a node's clock may differ from ours."""
SYNCS_SHOWN = 10
RENDEZVOUS_SHOWN = 10
SHARES_SHOWN = 3
ANOTHER_NETWORK = "another network"
"""How the outcome of a sync with such a peer begins; see `recon_node.p2p.sync.sessions`."""


class _Peer(TypedDict):
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


class _Peers(TypedDict):
    peers: NotRequired[list[_Peer]]
    removed_peers: NotRequired[list[str]]


@click.group(invoke_without_command=True)
@node_options
@json_option
@click.pass_context
def peers(context: click.Context, node: Connection, as_json: bool) -> None:
    """List the peers that a node knows, or connect it to another one.

    Under "shares" are the interests of this node that a peer has, too, and how much of the events
    here lies in them.

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
    recon = understood(node, answer, _Peers)
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
            _ago(peer.get("last_sync")),
            list(peer["addresses"]),
        )
    if "peers" not in recon:
        echo("the node runs offline: it has no peers")
    elif known:
        make_console().print(table)
    else:
        echo("no peers yet; connect one with `recon-node peers add MULTIADDR`")
    if removed := recon.get("removed_peers"):
        echo(f"removed, and refused: {', '.join(removed)}")


def _shared_with(peer: _Peer) -> list[str]:
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

    The node neither dials PEER any more nor lets it connect, also after a restart. `peers add`
    takes it back. Events that came from it stay; other peers may bring further ones.

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


class _SyncOutcome(TypedDict):
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
        for sync in understood(node, syncs, list[_SyncOutcome]):
            if sync["peer"] != peer or sync["finished_at"] < since:
                continue
            if sync["role"] == "responder":
                return sync["outcome"]
            if outcome is None:
                outcome = sync["outcome"]
                deadline = min(deadline, time.monotonic() + RESPONSE_TIME)
        time.sleep(0.1)
    return outcome


class _Sync(_SyncOutcome):
    events_sent: NotRequired[int]
    events_received: int
    bytes_sent: int
    bytes_received: int
    event_bytes_sent: int
    event_bytes_received: int
    rounds: int
    seconds: float


class _Rendezvous(TypedDict):
    sort_value: str | None
    told: int
    found: int


class _Policy(TypedDict):
    allow_models: NotRequired[list[str]]
    deny_models: NotRequired[list[str]]
    allow_controllers: NotRequired[list[str]]
    deny_controllers: NotRequired[list[str]]
    refused: int
    not_fetched: int


class _Disk(TypedDict):
    free: int
    keep_free: int
    is_short: bool


class _Memory(TypedDict):
    held: int
    budget: int


class _Status(_Peers):
    """What is shown of GET /ceramic/recon; earlier versions have less."""

    interests: NotRequired[list[ListedInterest]]
    rendezvous: NotRequired[list[_Rendezvous]]
    write_policy: NotRequired[_Policy]
    damaged: NotRequired[int]
    anchoring_alarm: NotRequired[str]
    disk: NotRequired[_Disk]
    native_core: NotRequired[str]
    peer_memory: NotRequired[_Memory]
    syncs: list[_Sync]
    transfers: NotRequired[list[_Sync]]


@click.command()
@click.option("--pending", is_flag=True, help="Show which events are not delivered, and why.")
@node_options
@json_option
def status(node: Connection, pending: bool, as_json: bool) -> None:
    """Show what a node holds, its latest syncs, and the latest syncs that moved events.

    Two nodes of one network without interests hold the same events if their sha256a is equal.

    Events that wait for others, that are pending until an anchor is looked up, or that were refused
    are not in the feed; --pending lists them.

    \b
    Examples:
      recon-node status --url http://127.0.0.1:5201
      recon-node status --pending
    """
    if pending:
        _show_undelivered(node, as_json=as_json)
        return
    answer = node.request("GET", "/ceramic/recon")
    if as_json:
        print_json(answer)
        return
    recon = understood(node, answer, _Status)
    console = make_console()
    facts = Table(box=None, show_header=False, pad_edge=False)
    for name in ("network", "peer_id", "events", "waiting", "pending", "head", "sha256a"):
        facts.add_row(name, str(answer.get(name, "")), style="bold" if name == "events" else None)
    facts.add_row("peers", _peers_of(recon))
    facts.add_row("interests", "\n".join(_interest_lines(recon)))
    facts.add_row("rendezvous (DHT)", "\n".join(_rendezvous_of(recon)))
    for name, text in _policy_of(recon):
        facts.add_row(name, text)
    if damaged := recon.get("damaged"):
        facts.add_row("damaged", f"{damaged} (see the node's log)", style="bold red")
    if alarm := recon.get("anchoring_alarm"):
        facts.add_row("anchoring", alarm, style="bold red")
    if disk := recon.get("disk"):
        text = f"{human_size(disk['free'])} free, {human_size(disk['keep_free'])} are kept free"
        short = disk["is_short"]
        note = ": nothing is taken from peers" if short else ""
        facts.add_row("disk", f"{text} (keep_free){note}", style="bold red" if short else None)
    if (core := recon.get("native_core")) is not None:
        facts.add_row("signatures", f"by the native core {core}" if core else "by Python")
    if memory := recon.get("peer_memory"):
        held, budget = human_size(memory["held"]), human_size(memory["budget"])
        facts.add_row("held for peers", f"{held} of {budget} (max_peer_memory)")
    console.print(facts)
    latest, moving = recon["syncs"][-SYNCS_SHOWN:], recon.get("transfers", [])[-SYNCS_SHOWN:]
    for title, syncs in (
        ("latest syncs that moved events", moving if moving != latest else []),
        ("latest syncs", latest),
    ):
        if syncs:
            console.print()
            console.print(_sync_table(title, syncs))


def _peers_of(recon: _Status) -> str:
    known = recon.get("peers")
    if known is None:
        return "none: the node runs offline"
    connected = sum(peer["connected"] for peer in known)
    counts = f"{connected} connected, {len(known)} known"
    advice = "add one with `recon-node peers add MULTIADDR` or `recon-node run --bootstrap`"
    return counts if connected else f"{counts}: no peer is connected; {advice}"


def _interest_lines(recon: _Status) -> list[str]:
    """Return the node's interests as `recon-node interests add` takes them."""
    interests = [interest_text(interest) for interest in recon.get("interests", ())]
    return interests or ["none: the node syncs everything on its network"]


def _rendezvous_of(recon: _Status) -> list[str]:
    """Return what came of announcing the node in the DHT, and of looking for others there."""
    every = recon.get("rendezvous", [])
    lines = [
        f"{point['sort_value'] or 'the network'}: announced to {counted(point['told'], 'peer')}, "
        f"{counted(point['found'], 'other node')} found"
        for point in every[:RENDEZVOUS_SHOWN]
    ]
    if more := every[RENDEZVOUS_SHOWN:]:
        lines.append(f"and {len(more):,} more (--json)")
    return lines or ["none: discovery is off"]


def _policy_of(recon: _Status) -> Iterator[tuple[str, str]]:
    """Return what the node's write policy allows and denies, and what it has refused."""
    policy = recon.get("write_policy")
    if policy is None:
        return
    rules = {
        "allow models": policy.get("allow_models"),
        "deny models": policy.get("deny_models"),
        "allow controllers": policy.get("allow_controllers"),
        "deny controllers": policy.get("deny_controllers"),
    }
    for name, values in rules.items():
        if values:
            yield name, "\n".join(values)
    if any(rules.values()):
        yield "refused", f"{policy['refused']:,} events, {policy['not_fetched']:,} keys not fetched"


def _sync_table(title: str, syncs: list[_Sync]) -> Table:
    numbers = ("events sent", "events received", "bytes sent", "bytes received", "rounds")
    columns = ("ended", "peer", "role", *numbers, "seconds", "outcome")
    table = make_table(*columns, numbers=(*numbers, "seconds"), title=title)
    for sync in syncs:
        table.add_row(
            _ago(sync["finished_at"]),
            "…" + sync["peer"][-8:],
            sync["role"],
            f"{sync.get('events_sent', 0):,}",
            f"{sync['events_received']:,}",
            f"{sync['bytes_sent'] + sync['event_bytes_sent']:,}",
            f"{sync['bytes_received'] + sync['event_bytes_received']:,}",
            str(sync["rounds"]),
            f"{sync['seconds']:.2f}",
            sync["outcome"],
        )
    return table


def _ago(unix_time: float | None) -> str:
    if unix_time is None:
        return "never"
    seconds = max(0, round(time.time() - unix_time))
    return f"{seconds} s ago" if seconds < 120 else f"{seconds // 60} min ago"


_SHOWN: Final = 20
"""Events of each state."""


class _Chain(TypedDict):
    chain_id: str
    has_provider: bool
    proofs: int
    next_due: Seconds


class _Undelivered(TypedDict):
    waiting: int
    pending: int
    refused: int
    chains: list[_Chain]


class _Base(TypedDict):
    cid: str
    state: str


class _Lookup(TypedDict):
    chain_id: str
    transaction: str
    tries: int


class _Hindered(TypedDict):
    cid: str
    reason: NotRequired[str]  # of a refused event, which has none of the others
    fault: NotRequired[str | None]
    builds_on: NotRequired[list[_Base]]
    lookup: NotRequired[_Lookup | None]


def _show_undelivered(node: Connection, *, as_json: bool) -> None:
    """Print how many events are waiting, pending or refused, and the latest of each with why."""
    answer = node.request("GET", "/ceramic/undelivered")
    events = {
        state: pages(node, f"/ceramic/undelivered/{state}", "events", {}, _SHOWN)[0]
        for state in ("waiting", "pending", "refused")
    }
    if as_json:
        print_json({**answer, "events": events})
        return
    for line in _summary(understood(node, answer, _Undelivered)):
        echo(line)
    for state, listed in events.items():
        if listed:
            table = make_table("event", "why", title=f"{state}, the latest first")
            for event in understood(node, listed, list[_Hindered]):
                table.add_row(event["cid"], list(_reasons(event)))
            echo()
            make_console().print(table)


def _summary(summary: _Undelivered) -> Iterator[str]:
    yield f"waiting  {summary['waiting']:,}  (for an event that they build on, or that covers them)"
    yield f"pending  {summary['pending']:,}  (for the lookup of an anchor)"
    yield f"refused  {summary['refused']:,}  (for good)"
    for chain in summary["chains"]:
        proofs = counted(chain["proofs"], "anchor")
        if chain["has_provider"]:
            seconds = max(0, round(chain["next_due"] - time.time()))
            yield f"{chain['chain_id']}: {proofs} to look up, the next one in {seconds} s"
        else:
            yield (
                f"{chain['chain_id']}: {proofs} that nobody looks up: give the node an endpoint, "
                f"`--chain-rpc {chain['chain_id']}=URL`"
            )


def _reasons(event: _Hindered) -> Iterator[str]:
    if "reason" in event:
        yield event["reason"]
    if (fault := event.get("fault")) is not None:
        yield f"badly signed, and no valid data event covers it: {fault}"
    for base in event.get("builds_on", ()):
        state = "is not here" if base["state"] == "missing" else f"is {base['state']}"
        yield f"{base['cid']} {state}"
    lookup = event.get("lookup")
    if lookup is not None:
        tried = f", {counted(lookup['tries'], 'lookup')} so far" if lookup["tries"] else ""
        yield f"transaction {lookup['transaction']} on {lookup['chain_id']}{tried}"
