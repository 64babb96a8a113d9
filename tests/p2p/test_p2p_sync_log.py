"""What the log says of syncs: a line a minute, however many there are."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from recon_node.p2p.context import Counters
from recon_node.p2p.sync.sessions import (
    AGREED,
    CANCELLED,
    FAILURES_SHOWN,
    SUMMARY_INTERVAL,
    SyncHistory,
    SyncReport,
)

IDLE = SyncReport(
    peer="12D3KooWa",
    role="initiator",
    protocol="/ceramic/recon/1.2.0",
    rounds=1,
    bytes_sent=100,
    bytes_received=200,
    event_bytes_sent=0,
    event_bytes_received=0,
    keys_received=0,
    events_received=0,
    events_sent=0,
    seconds=0.1,
    keys_left_out=0,
    keys_left_out_by_peer=0,
    outcome=AGREED,
    finished_at=1.0,
)
BUSY = replace(IDLE, peer="12D3KooWb", events_received=3, event_bytes_received=900, keys_received=3)
FAILED = replace(IDLE, outcome="the peer hung up")


@pytest.fixture(autouse=True)
def _all_levels() -> Iterator[None]:
    """The other tests of this folder show warnings only."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield
    structlog.configure(**before)


async def test_a_minute_has_one_line(autojump_clock: MockClock) -> None:
    history = SyncHistory(Counters())
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(history.log_summaries)
            await trio.sleep(SUMMARY_INTERVAL / 4)  # not just when a minute ends
            for _ in range(200):  # for 100 minutes
                for report in (IDLE, BUSY):
                    history.add(report)
                await trio.sleep(SUMMARY_INTERVAL / 2)
            nursery.cancel_scope.cancel()
    shown = [line for line in logs if line["log_level"] != "debug"]
    assert 100 <= len(shown) <= 101
    assert shown[50] == {
        "event": "Synced with peers",
        "log_level": "info",
        "peers": 2,
        "syncs": 4,
        "failed": 0,
        "events_received": 6,
        "events_sent": 0,
        "bytes_received": 4 * 200 + 2 * 900,
        "bytes_sent": 400,
    }
    assert sum(line["events_received"] for line in shown) == 600
    assert [line["event"] for line in logs if line["log_level"] == "debug"] == (
        ["Sync finished"] * 400
    )


async def test_nothing_is_said_of_nothing(autojump_clock: MockClock) -> None:
    history = SyncHistory(Counters())
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(history.log_summaries)
            for _ in range(20):
                history.add(IDLE)
                history.add(replace(IDLE, outcome=CANCELLED))
                await trio.sleep(SUMMARY_INTERVAL)
            nursery.cancel_scope.cancel()
    assert {line["log_level"] for line in logs} == {"debug"}


async def test_a_few_failures_have_lines_of_their_own(autojump_clock: MockClock) -> None:
    history = SyncHistory(Counters())
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(history.log_summaries)
            for _ in range(2):
                for _ in range(100):
                    history.add(FAILED)
                await trio.sleep(SUMMARY_INTERVAL + 1)
            nursery.cancel_scope.cancel()
    shown = [line for line in logs if line["log_level"] == "info"]
    failures = [line for line in shown if line["event"] == "Sync failed"]
    assert [line["outcome"] for line in failures] == ["the peer hung up"] * 2 * FAILURES_SHOWN
    assert [line["failed"] for line in shown if line["event"] == "Synced with peers"] == [100, 100]
