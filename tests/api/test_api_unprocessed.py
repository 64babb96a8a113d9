"""What is computed of streams is computed in processes that may die, and a stream is set aside."""

import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from api_samples import INIT as FIRST
from api_samples import MODEL, api_of, change, read
from support.time_events import time_event

from recon_node.api import evaluation
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.evaluation import Evaluation, Subject
from recon_node.ipld import CID, DAG_CBOR
from recon_node.store import Store
from recon_node.streams.json_values import BudgetError

T = TypeVar("T")

INIT = CID.of(DAG_CBOR, b"init")
STREAM = Subject(INIT)


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
    assert await processes.of_stream(STREAM, 1, os.getpid) != os.getpid()
    with pytest.raises(ApiError, match="too long") as caught:
        await processes.of_stream(STREAM, 1, refuse)
    assert caught.value.status == 400
    with pytest.raises(BudgetError, match="1 steps"):
        await processes.of_stream(STREAM, 1, take_too_much)
    assert processes.aside == []


def end_by_signal() -> None:
    os.kill(os.getpid(), 9)


async def test_what_is_large_once_it_is_decoded_is_computed_one_at_a_time() -> None:
    """A megabyte of empty lists takes 64 MB, and two at once took 440."""
    opened = Evaluation(0)
    for content, is_long in ((b"a" * 1_000_000, False), (b"\x80" * 1_000_000, True)):
        subject = Subject(CID.of(DAG_CBOR, content))
        attempt = partial(opened.of_stream, subject, 1, partial(len, content))
        assert await opened.in_turn(subject, attempt) == 1_000_000
        assert opened._is_long(subject) == is_long
    assert opened._long.take_at_once()  # it was left


@pytest.mark.parametrize("end", [end_by_signal, use_up_memory])
async def test_a_stream_that_ends_its_process_is_set_aside(processes, monkeypatch, end):
    with pytest.raises(ApiError, match="has set the stream aside") as caught:
        await processes.of_stream(STREAM, 3, end)
    assert caught.value.status == 422
    with pytest.raises(ApiError, match="has set the stream aside"):
        await processes.of_stream(STREAM, 3, partial(pytest.fail, "it was tried again"))
    assert await processes.of_stream(Subject(MODEL.cid), 3, partial(int, "5")) == 5  # others go on
    with pytest.raises(ApiError, match="has set the stream aside"):  # another event is no excuse
        await processes.of_stream(STREAM, 4, partial(pytest.fail, "it was tried again"))
    monkeypatch.setattr(evaluation, "REST", 0)
    with pytest.raises(ApiError, match="has set the stream aside"):
        await processes.of_stream(STREAM, 3, partial(pytest.fail, "it was tried again"))
    assert await processes.of_stream(STREAM, 4, partial(int, "6")) == 6


