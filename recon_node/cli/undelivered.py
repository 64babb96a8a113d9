"""`recon-node status --pending`: which events the feed does not have, and why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from recon_node.cli.listing import pages
from recon_node.cli.output import counted, make_console, make_table
from recon_node.connection import Connection
from recon_node.json_output import print_json
from recon_node.terminal_text import echo

_SHOWN: Final = 20
"""Events of each state."""


def show_undelivered(node: Connection, *, as_json: bool) -> None:
    """Print how many events are waiting, pending or refused, and the latest of each with why."""
    summary = node.request("GET", "/ceramic/undelivered")
    events = {
        state: pages(node, f"/ceramic/undelivered/{state}", "events", {}, _SHOWN)[0]
        for state in ("waiting", "pending", "refused")
    }
    if as_json:
        print_json({**summary, "events": events})
        return
    for line in _summary(summary):
        echo(line)
    for state, found in events.items():
        if found:
            table = make_table("event", "why", title=f"{state}, the latest first")
            for each in found:
                table.add_row(each["cid"], "\n".join(_reasons(each)))
            echo()
            make_console().print(table)


def _summary(summary: dict[str, Any]) -> Iterator[str]:
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


def _reasons(event: dict[str, Any]) -> Iterator[str]:
    if "reason" in event:
        yield event["reason"]
        return
    if event["fault"] is not None:
        yield f"badly signed, and no valid data event covers it: {event['fault']}"
    for each in event["builds_on"]:
        state = "is not here" if each["state"] == "missing" else f"is {each['state']}"
        yield f"{each['cid']} {state}"
    lookup = event["lookup"]
    if lookup is not None:
        tried = f", {counted(lookup['tries'], 'lookup')} so far" if lookup["tries"] else ""
        yield f"transaction {lookup['transaction']} on {lookup['chain_id']}{tried}"
