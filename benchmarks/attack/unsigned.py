"""Attacks by events that need no key."""

from __future__ import annotations

import os
import time
from typing import Final

from nacl.signing import SigningKey

from benchmarks.attack import hostile
from benchmarks.attack.catalogue import attack
from benchmarks.attack.chain import CHAIN, the_chain, with_chain
from benchmarks.attack.field import OWNER, Field, document_id, make_model
from benchmarks.attack.floods import SECONDS, flood
from recon_node.ceramic import Event, EventId, StreamId, parse_event
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, deterministic_init_event, init_event
from recon_node.ipld import CID, car, dag_cbor, encode_varint

_MEMBER: Final = SigningKey(b"a member of the network's list..")
_MEMBERS_MODEL: Final = make_model(_MEMBER)
_FILLER: Final = [CID.of(0x71, number.to_bytes(2, "big")) for number in range(24_100)]
"""Links that make a node of a tree as large as an event may be."""


def _key(model: StreamId, key: SigningKey, init: Event, height: int, cid: CID) -> EventId:
    return EventId.build(hostile.NETWORK, str(model), controller_of(key), init.cid, height, cid)


def _block(value: object) -> tuple[CID, bytes]:
    block = dag_cbor.encode(value)
    return CID.of(0x71, block), block


def _anchored(
    init: CID, prev: CID, path: str, transaction: bytes, *nodes: tuple[CID, bytes]
) -> Event:
    """A time event by a tree whose root is the first of its nodes."""
    tx_hash = CID(encode_varint(1) + encode_varint(0x93) + bytes([0x1B, 32]) + transaction)
    proof, proof_block = _block(
        {"chainId": CHAIN, "root": nodes[0][0], "txHash": tx_hash, "txType": "f(bytes32)"}
    )
    cid, block = _block({"id": init, "prev": prev, "proof": proof, "path": path})
    return parse_event(car.encode([cid], {cid: block, proof: proof_block, **dict(nodes)}))


def _settled(here: Field, sent: list[Event]) -> None:
    """Wait until the node has looked at events that the honest peer has."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        if here.get(f"/ceramic/events/{sent[-1].cid}").status_code == 200:
            break
        time.sleep(0.2)


def _read_all(here: Field, stream: str) -> None:
    for end in ("", "/events", "/picture", "/merge"):
        started = time.monotonic()
        answer = here.get(f"/ceramic/streams/{stream}{end}", timeout=120)
        here.at_most(f"stream{end}", time.monotonic() - started, 5.0)
        here.expect(f"stream{end}", 200, answer.status_code)


@attack(flags=with_chain)
def made_up_anchors(here: Field) -> None:
    """68 time events of 0.97 MB, made up on a stranger's stream, end the reading of it."""
    owner = SigningKey.generate()
    model, model_id = make_model(owner)
    init = init_event(owner, model_id, {"a": "1"}, unique=b"u")
    patch = [{"op": "replace", "path": "/a", "value": "2"}]
    update = data_event(owner, init, [init.cid], patch)
    made = [
        _anchored(init.cid, update.cid, "0", os.urandom(32), _block([update.cid, *_FILLER[:-k]]))
        for k in range(1, 69)
    ]
    with here.attacked():
        here.add([model, init, update])
        here.await_event(update)
        here.add(made)
        _settled(here, made)
        _read_all(here, document_id(init))


@attack(flags=with_chain)
def copies_of_an_anchor(here: Field) -> None:
    """One transaction gives 64 time events, of 64 places of a tree's node, and others by other
    spellings of a path; the stream, or all of a model, cannot be read any more."""
    owner = SigningKey.generate()
    model, model_id = make_model(owner)
    init = init_event(owner, model_id, {"a": "1"}, unique=b"u")
    made = []
    for number, target in enumerate((init.cid, model.cid)):
        transaction = os.urandom(32)
        node = _block([target] * 64 + _FILLER[:24_000])
        the_chain().mine(transaction, node[0].digest, 6_000_000 + number)
        stream = init.cid if target == init.cid else model.cid
        for path in (*map(str, range(64)), "+0", "00", "000"):
            try:
                made.append(_anchored(stream, target, path, transaction, node))
            except ValueError:
                continue  # a spelling that is not accepted any more
    with here.attacked():
        here.add([model, init])
        here.await_event(init)
        here.add(made)
        _settled(here, made)
        _read_all(here, document_id(init))


@attack(
    flags=lambda: (
        *("--allow-controller", controller_of(_MEMBER)),
        *("--allow-model", str(_MEMBERS_MODEL[1])),
        *("--allow-controller", controller_of(OWNER)),
        *("--allow-model", str(make_model(OWNER)[1])),
    ),
    short=True,
)
def a_members_name(here: Field) -> None:
    """With `allow_controllers`, 1,000 unsigned init events in a member's name, and 1,000 time
    events on them, are taken for the member's."""
    _, model_id = _MEMBERS_MODEL
    events: dict[EventId, bytes] = {}
    for number in range(1000):
        init = deterministic_init_event(controller_of(_MEMBER), model_id, unique=os.urandom(100))
        events[_key(model_id, _MEMBER, init, 0, init.cid)] = init.car
        cid, made = hostile.made_up(init.cid, init.cid, number)
        events[_key(model_id, _MEMBER, init, 1, cid)] = made
    before = here.status()["head"]
    with here.attacked():
        hostile.attack_node(here, 60, hostile.offer, events)
    streams = here.get(f"/ceramic/streams?controller={controller_of(_MEMBER)}").json()["total"]
    here.expect("streams of the member", 0, streams)
    delivered = here.status()["head"] - before
    here.expect("few delivered beside the honest ones", True, delivered < 300)


@attack(flags=lambda: with_chain(floods=True))
def interim_answers(here: Field) -> None:
    """A blockchain endpoint answers with "100 Continue" without end, which httpx drops in steps of
    all that has come."""
    before, events = _dam(60)
    with here.attacked():
        here.add([*before, *map(parse_event, events.values())])
        time.sleep(2 * SECONDS)


def _dam(count: int) -> tuple[list[Event], dict[EventId, bytes]]:
    """A model and an init event, and time events that nobody signed and that wait for it."""
    key = SigningKey.generate()
    model, model_id = make_model(key)
    init = init_event(key, model_id, {"a": "1"}, unique=b"u")
    events: dict[EventId, bytes] = {}
    for number in range(count):
        cid, made = hostile.made_up(init.cid, init.cid, number)
        events[_key(model_id, key, init, 1, cid)] = made
    return [model, init], events


@attack()
def a_dam(here: Field) -> None:
    """20,000 time events wait for an init event; when it comes, all move in one transaction."""
    (model, init), events = _dam(20_000)
    with here.attacked():
        hostile.attack_node(here, 120, hostile.offer, events)
        here.add([model, init])
        here.await_event(init)
        _read_all(here, document_id(init))


@attack()
def sketches(here: Field) -> None:
    """An opening of 110 bytes, each time with a range of its own, has 20,000 keys sketched."""
    before, events = _dam(20_000)
    here.add(before)
    hostile.attack_node(here, 120, hostile.offer, events)
    with here.attacked():
        hostile.attack_node(here, SECONDS, flood, "sketches")
