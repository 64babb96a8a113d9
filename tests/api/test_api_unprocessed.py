"""What is computed of streams is computed in processes that may die, and a stream is set aside."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import httpx
import pytest
import trio
from nacl.signing import SigningKey

from recon_node.api import Services, create_app, evaluation
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.evaluation import Evaluation
from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event, time_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.store import Store
from recon_node.streams.budget import BudgetError

KEY = SigningKey(bytes(32))
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
INIT = CID.of(DAG_CBOR, b"init")


@pytest.fixture
async def processes() -> AsyncIterator[Evaluation]:
    opened = Evaluation(1)
    try:
        yield opened
    finally:
        await opened.close()


def refuse() -> None:
    raise bad_request("it takes too long")


def take_too_much() -> None:
    raise BudgetError("the stream takes more than 1 steps of work")


def use_up_memory() -> None:
    _ = bytearray(8 * 1024**3)


async def test_answers_and_errors_come_back(processes: Evaluation) -> None:
    assert await processes.of_stream(INIT, 1, os.getpid) != os.getpid()
    with pytest.raises(ApiError, match="too long") as caught:
        await processes.of_stream(INIT, 1, refuse)
    assert caught.value.status == 400
    with pytest.raises(BudgetError, match="1 steps"):
        await processes.of_stream(INIT, 1, take_too_much)
    assert processes.aside == []


def end_by_signal() -> None:
    os.kill(os.getpid(), 9)


@pytest.mark.parametrize("end", [partial(os._exit, 1), end_by_signal, use_up_memory])
async def test_a_stream_that_ends_its_process_is_set_aside(
    processes: Evaluation, end: Callable[[], None]
) -> None:
    with pytest.raises(ApiError, match="has set the stream aside") as caught:
        await processes.of_stream(INIT, 3, end)
    assert caught.value.status == 422
    with pytest.raises(ApiError, match="has set the stream aside"):
        await processes.of_stream(INIT, 3, partial(pytest.fail, "it was tried again"))
    assert await processes.of_stream(MODEL.cid, 3, partial(int, "5")) == 5  # others go on
    assert await processes.of_stream(INIT, 4, partial(int, "6")) == 6  # it got another event


async def test_a_stream_that_takes_too_long_is_set_aside(
    processes: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await processes.of_stream(INIT, 1, os.getpid)
    monkeypatch.setattr(evaluation, "PATIENCE", 0.1)
    with trio.fail_after(30), pytest.raises(ApiError, match="has set the stream aside"):
        await processes.of_stream(INIT, 1, partial(time.sleep, 100))


async def test_streams_are_set_aside_by_name(store: Store, processes: Evaluation) -> None:
    with pytest.raises(ApiError):
        await processes.of_stream(INIT, 3, end_by_signal)
    transport = httpx.ASGITransport(create_app(Services(store=store, evaluation=processes)))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        [stream] = (await client.get("/ceramic/unprocessed")).json()["streams"]
        assert stream["init"] == str(INIT)
        assert "signal 9" in stream["reason"]
        assert "recon_unprocessed_streams 1.0" in (await client.get("/metrics")).text


async def test_each_answer_about_a_stream_from_another_process(
    store: Store, processes: Evaluation
) -> None:
    init = init_event(KEY, MODEL, {"a": 1}, unique=b"u")
    left = data_event(KEY, init, [init.cid], [{"op": "add", "path": "/b", "value": 1}])
    right = data_event(KEY, init, [init.cid], [{"op": "add", "path": "/c", "value": 1}])
    events: list[Event] = [init, left, right, time_event(init, left.cid)]
    await store.admit_local([event.car for event in events])
    stream = f"/ceramic/streams/{init.stream_id()}"
    paths = ["", "/events", f"/events/{left.cid}", "/merge", "/picture", "/events/" + str(INIT)]
    found = []
    for services in (Services(store=store), Services(store=store, evaluation=processes)):
        transport = httpx.ASGITransport(create_app(services))
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            answers = [await client.get(stream + path) for path in paths]
            found.append([(answer.status_code, answer.json()) for answer in answers])
    assert found[0] == found[1]
    assert [status for status, _ in found[0]] == [200, 200, 200, 200, 200, 404]
