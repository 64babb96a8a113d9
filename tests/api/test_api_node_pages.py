"""What pages show of the whole node: its last hour, its syncs, and who is interested in what."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from openapi_check import check_answer
from test_api_listings import STREAMS, admit
from trio.testing import MockClock

from recon_node.api import Services, create_app
from recon_node.api.samples import (
    INTERVAL,
    KEPT,
    LoopWatch,
    Sample,
    SampleRing,
    run_samples,
    take_sample,
)
from recon_node.p2p import Counters, PeerInfo, SyncReport
from recon_node.store import Store


def report(number: int, *, moved: int = 0) -> SyncReport:
    return SyncReport(
        peer=f"peer{number}",
        role="initiator",
        protocol="/ceramic/recon/1.2.0",
        rounds=1,
        bytes_sent=1,
        bytes_received=1,
        event_bytes_sent=0,
        event_bytes_received=0,
        keys_received=0,
        events_received=moved,
        events_sent=0,
        seconds=0.1,
        keys_left_out=0,
        keys_left_out_by_peer=0,
        outcome="agreed",
        finished_at=float(number),
    )


@asynccontextmanager
async def client(services: Services, **sides: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(dataclasses.replace(services, **sides)))
    hooks = {"response": [check_answer]}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://node", event_hooks=hooks
    ) as found:
        yield found


async def read(api: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await api.get(f"/ceramic/recon/{path}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@given(numbers=st.lists(st.integers(0, 9), max_size=9), kept=st.integers(1, 5))
def test_a_ring_has_the_latest_samples(numbers: list[int], kept: int) -> None:
    ring = SampleRing(kept)
    for number in numbers:
        ring.add(Sample(number, *[number] * 10))
    for column in ring.columns().values():
        assert column == numbers[-kept:]
    assert (ring.latest and ring.latest.time) == (numbers[-1] if numbers else None)


@given(spans=st.lists(st.floats(0, 10), max_size=9))
def test_the_longest_hold_since_the_last_look(spans: list[float]) -> None:
    now = 0.0
    watch = LoopWatch(lambda: now)
    for span in spans:
        watch.after_io_wait(0)
        now += span
        watch.before_io_wait(0)
        now += 100  # waiting is not holding
    assert watch.take() == pytest.approx(max(spans, default=0), abs=1e-9)
    assert watch.take() == 0


async def test_samples_are_taken_at_their_times(
    services: Services, autojump_clock: MockClock
) -> None:
    begun = trio.current_time()
    with trio.move_on_after(2.5 * INTERVAL):
        await run_samples(services, trio.current_time)
    async with client(services) as api:
        found = await read(api, "samples")
    assert found["interval"] == INTERVAL
    assert [each - begun for each in found["time"]] == pytest.approx([0, INTERVAL, 2 * INTERVAL])
    assert all(len(column) == 3 for name, column in found.items() if name != "interval")
    assert KEPT * INTERVAL == 3600


async def test_a_sample_says_what_the_node_has(services: Services, store: Store) -> None:
    await admit(store, *STREAMS)
    counters = Counters()
    counters.count(report(1))
    known = [PeerInfo(each, (), each == "a", None, None, 0, ()) for each in "ab"]
    peers: Any = SimpleNamespace(counters=counters, peers=lambda: known)
    sample = take_sample(dataclasses.replace(services, peers=peers), 5.0, 0.25)
    assert (sample.events, sample.delivered) == (len(STREAMS), len(STREAMS))
    assert (sample.peers, sample.syncs, sample.failed_syncs) == (1, 1, 0)
    assert (sample.bytes_sent, sample.bytes_received) == (1, 1)
    assert (sample.time, sample.lag) == (5.0, 0.25)


async def test_syncs_the_latest_first(services: Services) -> None:
    peers: Any = SimpleNamespace(
        sync_reports=[report(n) for n in range(5)], transfers=[report(9, moved=3)]
    )
    async with client(services, peers=peers) as api:
        found = await read(api, "syncs?limit=2")
        assert [each["finished_at"] for each in found["syncs"]] == [4, 3]
        [moved] = (await read(api, "syncs?of=transfers"))["syncs"]
        assert moved["events_received"] == 3
        assert (await api.get("/ceramic/recon/syncs?of=some")).status_code == 400
    async with client(services) as api:
        assert await read(api, "syncs") == {"syncs": []}
