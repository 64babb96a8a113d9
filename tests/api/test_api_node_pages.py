"""What pages show of the whole node: its syncs, and who is interested in what."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st
from openapi_check import check_answer

from recon_node.api import Services, create_app
from recon_node.api.services import LOOP_WINDOW, LoopWatch
from recon_node.p2p import SyncReport


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


@given(spans=st.lists(st.floats(0, 9), max_size=9), idle=st.floats(0, 9))
def test_the_longest_hold_is_that_of_the_last_ten_to_thirty_seconds(
    spans: list[float], idle: float
) -> None:
    now = 0.0
    watch = LoopWatch(lambda: now)
    held: list[tuple[float, float]] = []
    for span in spans:
        watch.after_io_wait(0)
        now += span
        watch.before_io_wait(0)
        held.append((now, span))
        now += idle  # waiting is not holding
    watch.after_io_wait(0)
    kept = max((span for at, span in held if now - at < LOOP_WINDOW), default=0)
    possible = max((span for at, span in held if now - at <= 3 * LOOP_WINDOW), default=0)
    assert kept - 1e-9 <= watch.longest_hold <= possible + 1e-9
    now += 3 * LOOP_WINDOW
    watch.after_io_wait(0)
    assert watch.longest_hold == 0


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
