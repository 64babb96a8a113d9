"""Events that try the tables: forks, anchors that come late, poison, models that change, expiry,
wrong signatures."""

from dataclasses import dataclass, field
from typing import Any

from nacl.signing import SigningKey
from support.time_events import time_event
from support.wallets import EthereumWallet

from recon_node.ceramic import Event, StreamId
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, init_event, model_event, signed_event
from recon_node.ipld import CID

KEY = SigningKey(bytes(range(32)))
STRANGER = SigningKey(b"s" * 32)
FAULT = "the signature is wrong"
WALLET = EthereumWallet()
CAPABILITY = WALLET.issue(
    aud=controller_of(KEY), iat="2024-01-01T00:00:00Z", exp="2100-01-01T00:00:00Z"
)
"""The wallet lets the key act for it until `EXPIRED`."""
EXPIRED = 4_102_444_800
DEFINITION = {
    "version": "2.0",
    "name": "Note",
    "interface": False,
    "implements": [],
    "schema": {"properties": {"n": {"type": "integer"}, "t": {"maxLength": 20}}},
    "accountRelation": {"type": "list"},
    "immutableFields": ["n"],
}


@dataclass
class Scenario:
    """Events in the order of a feed, the block times of the time events, and which data events are
    badly signed."""

    events: list[Event] = field(default_factory=list)
    times: dict[CID, int] = field(default_factory=dict)
    faults: dict[CID, str] = field(default_factory=dict)

    def add(self, *events: Event) -> None:
        self.events.extend(events)

    def anchor(self, event: Event, time: int) -> Event:
        """A time event on `event`; the time is in its transaction's hash, for the tests' chain."""
        anchor = time_event(event.init, event.cid, tx_hash=time.to_bytes(32, "big"))
        self.times[anchor.cid] = time
        self.add(anchor)
        return anchor

    def forge(self, event: Event) -> Event:
        """The same data event, signed by somebody else."""
        forged = signed_event(STRANGER, event.payload)
        self.faults[forged.cid] = FAULT
        self.add(forged)
        return forged


def document(model: StreamId, content: Any, unique: bytes = b"u") -> Event:
    return init_event(KEY, model, content, unique=unique)


def change(prev: Event, *patch: Any) -> Event:
    return data_event(KEY, prev.init, [prev.cid], list(patch))


def replace(path: str, value: Any) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


def delegated(model: StreamId, content: Any) -> Event:
    """A document of the wallet, signed by the key under its capability."""
    header = {"controllers": [WALLET.issuer], "model": model.to_bytes(), "unique": b"d"}
    return signed_event(KEY, {"header": header, "data": content}, capability=CAPABILITY)


def scenario() -> Scenario:
    """Each trap once, small enough for every test to run all of it."""
    all_ = Scenario()
    model = model_event(KEY, DEFINITION)
    early = document(model.stream_id(), {"n": 1, "t": "before its model"}, b"early")
    broken = change(early, replace("/n", 2))  # right as long as nobody knows that n is immutable
    all_.add(early, broken)
    diverged(all_, model)
    all_.add(model)
    poison(all_, model)
    relaxed = change(model, replace("/name", "Notes"))
    all_.add(document(model.stream_id(), {"n": 3}, b"late"), relaxed)
    all_.anchor(relaxed, 1_700_000_300)
    versions(all_, model)
    lapsed = delegated(model.stream_id(), {"n": 4})
    kept = delegated(model.stream_id(), {"n": 5})
    all_.add(lapsed, kept)
    all_.anchor(lapsed, EXPIRED + 1)
    all_.anchor(kept, EXPIRED)
    return all_


def diverged(all_: Scenario, model: Event) -> None:
    """Two branches; the anchor of the one that loses so far turns out to be the earlier one."""
    init = document(model.stream_id(), {"n": 0, "t": ""}, b"diverged")
    left, right = (change(init, replace("/t", text)) for text in ("left", "right"))
    all_.add(init, left, right)
    all_.anchor(left, 1_700_000_200)
    all_.anchor(right, 1_700_000_100)
    top = change(left, replace("/t", "more"))
    merge = data_event(KEY, init, sorted([top.cid, right.cid]), [])
    all_.add(top, merge)


def versions(all_: Scenario, model: Event) -> None:
    """Documents of versions of a model that come after them, that are wrong, and that never come;
    content that breaks one version and not another."""
    retyped = change(model, replace("/schema", {"properties": {"t": {"type": "integer"}}}))
    invalid = change(model, replace("/accountRelation", {"type": "single"}))
    of = model.stream_id()
    for number, version in enumerate((retyped, invalid, all_.events[0])):
        name = bytes([number])
        header = {"controllers": [controller_of(KEY)], "model": of.to_bytes(), "unique": name}
        header["modelVersion"] = version.cid
        init = signed_event(KEY, {"header": header, "data": {"n": 1, "t": 1}})
        all_.add(init, change(init, replace("/t", "text")), change(init, replace("/t", 2)))
        init = document(of, {"n": 1, "t": "text"}, b"w" + name)
        payload = {"id": init.cid, "prev": init.cid, "data": [replace("/t", 7)]}
        payload["header"] = {"modelVersion": version.cid}
        all_.add(init, signed_event(KEY, payload), change(init, replace("/t", "x" * 21)))
    all_.add(retyped, invalid)


def poison(all_: Scenario, model: Event) -> None:
    """Valid events, nonsense in them."""
    nested: Any = 1
    for _ in range(57):  # content may have 126 levels
        nested = {"d": [nested]}
    of = model.stream_id()
    init = document(of, {"n": 1, "bytes": b"\xff", "link": model.cid, "deep": nested}, b"poison")
    last = init
    all_.add(init)
    for patch in (
        "not a patch",
        [{"op": "explode"}],
        [replace("/nowhere/at/all", 1)],
        [replace("", [1])],
        [{"op": "add", "path": "/x", "value": b"\x00\xff"}],
        [{"op": "copy", "from": "", "path": "/y"}] * 10,  # then it has 125
        {"a": None},
        None,
    ):
        last = data_event(KEY, init, [last.cid], patch)
        all_.add(last)
    all_.add(document(of, ["no", "object"], b"list"), model_event(KEY, {"version": "9.9"}))
    all_.add(document(StreamId(3, init.cid), {"of": "no model"}, b"odd"))
    all_.anchor(last, 1_600_000_000)


TRAP = scenario()
"""Not to be changed."""
