"""The setting `interests` of a node: taken up before it starts to sync, or the start is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from nacl.signing import SigningKey
from structlog.testing import capture_logs

from recon_node.ceramic import METAMODEL, Network, StreamId, StreamType, sort_value_range
from recon_node.ceramic.builder import init_event
from recon_node.node import NodeError, _take_up_interests
from recon_node.settings import load_settings
from recon_node.store import Interest, open_store

NETWORK = Network.local(7)
MODEL = StreamId(StreamType.MODEL, METAMODEL.cid)


async def test_interests_are_taken_up(tmp_path: Path) -> None:
    settings = load_settings(flags={"interests": (str(MODEL),)})
    async with open_store(tmp_path, NETWORK) as store:
        with capture_logs() as logs:
            await _take_up_interests(store, settings)
        assert store.key_ranges() == [sort_value_range(NETWORK, str(MODEL))]
        assert logs == []


async def test_a_document_needs_to_be_here_or_named_in_full(tmp_path: Path) -> None:
    init = init_event(SigningKey.generate(), MODEL, {"a": 1})
    stream = StreamId(StreamType.MODEL_INSTANCE, init.cid)
    settings = load_settings(flags={"interests": (str(stream),)})
    async with open_store(tmp_path, NETWORK) as store:
        with pytest.raises(NodeError, match=r"setting `interests`: .* is not here yet"):
            await _take_up_interests(store, settings)
        assert store.interests == ()
        await store.admit_local([init.car])
        await _take_up_interests(store, settings)
        assert init.header is not None
        controller = init.header.controller
        assert store.interests == (Interest("model", str(MODEL), controller, stream),)


async def test_an_interest_of_before_that_nothing_can_match_is_told(tmp_path: Path) -> None:
    document = str(StreamId(StreamType.MODEL_INSTANCE, METAMODEL.cid))
    async with open_store(tmp_path, NETWORK) as store:
        await store.add_interest(Interest("model", document))
        with capture_logs() as logs:
            await _take_up_interests(store, load_settings())
        assert [line["interest"] for line in logs] == [f"model={document}"]
        assert logs[0]["log_level"] == "warning"
