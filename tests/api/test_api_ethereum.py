"""An Ethereum account is one controller, in lower case and in the mixed case of EIP-55."""

import pyarrow as pa
import pytest
from api_samples import MODEL, Api, admit, read

from recon_node.ceramic import EventId
from recon_node.ceramic.auth.did import eip55
from recon_node.ceramic.builder import deterministic_init_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID
from recon_node.recon import covers
from recon_node.store import Interest, PolicySettings, Store
from recon_node.store.kept_interests import key_ranges, ring_ranges
from recon_node.store.policy import Policy, hashes_of_event_ids, hashes_of_ring_keys

ADDRESS = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed"
DIDS = [f"did:pkh:eip155:1:{address}" for address in (ADDRESS, eip55(ADDRESS))]
OTHER = "did:pkh:eip155:5:" + ADDRESS
EVENTS = [deterministic_init_event(did, MODEL) for did in (*DIDS, OTHER)]
CIDS = {str(event.cid) for event in EVENTS[:2]}

pytestmark = pytest.mark.parametrize("did", DIDS)


@pytest.fixture
async def filled(store: Store) -> Store:
    """A store with a stream under each spelling, and one of another chain."""
    await admit(store, *EVENTS)
    return store


async def test_lists_search_and_the_feed(filled: Store, api: Api, did: str) -> None:
    matches = await read(api, "search", q=did)
    assert matches["controllers"] == [{"id": did, "streams": 2}]
    for params in ({"controller": did}, {"controller": did, "model": str(MODEL)}):
        page = await read(api, "streams", **params)
        assert {stream["init"] for stream in page["streams"]} == CIDS
        assert page["total"] == 2
    for params in ({"controller": did}, {"controller": did, "sortValue": str(MODEL)}):
        answer = await api.get("/ceramic/feed/arrow", params=params)
        table = pa.ipc.open_stream(answer.content).read_all()
        assert {str(CID(cid)) for cid in table["event_cid"].to_pylist()} == CIDS


async def test_the_events_of_an_interest(filled: Store, api: Api, did: str) -> None:
    answer = await read(api, f"experimental/events/model/{MODEL}", controller=did)
    assert {event["id"] for event in answer["events"]} == CIDS


async def test_an_interest_covers_both(store: Store, did: str) -> None:
    interest = Interest("model", str(MODEL), did)
    ranges = key_ranges(store.network, [interest])
    assert [covers(ranges, key) for key in keys(store)] == [True, True, False]
    ring = ring_ranges(store.network, [interest])
    assert [covers(ring, key) for key in ring_keys(store)] == [True, True, False]


async def test_a_policy_of_controllers_holds_for_both(store: Store, did: str) -> None:
    for setting, refused in (("allow", [False, False, True]), ("deny", [True, True, False])):
        lists = Policy.of(PolicySettings(**{f"{setting}_controllers": [did]}))
        by_key, by_ring = hashes_of_event_ids(lists), hashes_of_ring_keys(lists)
        assert [by_key.refuse(key) is not None for key in keys(store)] == refused
        assert [by_ring.refuse(key) is not None for key in ring_keys(store)] == refused


def keys(store: Store) -> list[EventId]:
    return [
        EventId.build(store.network, str(MODEL), did, event.cid, 0, event.cid)
        for did, event in zip((*DIDS, OTHER), EVENTS, strict=True)
    ]


def ring_keys(store: Store) -> list[HeightlessEventId]:
    return [
        HeightlessEventId.build(store.network, MODEL, did, event.cid, event.cid)
        for did, event in zip((*DIDS, OTHER), EVENTS, strict=True)
    ]
