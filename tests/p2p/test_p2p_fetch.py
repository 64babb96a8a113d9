"""Fetching between two turns: each key once, whoever else is at it."""

from contextlib import asynccontextmanager

import pytest
import trio
from p2p_support import LOOPBACK, NETWORK
from trio.testing import memory_stream_pair

from recon_node.p2p import fetch
from recon_node.p2p.event_stream import serve_events
from recon_node.p2p.fetch import Fetcher, FetchTable
from recon_node.p2p.framing import FrameStream
from recon_node.p2p.reports import Counters
from recon_node.store import open_store


@pytest.fixture
async def store(tmp_path):
    async with open_store(tmp_path, NETWORK) as opened:
        yield opened


class Source:
    """A peer over memory streams that holds some events, and counts what it is asked for."""

    def __init__(self, held) -> None:
        self.held = dict(held)
        self.asked = []

    async def read_cars(self, keys):
        self.asked += keys
        return [self.held.get(key) for key in keys]

    @asynccontextmanager
    async def open(self):
        left, right = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            theirs = FrameStream(right, LOOPBACK.max_frame)
            nursery.start_soon(serve_events, theirs, self.read_cars, NETWORK, LOOPBACK)
            yield FrameStream(left, LOOPBACK.max_frame)
            await left.send_eof()


def fetcher(store, source, table=None) -> Fetcher:
    return Fetcher("peer", store, table or FetchTable(), source.open, LOOPBACK, Counters())


async def test_what_comes_is_admitted_and_what_does_not_is_told(store, sdk_events):
    keys = [key for key, _ in sdk_events]
    source = Source(sdk_events[:600])
    fetched = fetcher(store, source)
    assert await fetched.obtain(keys) == keys[600:]
    assert set(store.keys.keys(store.key_ranges()[0])) == set(keys[:600])
    assert (fetched.keys_received, fetched.events_received) == (930, 600)


async def test_events_that_are_refused_are_told_and_not_asked_for_again(store, sdk_events):
    good, forged = sdk_events[:3], sdk_events[3]
    key, block = forged
    broken = bytearray(block)
    broken[-1] ^= 1
    source = Source([*good, (key, bytes(broken))])
    keys = [each for each, _ in sdk_events[:4]]
    assert await fetcher(store, source).obtain(keys) == [key]
    source.asked.clear()
    assert await fetcher(store, source).obtain(keys) == [key]
    assert source.asked in ([], [key])  # a CAR that does not parse may be another's fault


async def test_two_sessions_fetch_each_key_once(store, sdk_events):
    keys = [key for key, _ in sdk_events]
    source, table = Source(sdk_events), FetchTable()
    failed = []

    async def obtain(part) -> None:
        failed.extend(await fetcher(store, source, table).obtain(part))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(obtain, keys[:700])
        nursery.start_soon(obtain, keys[300:])
    assert failed == []
    assert len(store.keys) == 930
    assert len(source.asked) == len(set(source.asked)) == 930


async def test_a_session_does_not_wait_for_one_that_stalls(store, sdk_events, monkeypatch):
    monkeypatch.setattr(fetch, "STALLED_AFTER", 0.1)
    keys = [key for key, _ in sdk_events[:10]]
    table = FetchTable()

    class Stalled(Source):
        async def read_cars(self, keys):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher(store, Stalled([]), table).obtain, keys)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(5):
            assert await fetcher(store, Source(sdk_events), table).obtain(keys) == []
        nursery.cancel_scope.cancel()
