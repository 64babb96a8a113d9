"""A node that has forgotten a stream is equal to its peers, and gets nothing of it again."""

from pathlib import Path

from nacl.signing import SigningKey
from p2p_support import eventually, node

from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.p2p import AGREED
from recon_node.store import Store
from recon_node.store.maintenance import forget_streams

KEY = SigningKey(bytes(range(32)))
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
OFTEN = {"sync_interval": 0.5}


def history(unique: bytes, changes: int = 5) -> list[Event]:
    init = init_event(KEY, MODEL, {"n": 0}, unique=unique)
    events = [init]
    for n in range(changes):
        patch = [{"op": "replace", "path": "/n", "value": n}]
        events.append(data_event(KEY, init, [events[-1].cid], patch))
    return events


async def bytes_of(store: Store, events: list[Event]) -> list[bool]:
    """Which of some events have their bytes here."""
    return [
        car is not None for car in await store.reader.cars_by_cid([event.cid for event in events])
    ]


async def test_peers_do_not_bring_back_what_was_forgotten(tmp_path: Path) -> None:
    forgotten, others = history(b"forgotten"), history(b"other")
    cars = [event.car for event in (*forgotten, *others)]
    async with node(tmp_path / "a", cars, **OFTEN):
        pass
    assert forget_streams(tmp_path / "a", [forgotten[0].cid]).events == len(forgotten)
    async with (
        node(tmp_path / "a", **OFTEN) as a,
        node(tmp_path / "b", cars, **OFTEN) as b,
        node(tmp_path / "c", **OFTEN) as c,
    ):
        later = data_event(KEY, forgotten[0], [forgotten[-1].cid], [])
        await b.store.admit_local([later.car])
        await a.p2p.connect(b.address)
        await eventually(lambda: a.ahash() == b.ahash() and a.outcomes()[-1:] == [AGREED])
        assert not any(await bytes_of(a.store, [*forgotten, later]))
        assert all(await bytes_of(a.store, others))
        assert a.store.damage.count == 0
        assert a.store.head == len(cars) + 1

        await c.p2p.connect(a.address)
        await eventually(lambda: len(c.store.keys) == len(others))
        assert all(await bytes_of(c.store, others))
        await c.p2p.connect(b.address)
        await eventually(lambda: c.ahash() == b.ahash())
        assert all(await bytes_of(c.store, [*forgotten, later]))
        assert not any(await bytes_of(a.store, [*forgotten, later]))
