"""Events that must be refused, with what the refusal says."""

from collections.abc import Callable

from store_helpers import KEYS, MODEL, NETWORK, World, controller
from support.forging import forged

from recon_node.ceramic import MAX_CAR_SIZE, Event, EventId, Network
from recon_node.ceramic.builder import data_event, signed_event
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor

Offer = tuple[EventId, bytes]


def rewritten(event: Event, change: Callable[[dict[CID, bytes]], None]) -> bytes:
    """The event's CAR with other blocks under the same CIDs."""
    decoded = car.decode(event.car)
    blocks = dict(decoded.blocks)
    change(blocks)
    return car.encode(decoded.roots, blocks)


class Case:
    """A stream that is here (init, first), and events that must be refused."""

    def __init__(self) -> None:
        self.world = World(0, streams=0, events=0)
        self.init = self.world.start(KEYS[0], b"u")
        self.first = self.world.extend(self.init.cid, [self.init.cid], "first")
        self.next = data_event(KEYS[0], self.init, [self.first.cid], "next")

    def key(self, event: Event, height: int = 2, network: Network = NETWORK) -> EventId:
        header = self.world.headers[self.init.cid]
        return EventId.build(
            network, header.sort_value, header.controller, self.init.cid, height, event.cid
        )

    def block_that_does_not_match(self) -> bytes:
        def change(blocks: dict[CID, bytes]) -> None:
            [payload] = [cid for cid in blocks if cid != self.next.cid]
            blocks[payload] += b"\x00"

        return rewritten(self.next, change)

    def without_payload(self) -> bytes:
        def change(blocks: dict[CID, bytes]) -> None:
            [payload] = [cid for cid in blocks if cid != self.next.cid]
            del blocks[payload]

        return rewritten(self.next, change)

    def wrong_signature(self) -> Event:
        return forged(self.next, b"\x01" * 64)

    def by_another(self) -> Event:
        return data_event(KEYS[1], self.init, [self.first.cid], "by another")

    def init_for_another(self) -> Event:
        payload = {
            "header": {"controllers": [controller(1)], "model": MODEL.to_bytes(), "sep": "model"},
            "data": {"title": "mine"},
        }
        return signed_event(KEYS[0], payload)

    def unsigned_init_with_data(self) -> bytes:
        payload = {
            "header": {"controllers": [controller(0)], "model": MODEL.to_bytes(), "sep": "model"},
            "data": {"title": "unsigned"},
        }
        block = dag_cbor.encode(payload)
        cid = CID.of(DAG_CBOR, block)
        return car.encode([cid], {cid: block})

    def unknown_header_field(self) -> bytes:
        payload = {
            "header": {"controllers": [controller(0)], "model": MODEL.to_bytes(), "surprise": 1},
            "data": None,
        }
        block = dag_cbor.encode(payload)
        cid = CID.of(DAG_CBOR, block)
        return car.encode([cid], {cid: block})


MISSING = CID.of(DAG_CBOR, b"nobody has it")

LOCAL: dict[str, tuple[Callable[[Case], bytes], str]] = {
    "nothing": (lambda case: b"", "empty"),
    "not a CAR": (lambda case: b"garbage", "CAR"),
    "cut short": (lambda case: case.next.car[:-1], "CAR"),
    "too large": (lambda case: bytes(MAX_CAR_SIZE + 1), "accepts at most"),
    "ten megabytes": (lambda case: bytes(10_000_000), "accepts at most"),
    "not CBOR": (
        lambda case: car.encode([CID.of(DAG_CBOR, b"\xff")], {CID.of(DAG_CBOR, b"\xff"): b"\xff"}),
        "CBOR",
    ),
    "block that does not match": (Case.block_that_does_not_match, "does not match its CID"),
    "payload missing": (Case.without_payload, "lacks the block"),
    "unknown header field": (Case.unknown_header_field, "surprise"),
    "wrong signature": (lambda case: case.wrong_signature().car, "signature"),
    "by another than the controller": (lambda case: case.by_another().car, "controller"),
    "init event for another": (lambda case: case.init_for_another().car, "controller"),
    "unsigned init event with data": (Case.unsigned_init_with_data, "must be signed"),
    "unknown prev": (
        lambda case: data_event(KEYS[0], case.init, [case.first.cid, MISSING], 1).car,
        f"prev {MISSING} is missing",
    ),
    "unknown init": (
        lambda case: data_event(KEYS[0], MISSING, [case.first.cid], 1).car,
        f"init event {MISSING}",
    ),
}
