"""The write policy: lists of models and controllers, and what they keep from the log."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from store_helpers import KEYS, MODEL, NETWORK, OTHER_MODEL, controller, offer
from support.time_events import time_event

from recon_node.ceramic import METAMODEL, EventId, StreamId, StreamType
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, init_event, model_event, signed_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.store import Policy, PolicySettings, open_store
from recon_node.store.admission.records import StreamRecord
from recon_node.store.policy import StreamFacts, hashes_of_event_ids, hashes_of_ring_keys

ALICE, BOB, *_ = KEYS
DIDS = [controller(n) for n in range(len(KEYS))]
MODELS = [MODEL, OTHER_MODEL, METAMODEL]


def settings(**lists) -> PolicySettings:
    return PolicySettings(**{name: tuple(map(str, values)) for name, values in lists.items()})


def lists(**texts) -> Policy:
    return Policy.of(settings(**texts))


def facts_of(event) -> StreamFacts:
    return StreamFacts(StreamRecord.of(event), event.header.model, event.header.stream_type)


def family(key: SigningKey, model: StreamId) -> bytes:
    """An init event of a model whose sort key is another field."""
    header = {
        "controllers": [controller_of(key)],
        "model": model.to_bytes(),
        "sep": "family",
        "family": "blog",
    }
    return signed_event(key, {"header": header, "data": None})


async def test_lists_hold_for_clients_and_for_peers(tmp_path):
    fine, other = init_event(ALICE, MODEL, None), init_event(BOB, MODEL, None)
    foreign = init_event(ALICE, OTHER_MODEL, None)
    refused = "the write policy of this node refuses the stream: its controller"
    async with open_store(tmp_path, NETWORK, policy=lists(allow_controllers=[DIDS[0]])) as store:
        verdicts = await store.admit_local([fine.car, other.car, foreign.car])
        assert [verdict.status for verdict in verdicts] == ["new", "refused", "new"]
        assert verdicts[1].cause == "policy"
        assert verdicts[1].reason == f"{refused} {DIDS[1]} is not in allow_controllers"
        [verdict] = await store.admit_remote([offer(other)])
        assert (verdict.status, verdict.cause) == ("refused", "policy")
        assert "its EventId is of no controller in allow_controllers" in verdict.reason
        assert store.is_unwanted(offer(other)[0])
        assert store.is_ruled_out(offer(other)[0])
        assert not store.is_ruled_out(offer(fine)[0])
        assert store.totals["policy refused"] == 2
        assert store.head == len(store.keys) == 2


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ({"deny_models": [MODEL]}, "its model .* is in deny_models"),
        ({"allow_models": [OTHER_MODEL]}, "its model .* is not in allow_models"),
        ({"deny_controllers": [DIDS[0]]}, "its controller did:key:.* is in deny_controllers"),
        ({"allow_controllers": [DIDS[1]]}, "is not in allow_controllers"),
        ({"allow_models": [MODEL], "deny_models": [MODEL]}, "deny_models"),
        ({"allow_controllers": [DIDS[0]], "deny_models": [MODEL]}, "deny_models"),
        ({"allow_models": [MODEL], "allow_controllers": [DIDS[0]]}, None),
        ({"deny_models": [OTHER_MODEL], "deny_controllers": [DIDS[1]]}, None),
        ({}, None),
    ],
)
def test_each_list(setting, refused):
    reason = lists(**setting).refuse(facts_of(init_event(ALICE, MODEL, None)))
    assert reason is None if refused is None else re.search(refused, reason)


def test_a_model_that_is_allowed_brings_its_own_stream():
    """Its documents cannot be checked without it, and it often has another controller."""
    mine, others = model_event(BOB, {"name": "Mine"}), model_event(BOB, {"name": "Other"})
    document = init_event(ALICE, mine.stream_id(), None)
    allowing = lists(allow_models=[mine.stream_id()], allow_controllers=[DIDS[0]])
    denying = lists(deny_models=[mine.stream_id()])
    for policy, refused in ((allowing, [others]), (denying, [mine, document])):
        events = [mine, others, document]
        assert [event for event in events if policy.refuse(facts_of(event))] == refused


async def test_a_denied_model_under_another_sort_key(tmp_path):
    """Its EventId does not name the model: the init event does, and the rest follows it."""
    init = family(ALICE, MODEL)
    change = data_event(ALICE, init, [init.cid], {})
    async with open_store(tmp_path, NETWORK, policy=lists(deny_models=[MODEL])) as store:
        assert not store.is_unwanted(offer(change, init, 1)[0])
        [verdict] = await store.admit_remote([offer(change, init, 1)])
        assert verdict.status == "new", "nobody knows yet"
        [verdict] = await store.admit_remote([offer(init)])
        assert verdict.cause == "policy"
        assert (len(store.keys), store.waiting) == (0, 0), "what waited for it is gone"
        assert store.is_unwanted(offer(change, init, 1)[0]), "and is not fetched again"
        [verdict] = await store.admit_remote([offer(change, init, 1)])
        assert verdict.cause == "policy"
    async with open_store(tmp_path, NETWORK) as store:
        verdicts = await store.admit_remote([offer(init), offer(change, init, 1)])
        assert [verdict.status for verdict in verdicts] == ["new", "new"], (
            "a refusal is not for ever"
        )


async def test_all_events_of_a_stream_share_the_verdict(tmp_path):
    init = init_event(BOB, MODEL, None)
    change = data_event(BOB, init, [init.cid], {})
    anchor = time_event(init, change.cid)
    events = [offer(init), offer(change, init, 1), offer(anchor, init, 2)]
    async with open_store(tmp_path, NETWORK, policy=lists(deny_controllers=[DIDS[1]])) as store:
        assert {verdict.cause for verdict in await store.admit_remote(events)} == {"policy"}
        ring = [
            (HeightlessEventId.build(NETWORK, MODEL, DIDS[1], init.cid, event.cid), event.car)
            for event in (init, change, anchor)
        ]
        assert {verdict.cause for verdict in await store.admit_from_ring(ring)} == {"policy"}
        assert len(store.keys) == store.waiting == 0


async def test_a_stricter_policy_keeps_what_is_here_and_takes_no_more_of_it(tmp_path):
    init = init_event(BOB, MODEL, None)
    change = data_event(BOB, init, [init.cid], {})
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_local([init.car])
    for policy in (lists(deny_controllers=[DIDS[1]]), lists(deny_models=[MODEL])):
        async with open_store(tmp_path, NETWORK, policy=policy) as store:
            [local] = await store.admit_local([change.car])
            [remote] = await store.admit_remote([offer(change, init, 1)])
            assert local.cause == remote.cause == "policy"
            [known] = await store.admit_remote([offer(init)])
            assert known.status == "known"
            assert store.head == 1
            assert (await store.reader.car(init.cid)) == init.car


async def test_what_a_peer_calls_an_event_of_a_refused_stream_says_nothing_of_others(tmp_path):
    """Nobody can keep a stream out by naming another one's event as its own."""
    wanted, unwanted = init_event(ALICE, MODEL, None), init_event(BOB, MODEL, None)
    forged = EventId.build(NETWORK, str(MODEL), DIDS[0], wanted.cid, 0, unwanted.cid)
    async with open_store(tmp_path, NETWORK, policy=lists(deny_controllers=[DIDS[1]])) as store:
        [verdict] = await store.admit_remote([(forged, unwanted.car)])
        assert verdict.status == "refused"
        assert store.is_unwanted(offer(unwanted)[0])
        assert not store.is_unwanted(offer(wanted)[0])
        [verdict] = await store.admit_remote([offer(wanted)])
        assert verdict.status == "new"


