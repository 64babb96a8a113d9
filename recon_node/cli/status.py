"""`recon-node status`: what a node holds, and its latest syncs.

`recon-node status --pending` shows which events the feed does not have, and why.
"""

import time
from collections.abc import Iterator
from typing import Final, NotRequired, TypedDict

import click
from rich.table import Column, Table

from recon_node.base.connection import Connection
from recon_node.base.terminal import (
    counted,
    echo,
    human_size,
    json_option,
    node_options,
    print_json,
)
from recon_node.cli.command import Seconds, TextTable, make_console, make_table, pages, understood
from recon_node.cli.interest_commands import ListedInterest, interest_text
from recon_node.cli.peers import Peers, SyncOutcome, ago

SYNCS_SHOWN: Final = 10
RENDEZVOUS_SHOWN: Final = 10


class _Sync(SyncOutcome):
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
    failure: NotRequired[str]


class _Memory(TypedDict):
    held: int
    budget: int


class _Status(Peers):
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
    """Show the events of a node, its latest syncs, and the latest syncs that moved events.

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
    fold = Column(overflow="fold")  # what is too wide may have to be copied
    facts = TextTable("", fold, box=None, show_header=False, pad_edge=False)
    for name in ("network", "peer_id", "events", "waiting", "pending", "head", "sha256a"):
        facts.add_row(name, str(answer.get(name, "")), style="bold" if name == "events" else None)
    for name, text, style in _facts_of(recon):
        facts.add_row(name, text, style=style)
    console.print(facts)
    latest, moving = recon["syncs"][-SYNCS_SHOWN:], recon.get("transfers", [])[-SYNCS_SHOWN:]
    for title, syncs in (
        ("latest syncs that moved events", moving if moving != latest else []),
        ("latest syncs", latest),
    ):
        if syncs:
            console.print()
            console.print(_sync_table(title, syncs))


_ALARM: Final = "bold red"


def _facts_of(recon: _Status) -> Iterator[tuple[str, str | list[str], str | None]]:
    """Yield the name of each fact beside the counts, its text, and its style."""
    yield "peers", _peers_of(recon), None
    yield "interests", _interest_lines(recon), None
    yield "rendezvous", _rendezvous_of(recon), None
    for name, text in _policy_of(recon):
        yield name, text, None
    if damaged := recon.get("damaged"):
        yield "damaged", f"{damaged} (see the node's log)", _ALARM
    if alarm := recon.get("anchoring_alarm"):
        yield "anchoring", alarm, _ALARM
    if disk := recon.get("disk"):
        text = f"{human_size(disk['free'])} free, {human_size(disk['keep_free'])} are kept free"
        short = disk["is_short"]
        note = ": nothing is taken from peers" if short else ""
        yield "disk", f"{text} (keep_free){note}", _ALARM if short else None
        if failure := disk.get("failure"):
            yield "LAST WRITE FAILED", failure, _ALARM
    if (core := recon.get("native_core")) is not None:
        yield "signatures", f"by the native core {core}" if core else "by Python", None
    if memory := recon.get("peer_memory"):
        held, budget = human_size(memory["held"]), human_size(memory["budget"])
        yield "held for peers", f"{held} of {budget} (max_peer_memory)", None


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
            ago(sync["finished_at"]),
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
