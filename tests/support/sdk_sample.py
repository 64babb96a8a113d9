"""930 events that the Ceramic JavaScript SDK wrote, each after its prevs."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from recon_node.ceramic import Event, InitHeader, Network, parse_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID, multibase

FILE: Final = Path(__file__).parents[1] / "data" / "sdk_sample.jsonl"


@cache
def lines() -> list[dict[str, Any]]:
    """What the SDK says of each event; its `car` is multibase text."""
    return [json.loads(line) for line in FILE.read_text().splitlines()]


@cache
def cars() -> list[bytes]:
    return [multibase.decode(line["car"]) for line in lines()]


@cache
def events() -> list[Event]:
    return [parse_event(car) for car in cars()]


def ring_events(network: Network, count: int) -> dict[HeightlessEventId, bytes]:
    """The CARs of the first events, by their EventIds without height."""
    headers: dict[CID, InitHeader] = {}
    by_key = {}
    for event in events()[:count]:
        if event.header is not None:
            headers[event.cid] = event.header
        header = headers[event.init]
        key = HeightlessEventId.build(
            network, header.model, header.controller, event.init, event.cid
        )
        by_key[key] = event.car
    return by_key
