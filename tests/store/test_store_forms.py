"""Events whose files are not in the form of the network: what is kept of them is."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_helpers import KEYS, MODEL, NETWORK

from recon_node.ceramic import Event
from recon_node.ceramic.builder import init_event
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car, dag_cbor
from recon_node.store import StoreSettings, open_store


def with_null_link(event: Event, codec: int) -> bytes:
    """The event as kubo's `ipfs dag get --output-codec dag-jose` hands it out."""
    blocks = dict(car.decode(event.car).blocks)
    envelope = blocks.pop(event.cid)
    cid = CID.of(codec, envelope)
    blocks[cid] = dag_cbor.encode(dag_cbor.decode(envelope) | {"link": None})
    return car.encode([cid], blocks)


@pytest.mark.parametrize("codec", [DAG_JOSE, DAG_CBOR])
@pytest.mark.parametrize("verifiers", [0, 1])
async def test_what_is_kept_matches_its_cids(tmp_path: Path, codec: int, verifiers: int) -> None:
    """Whoever brings it, and wherever it is checked."""
    events = [init_event(KEYS[0], MODEL, {}, unique=bytes([n])) for n in range(20)]
    offers = []
    for event in events:
        assert event.header is not None
        offers.append((event.event_id(NETWORK, event.header, 0), with_null_link(event, codec)))
    settings = StoreSettings(verifiers=verifiers)
    async with open_store(tmp_path, NETWORK, settings=settings) as store:
        verdicts = await store.admit_remote(offers[:19])
        verdicts += await store.admit_local([offers[19][1]])
        assert {verdict.status for verdict in verdicts} == {"new"}
        kept = await store.log.cars([event_id for event_id, _ in offers])
        for event, data in zip(events, kept, strict=True):
            assert data is not None
            assert car.decode(data).roots == (event.cid,)
            assert car.decode(data).blocks == car.decode(event.car).blocks