ETHEREUM = "did:pkh:eip155:1:0xAb5801a7D398351b8bE11C439e05C5B3259aeC9B"
MODEL_SETS = st.sets(st.sampled_from(MODELS))
DID_SETS = st.sets(st.sampled_from([*DIDS[:3], ETHEREUM]))


@given(MODEL_SETS, MODEL_SETS, DID_SETS, DID_SETS, st.randoms())
def test_an_event_id_is_refused_only_if_its_stream_is(allowed, denied, may, may_not, random):
    """An independent reading of the lists; and what hashes refuse, the lists refuse."""
    given_lists = Policy.of(
        settings(
            allow_models=allowed,
            deny_models=denied,
            allow_controllers=may,
            deny_controllers=may_not,
        )
    )
    key = random.choice(KEYS)
    model = random.choice(MODELS)
    event = random.choice([lambda: init_event(key, model, None), lambda: family(key, model)])()
    stream = facts_of(event)
    header = event.header
    is_refused = given_lists.refuse(stream) is not None
    expected = (
        model in denied
        or header.controller in may_not
        or (bool(allowed) and (model not in allowed or header.sort_key != "model"))
        or (bool(may) and header.controller not in may)
    )
    assert is_refused == expected
    by_hash = hashes_of_event_ids(given_lists).refuse(event.event_id(NETWORK, header, 0))
    assert by_hash is None or is_refused
    if header.sort_key == "model":
        assert (by_hash is not None) == is_refused, "the usual EventId tells all"
        ring_key = HeightlessEventId.build(NETWORK, model, header.controller, event.cid, event.cid)
        by_ring_hash = hashes_of_ring_keys(given_lists).refuse(ring_key)
        assert (by_ring_hash is not None) == is_refused


def test_the_case_of_an_ethereum_address_does_not_matter():
    stream = facts_of(init_event(ALICE, MODEL, None))
    stream = replace(stream, record=stream.record._replace(controller=ETHEREUM.lower()))
    assert "deny_controllers" in (
        Policy.of(settings(deny_controllers=[ETHEREUM])).refuse(stream) or ""
    )
    assert Policy.of(settings(allow_controllers=[ETHEREUM])).refuse(stream) is None


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"allow_models": ("x",)}, "is not a StreamID"),
        ({"deny_models": (str(StreamId(StreamType.MODEL_INSTANCE, MODEL.cid)),)}, "of a model"),
        ({"allow_controllers": ("alice",)}, "'alice' is not a DID"),
    ],
)
def test_lists_that_cannot_be_used(setting, words):
    with pytest.raises(ValueError, match=words):
        PolicySettings(**setting)
