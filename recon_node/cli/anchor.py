"""`recon-node anchor`: what a node anchors, and when events were anchored."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import click

from recon_node.base.connection import Connection, segment
from recon_node.base.errors import unwrapped
from recon_node.base.terminal import (
    CommandError,
    counted,
    echo,
    json_option,
    node_options,
    one_line,
    print_json,
    print_result,
)
from recon_node.cli.command import Seconds, Wei, make_console, make_table, number_option, understood
from recon_node.cli.config import DataDirCommand
from recon_node.client.lists import POLL_INTERVAL

if TYPE_CHECKING:
    from recon_node.settings import Settings

_WEI: Final = 10**18
_STATES: Final = ("waiting", "in_tree", "anchored", "covered")


@click.group(short_help="Anchor streams on a chain, and check anchors.")
def anchor() -> None:
    """Anchor streams on a chain, and see when events were anchored.

    A node anchors if its setting `anchor` is set; docs/how-to/anchors.md is the guide.

    \b
    Examples:
      recon-node anchor key anchor.key            (a new account that pays)
      recon-node anchor status
      recon-node anchor verify bagcqcera...
    """


class _Tree(TypedDict):
    root: str
    leaves: int
    tx_hash: str | None
    block_time: Seconds | None
    cost_wei: Wei | None
    explorer: str | None


class _Counts(TypedDict):
    waiting: int
    in_tree: int
    anchored: int


class _Anchoring(TypedDict):
    """How anchoring stands at a node that does."""

    chain_id: str
    contract: str | None
    account: str | None
    balance_wei: Wei | None
    spent_wei: Wei
    coin: str
    trees: int
    requests: _Counts
    under_way: _Tree | None
    waits_for: str
    alarm: str
    due_at: Seconds | None
    latest: list[_Tree]


@anchor.command("status")
@node_options
@json_option
def status(node: Connection, as_json: bool) -> None:
    """Show the account that pays, the events that wait for an anchor, and the latest trees."""
    answer = node.request("GET", "/ceramic/anchors")
    if as_json:
        print_json(answer)
        return
    if answer["authority"] == "off":
        echo("This node does not anchor (setting `anchor`).")
        return
    anchors = understood(node, answer, _Anchoring)
    echo(f"Anchoring on {anchors['chain_id']}")
    coin = anchors["coin"]
    if anchors["account"] is not None:
        balance = anchors["balance_wei"]
        has = "not known yet" if balance is None else f"{_coins(balance)} {coin}"
        echo(f"account    {anchors['account']}, balance {has}")
        echo(f"contract   {anchors['contract']}")
    counts = anchors["requests"]
    spent = f", for {_coins(anchors['spent_wei'])} {coin}" if coin else ""
    echo(
        f"events     {counts['waiting']:,} wait, {counts['in_tree']:,} under way, "
        f"{counts['anchored']:,} anchored in {counted(anchors['trees'], 'tree')}{spent}"
    )
    if anchors["under_way"] is not None:
        tree = anchors["under_way"]
        echo(f"under way  {counted(tree['leaves'], 'event')}: {anchors['waits_for'] or 'starting'}")
    if anchors["due_at"] is not None:
        echo(f"next tree  {_date(anchors['due_at'])}")
    if anchors["alarm"]:
        echo(f"ALARM      {anchors['alarm']}")
    if anchors["latest"]:
        table = make_table("tree", "events", "time", "cost", "transaction", numbers=("events",))
        for tree in anchors["latest"]:
            root, time = "…" + tree["root"][-8:], _date(tree["block_time"])
            cost = "" if tree["cost_wei"] is None else f"{_coins(tree['cost_wei'])} {coin}"
            link = tree["explorer"] or tree["tx_hash"] or ""
            table.add_row(root, f"{tree['leaves']:,}", time, cost, link)
        make_console().print(table)


@anchor.command("now")
@node_options
def now(node: Connection) -> None:
    """Anchor the waiting events now, without waiting for the interval to pass."""
    node.request("POST", "/ceramic/anchors/now")
    echo("A tree will be built of the waiting requests: see `recon-node anchor status`.")


class _Requested(TypedDict):
    cid: str
    state: str
    made_at: Seconds
    time_event: str | None


@anchor.command("requests")
@click.option("--state", type=click.Choice(_STATES), help="Only those in a state.")
@number_option("--limit", 20, "N", "List the latest N.", least=1, most=1000)
@node_options
@json_option
def requests(state: str | None, limit: int, node: Connection, as_json: bool) -> None:
    """List the events that were or will be anchored, the latest first."""
    params: dict[str, Any] = {"limit": limit} | ({} if state is None else {"state": state})
    listed = node.request("GET", "/ceramic/anchors/requests", params=params)["requests"]
    if as_json:
        print_json(listed)
        return
    table = make_table("event", "state", "requested", "time event")
    for request in understood(node, listed, list[_Requested]):
        table.add_row(
            request["cid"], request["state"], _date(request["made_at"]), request["time_event"] or ""
        )
    make_console().print(table)


class _EventAnchor(TypedDict):
    state: Literal["none", "waiting", "in_tree", "made", "anchored"]
    time: Seconds | None
    time_event: str | None
    anchored_event: str | None
    chain_id: str | None
    tx_hash: str | None
    root: str | None
    explorer: str | None
    cost_wei: Wei | None


def _anchor_of(node: Connection, cid: str) -> _EventAnchor:
    answer = node.request("GET", f"/ceramic/anchors/events/{segment(cid)}")
    return understood(node, answer, _EventAnchor)


@anchor.command("verify")
@click.argument("cid")
@node_options
@json_option
def verify(cid: str, node: Connection, as_json: bool) -> None:
    """Show since when the event CID provably exists, and by which transaction.

    The node has checked the proof at its own endpoint of the chain. Exit code 1 if there is none.
    """
    answer = _anchor_of(node, cid)
    if as_json:
        print_json(answer)
    elif answer["time"] is not None:
        echo(f"{cid} was anchored {_date(answer['time'])}")
        if answer["anchored_event"] != cid:
            echo(f"through     {answer['anchored_event']}, which covers it")
        echo(f"time event  {answer['time_event']}")
        echo(f"root        {answer['root']}")
        echo(f"transaction {answer['chain_id']} {answer['tx_hash']}")
        if answer["explorer"]:
            echo(f"            {answer['explorer']}")
        if cost := int(answer["cost_wei"] or 0):
            echo(f"cost        {cost:,} wei")
    if answer["time"] is None:
        raise CommandError(f"{cid} is not anchored: {_EXPLAINED[answer['state']]}")


_EXPLAINED: Final = {
    "none": "it has no time event, and this node anchors neither it nor what covers it",
    "waiting": "it waits for the next tree",
    "in_tree": "its tree is under way",
    "made": "its time event is made, but the transaction is still to be looked up",
    "anchored": "the node does not say when it was",
}


@anchor.command("key")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def key(file: Path, as_json: bool) -> None:
    """Make a key for the account that pays, in FILE, and print the account's address.

    Send it some of the chain's coins, and name the file in the setting `anchor_key_file`.
    """
    from recon_node.anchoring.authority import AuthorityError
    from recon_node.anchoring.signer import create_key

    with one_line(AuthorityError):
        address = create_key(file)
    print_result({"address": address, "file": str(file)}, address, as_json=as_json)


@anchor.command("deploy", cls=DataDirCommand)
@json_option
def deploy(settings: Settings, as_json: bool) -> None:
    """Create an anchor contract on a chain that has none, and print its address.

    The chain, its endpoint and the key that pays are those of the settings: `anchor_chain`,
    `chain_rpc` and `anchor_key_file` in --config, or in the environment (RECON_NODE_ANCHOR_CHAIN).
    """
    import trio  # a third of a second, which the others do without

    from recon_node.anchoring.anchoring_service import open_payer
    from recon_node.anchoring.authority import AuthorityError
    from recon_node.chain.rpc_endpoint import ChainError, NoAnswerError

    async def create() -> str:
        from recon_node.anchoring.evm import deploy

        async with open_payer(settings.anchor, settings.chain) as (chain, signer):
            await chain.check()
            return await deploy(chain, signer, settings.anchor.max_fee_wei)

    known = (AuthorityError, ChainError, NoAnswerError)
    with one_line(*known), unwrapped(*known):
        address = trio.run(create)
    print_result({"contract": address}, address, as_json=as_json)


@click.command("anchor")
@click.argument("stream_id")
@click.option("--wait", is_flag=True, help="Wait until the time is proven.")
@node_options
@json_option
def anchor_stream(stream_id: str, wait: bool, node: Connection, as_json: bool) -> None:
    """Have the tip of the stream STREAM_ID anchored, if it is not yet."""
    bare = stream_id.removeprefix("ceramic://")
    cid = node.request("POST", f"/api/v0/streams/{segment(bare)}/anchor")["cid"]
    answer = _anchor_of(node, cid)
    while wait and answer["time"] is None:
        time.sleep(POLL_INTERVAL)
        answer = _anchor_of(node, cid)
    when = f"anchored {_date(answer['time'])}" if answer["time"] else _EXPLAINED[answer["state"]]
    print_result(answer, f"{cid}: {when}", as_json=as_json)


def _coins(wei: str) -> str:
    return f"{int(wei) / _WEI:.9g}"


def _date(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
