"""`recon-node feed tail`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click

from recon_node.cli.client import node_options
from recon_node.connection import Connection
from recon_node.terminal_text import echo

_PAGE: Final = 1000
_WAIT: Final = 20.0
"""Seconds of one long poll, less than the client's timeout."""


@click.group()
def feed() -> None:
    """Read the feed of a node: every event, in the order of its delivery."""


@feed.command("tail")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Print the last N events.",
)
@click.option(
    "--from",
    "after",
    type=click.IntRange(min=0),
    metavar="POSITION",
    help="Print the events after POSITION instead; 0 is the start of the feed.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new events, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per line, with the CAR.")
@node_options
def tail(lines: int, after: int | None, follow: bool, as_json: bool, node: Connection) -> None:
    """Print the last events of the feed.

    A line has the event's position in the feed, when it was delivered (in UTC), its kind (init,
    data or time), its CID and its stream. The last position printed is a resume token: --from
    continues after it.

    \b
    Examples:
      recon-node feed tail --follow
      recon-node feed tail --from 0 --json | jq -r .data | recon-node events add - --url ...
    """
    if after is None:
        after = max(0, node.request("GET", "/ceramic/feed/head")["head"] - lines)
    for event in _events(node, after, follow=follow, with_cars=as_json):
        echo(json.dumps(event) if as_json else _line(event))


def _events(
    node: Connection, after: int, *, follow: bool, with_cars: bool
) -> Iterator[dict[str, Any]]:
    """Yield the feed's events with their details; without end if they are followed."""
    while True:
        query = {
            "resumeAt": str(after),
            "limit": _PAGE,
            "includeData": "full" if with_cars else "none",
            "details": "true",
            "wait": _WAIT if follow else 0,
        }
        page = node.request("GET", "/ceramic/feed/events", params=query)
        yield from page["events"]
        after = int(page["resumeToken"])
        if not page["events"] and not follow:
            return


def _line(event: dict[str, Any]) -> str:
    delivered_at = event["deliveredAt"]  # None: an earlier version delivered it
    at = "" if delivered_at is None else f"{datetime.fromtimestamp(delivered_at / 1000, UTC):%F %T}"
    line = f"{event['position']:>10}  {at:<19}  {event['kind']:<4}  {event['id']}  {event['init']}"
    return line if event["fault"] is None else f"{line}  badly signed: {event['fault']}"
