"""Events of a sync come in an order in which none has to wait for what it builds on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from p2p_support import Node, eventually, node

from recon_node.ceramic import parse_event
from recon_node.p2p.sync import fetch
from recon_node.p2p.transport.budget import unlimited
from recon_node.recon import RECON_1_2

MANY = {"events_per_request": 50, "versions": [RECON_1_2], "ceramic_one": False}


@asynccontextmanager
async def counted(path, cars: list[bytes], monkeypatch) -> AsyncIterator[tuple[Node, list[int]]]:
    """A node with some events, and how many wait after each batch of others."""
    async with node(path, cars, **MANY) as one:
        waiting: list[int] = []
        admit = one.store.admit_remote

        async def admit_remote(events):
            verdicts = await admit(events)
            waiting.append(one.store.waiting)
            return verdicts

        monkeypatch.setattr(one.store, "admit_remote", admit_remote)
        yield one, waiting


@pytest.mark.parametrize("starts", ["full", "empty"])
async def test_no_event_of_a_sync_waits_for_its_prev(tmp_path, sdk_cars, monkeypatch, starts):
    async with (
        node(tmp_path / "full", sdk_cars, **MANY) as full,
        counted(tmp_path / "empty", [], monkeypatch) as (empty, waiting),
    ):
        first, other = (full, empty) if starts == "full" else (empty, full)
        await first.p2p.connect(other.address)
        await eventually(lambda: empty.holds_as_many_as(len(sdk_cars)))
        assert len(waiting) > 5
        assert not any(waiting)


async def test_nor_where_the_receiver_decodes_what_it_lacks(tmp_path, sdk_cars, monkeypatch):
    """Symbols tell ids in no order, and each request is for few of them."""
    held = [car for car in sdk_cars if parse_event(car).init[-1] % 2]
    async with (
        node(tmp_path / "full", sdk_cars, **MANY) as full,
        counted(tmp_path / "half", held, monkeypatch) as (half, waiting),
    ):
        await full.p2p.connect(half.address)
        await eventually(lambda: half.holds_as_many_as(len(sdk_cars)))
        assert half.p2p.transfers[0].role == "responder"
        assert not any(waiting)


async def test_events_are_put_in_order_as_far_as_they_fit(monkeypatch):
    monkeypatch.setattr(fetch, "SORTED_BYTES", 1000)
    came: list[list[int]] = []
    account = unlimited().account("peer")

    async def deliver(events) -> None:
        came.append([key for key, _ in events])

    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012 - what came before is delivered
        async with fetch._in_order(deliver, account) as take:
            for start in range(0, 24, 2):
                await take([(-start, bytes(50)), (-start - 1, bytes(50))])
                assert account._held["events in order"] <= 1000
            raise trio.BrokenResourceError
    assert came == [[*range(-19, 1)], [*range(-23, -19)]]
    assert account._held["events in order"] == 0
