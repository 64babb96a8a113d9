"""What a node does before it starts: it takes over interests, and warns about an open API."""

from pathlib import Path

import pytest
from nacl.signing import SigningKey
from structlog.testing import capture_logs
from support.settings import load_settings

from recon_node.api.listener import open_listener
from recon_node.api.settings import Access
from recon_node.ceramic import METAMODEL, Network, StreamId, StreamType, sort_value_range
from recon_node.ceramic.builder import init_event
from recon_node.node import StartError, _configure_interests, warn_if_open
from recon_node.store import Interest, open_store

NETWORK = Network.local(7)
MODEL = StreamId(StreamType.MODEL, METAMODEL.cid)


async def test_interests_are_configured(tmp_path: Path) -> None:
    settings = load_settings(flags={"interests": (str(MODEL),)})
    async with open_store(tmp_path, NETWORK) as store:
        with capture_logs() as logs:
            await _configure_interests(store, settings.wanted())
        assert store.wanted.ranges == [sort_value_range(NETWORK, str(MODEL))]
        assert logs == []


async def test_a_document_must_be_here_or_be_named_in_full(tmp_path: Path) -> None:
    init = init_event(SigningKey.generate(), MODEL, {"a": 1})
    stream = StreamId(StreamType.MODEL_INSTANCE, init.cid)
    settings = load_settings(flags={"interests": (str(stream),)})
    async with open_store(tmp_path, NETWORK) as store:
        with pytest.raises(
            StartError, match=r"setting `interests`: this node does not have the stream"
        ):
            await _configure_interests(store, settings.wanted())
        assert store.wanted.all == ()
        await store.admit_local([init.car])
        await _configure_interests(store, settings.wanted())
        controller = init.header.controller
        assert store.wanted.all == (Interest("model", str(MODEL), controller, stream),)


async def test_an_old_interest_that_nothing_can_match_is_logged(tmp_path: Path) -> None:
    document = str(StreamId(StreamType.MODEL_INSTANCE, METAMODEL.cid))
    async with open_store(tmp_path, NETWORK) as store:
        await store.wanted.add(Interest("model", document))
        with capture_logs() as logs:
            await _configure_interests(store, [])
        assert [line["interest"] for line in logs] == [f"model={document}"]
        assert logs[0]["log_level"] == "warning"


@pytest.mark.parametrize(
    ("host", "token", "warned"),
    [
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("0.0.0.0", "0123456789abcdef", False),
    ],
)
async def test_a_warning_about_an_api_that_is_open_to_everyone(host, token, warned):
    listener = await open_listener(host, 0)
    with capture_logs() as logs:
        warn_if_open(listener, Access(token=token))
    listener.close()
    assert [line["log_level"] for line in logs] == ["warning"] * warned
    assert all("set a token" in line["event"] for line in logs)
