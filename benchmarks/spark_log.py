"""The log of the node whose feed the pipeline's benchmarks read, and how it is filled.

To try `spark-sink` on many events, have `python -m benchmarks.spark --log ./log` leave the log:

    recon-node run --data-dir ./log --network local-5 --no-discovery
    spark-sink run --tables ./tables --once
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from random import Random

from nacl.signing import SigningKey

from recon_node.ceramic import Event, Network, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.client import ModelDefinition
from recon_node.ipld import CID
from recon_node.store import open_store

NETWORK = Network.local(5)
KEY = SigningKey(bytes([7]) * 32)
PROPERTIES = {"title": {"type": "string"}, "body": {"type": "string"}}
DEFINITION = ModelDefinition(name="Post", schema={"properties": PROPERTIES})
MODEL = model_event(KEY, DEFINITION.to_json())
MODEL_ID = StreamId(StreamType.MODEL, MODEL.cid)
_BATCH = 10_000


@dataclass
class RandomEvents:
    """Signed events of so many documents of the model, whose turns come at random."""

    streams: int
    random: Random = field(default_factory=lambda: Random(5))
    _tips: dict[int, tuple[CID, CID]] = field(default_factory=dict)
    """The init event and the tip of each document that has begun."""

    def __next__(self) -> Event:
        """Return the next event of a document: its init event, or an update of all of its body."""
        number = self.random.randrange(self.streams)
        if number not in self._tips:
            content = {"title": f"post {number}", "body": "x" * 100}
            event = init_event(KEY, MODEL_ID, content, unique=number.to_bytes(8, "big"))
            init = event.cid
        else:
            init, tip = self._tips[number]
            body = f"{self.random.getrandbits(256):0100x}"
            event = data_event(
                KEY, init, [tip], [{"op": "replace", "path": "/body", "value": body}]
            )
        self._tips[number] = init, event.cid
        return event

    def __iter__(self) -> Iterator[Event]:
        return self


async def fill_log(directory: Path, events: int, streams: int) -> None:
    """Create a log that has so many events: the model, and random ones of some documents."""
    cars = chain([MODEL.car], (event.car for event in islice(RandomEvents(streams), events - 1)))
    async with open_store(directory, NETWORK) as store:
        while piece := list(islice(cars, _BATCH)):
            await store.admit_local(piece)
