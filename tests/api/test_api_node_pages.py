"""What pages show of the whole node: its syncs, and who is interested in what."""

import dataclasses
from types import SimpleNamespace
from typing import Any

from api_samples import api_of, read
from hypothesis import given
from hypothesis import strategies as st

from recon_node.api.endpoint import Services
from recon_node.api.metrics import LOOP_WINDOW, LoopWatch
from recon_node.p2p import SyncReport


def report(number: int, *, moved: int = 0) -> SyncReport:
    zeros = {field.name: 0 for field in dataclasses.fields(SyncReport) if field.type == "int"}
    return SyncReport(
        peer=f"peer{number}",
        role="initiator",
        protocol="/ceramic/recon/1.2.0",
        seconds=0.1,
        outcome="agreed",
        finished_at=float(number),
        **zeros | {"events_received": moved},
    )


@given(spans=st.lists(st.floats(0, 9), max_size=9), idle=st.floats(0, 9))
def test_the_longest_hold_is_that_of_the_last_ten_to_thirty_seconds(spans, idle):
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
    async with api_of(services, peers=peers) as api:
        page = await read(api, "recon/syncs", limit=2)
        assert [sync["finished_at"] for sync in page["syncs"]] == [4, 3]
        [moved] = (await read(api, "recon/syncs", of="transfers"))["syncs"]
        assert moved["events_received"] == 3
        await read(api, "recon/syncs", 400, of="some")
    async with api_of(services) as api:
        assert await read(api, "recon/syncs") == {"syncs": []}