async def test_the_rest_ends_though_the_clock_is_set_back(processes, monkeypatch):
    with pytest.raises(ApiError, match="has set the stream aside"):
        await processes.of_stream(STREAM, 3, end_by_signal)
    processes._begin_long(STREAM, trio.lowlevel.current_task())
    assert processes._is_long(STREAM)
    monkeypatch.setattr(evaluation, "REST", 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert not processes._is_long(STREAM)
    assert await processes.of_stream(STREAM, 4, partial(int, "6")) == 6


def end_the_first(marks: Path) -> int:
    if not marks.exists():
        marks.touch()
        end_by_signal()
    return 5


async def test_a_process_that_others_end_is_not_a_fault_of_the_stream(processes, tmp_path):
    """The kernel ends it first when the memory of the machine is used up, by whomever."""
    for idle in range(2):
        os.kill(await processes.of_stream(STREAM, 1, os.getpid), 9)
        assert await processes.of_stream(STREAM, 1, partial(int, idle)) == idle
    assert await processes.of_stream(STREAM, 1, partial(end_the_first, tmp_path / "marks")) == 5
    assert processes.aside == []


async def test_a_tangle_that_ends_its_process_leaves_its_root_alone(processes: Evaluation) -> None:
    tangle = Subject(INIT, "thread")
    for _ in range(2):
        with pytest.raises(ApiError, match="has set the tangle aside"):
            await processes.of_stream(tangle, 3, partial(os._exit, 1))
    assert await processes.of_stream(STREAM, 3, partial(int, "5")) == 5
    assert [failure.subject for failure in processes.aside] == [tangle]


async def test_a_stream_that_takes_too_long_is_set_aside(processes, monkeypatch):
    await processes.of_stream(STREAM, 1, os.getpid)
    monkeypatch.setattr(evaluation, "EVALUATION_TIMEOUT", 0.1)
    with trio.fail_after(30), pytest.raises(ApiError, match="has set the stream aside"):
        await processes.of_stream(STREAM, 1, partial(time.sleep, 100))


async def test_what_takes_long_leaves_room_for_short_work(monkeypatch, tmp_path):
    """Two streams of one author once held all processes for a minute."""
    monkeypatch.setattr(evaluation, "QUICK", 0.2)
    monkeypatch.setattr(evaluation, "LONG_PATIENCE", 100.0)
    opened = Evaluation(2)
    done: list[str] = []
    end = tmp_path / "end"

    async def ask(name: str, function: Callable[[], T]) -> T:
        subject = Subject(CID.of(DAG_CBOR, name.encode()))
        attempt = partial(opened.of_stream, subject, 1, function)
        answer = await opened.in_turn(subject, attempt)
        done.append(name)
        return answer

    try:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for name in ("long", "long, too"):
                    nursery.start_soon(ask, name, partial(wait_for, end))
                while opened._long.waiting < 1:
                    await trio.lowlevel.checkpoint()
                monkeypatch.setattr(evaluation, "QUICK", 60.0)
                for number in range(5):
                    assert await ask(f"short {number}", partial(int, number)) == number
                assert not any("long" in name for name in done)
                end.touch()
        assert len(done) == 7
        assert opened.aside == []
    finally:
        await opened.close()


async def test_what_is_large_is_computed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in memory several times; and it is not read again before its turn."""
    monkeypatch.setattr(evaluation, "LARGE", 1000)
    opened = Evaluation(0)
    reading: list[str] = []
    most = 0

    async def ask(name: str) -> None:
        nonlocal most

        async def attempt() -> int:
            nonlocal most
            reading.append(name)
            answer = await opened.of_stream(subject, 1, partial(int, "5"), 2000)
            most = max(most, len(opened._having_long))
            return answer

        subject = Subject(CID.of(DAG_CBOR, name.encode()))
        assert await opened.in_turn(subject, attempt) == 5

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(ask, str(number))
    assert most == 1
    assert max(Counter(reading).values()) <= 2  # again when it was their turn
    assert opened._long.take_at_once()


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


async def test_too_many_that_take_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold no slot while they wait, and what is known to take long waits at once."""
    monkeypatch.setattr(evaluation, "QUICK", 0.1)
    opened = Evaluation(1)
    monkeypatch.setattr(evaluation, "LONG_PATIENCE", 0.2)
    try:
        attempt = partial(opened.of_stream, STREAM, 1, partial(time.sleep, 0.3))
        await opened.in_turn(STREAM, attempt)
        assert opened._long.take_at_once()
        with pytest.raises(ApiError, match="and so do others") as caught:
            await opened.in_turn(STREAM, partial(opened.of_stream, STREAM, 1, pytest.fail))
        assert caught.value.status == 503
        monkeypatch.setattr(evaluation, "MAX_WAITING", 0)
        monkeypatch.setattr(evaluation, "LONG_PATIENCE", 1e6)
        with pytest.raises(ApiError, match="and so do others"), trio.fail_after(60):
            await opened.in_turn(STREAM, partial(opened.of_stream, STREAM, 1, pytest.fail))
        opened._long.leave()
    finally:
        await opened.close()


async def test_streams_are_set_aside_by_name(store: Store, processes: Evaluation) -> None:
    with pytest.raises(ApiError):
        await processes.of_stream(STREAM, 3, end_by_signal)
    async with api_of(store, evaluation=processes) as api:
        [stream] = (await read(api, "unprocessed"))["streams"]
        assert stream["init"] == str(INIT)
        assert "signal 9" in stream["reason"]
        assert "recon_unprocessed_streams 1.0" in (await api.get("/metrics")).text


async def test_each_answer_about_a_stream_from_another_process(store, processes):
    left, right = change(FIRST, n=1), change(FIRST, n=2)
    await store.admit_local([e.car for e in (FIRST, left, right, time_event(FIRST, left.cid))])
    paths = ("", "/events", f"/events/{left.cid}", "/merge", "/picture", f"/events/{INIT}")
    stream, answered = f"streams/{FIRST.stream_id()}", []
    for where in (Evaluation(0), processes):
        async with api_of(store, evaluation=where) as api:
            answers = [await api.get(f"/ceramic/{stream}{path}") for path in paths]
            answered.append([(answer.status_code, answer.json()) for answer in answers])
    assert answered[0] == answered[1]
    assert [status for status, _ in answered[0]] == [200, 200, 200, 200, 200, 404]
