"""A node that starts from a snapshot, beside peers that have it all (CIP-124, appendix C)."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio
import trio.testing
from click.testing import CliRunner
from nacl.signing import SigningKey
from snapshot_support import MODELS, NETWORK, events, make_log
from support.waiting import wait_until

from recon_node.ceramic import EventId, network_range
from recon_node.ceramic.builder import init_event
from recon_node.cli import main
from recon_node.client import Ceramic
from recon_node.ipld import CID, RAW
from recon_node.recon import KeyRange
from recon_node.store.store import PROGRESS, STALL, Filling
from recon_node.testnet import TestnetNode

COUNT = 1200
FLAGS = ("--network", "local-7", "--sync-interval", "0.5")
EVERYTHING = KeyRange(*network_range(NETWORK))


def events_of(node: TestnetNode) -> int:
    answer = httpx.get(f"{node.api_url}/ceramic/recon", timeout=60).raise_for_status()
    return int(answer.json()["events"])


def from_peers(node: TestnetNode) -> float:
    """Bytes of events that peers have sent to it."""
    text = httpx.get(f"{node.api_url}/metrics", timeout=60).text
    name = r"recon_sync_bytes_total\{[^}]*\}"
    rows = re.findall(rf"^({name}) (\S+)$", text, re.M)
    return sum(float(v) for k, v in rows if '"events"' in k and '"received"' in k)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[TestnetNode, str, int]]:
    """A running node with many events, a snapshot of them, and their bytes."""
    made = events(COUNT, seed=11)
    node = TestnetNode("full", tmp_path, FLAGS)
    make_log(tmp_path / "full", made)
    place = str(tmp_path / "snapshots")
    data_dir = ("--data-dir", str(tmp_path / "full"))
    result = CliRunner().invoke(main, ["snapshot", "create", place, *data_dir])
    assert result.exit_code == 0, result.output
    node.launch()
    node.wait_until_ready()
    yield node, place, sum(len(event.car) for event in made)
    node.discard()


@pytest.mark.parametrize(
    "was_there",
    [pytest.param(False, id="new", marks=pytest.mark.long), pytest.param(True, id="long absent")],
)
def test_a_node_takes_the_bulk_from_its_snapshot(full, tmp_path, was_there):
    """Connected from the start; what is written meanwhile comes from the peer at once."""
    peer, place, size = full
    node = TestnetNode("new", tmp_path, FLAGS)
    if was_there:
        make_log(tmp_path / "new", events(COUNT, seed=11)[:120])
    try:
        config = tmp_path / "new.toml"
        config.write_text(f'snapshot_sources = ["{place}"]\n')
        node.launch(["--bootstrap", peer.addresses[0], "--config", str(config)])
        with Ceramic(peer.api_url, timeout=60) as ceramic:
            for number in range(10):
                key = SigningKey(bytes([number + 1]) * 32)
                ceramic.send(init_event(key, MODELS[0], {"n": number}, unique=bytes([number])))
        node.wait_until_ready()
        wait_until(lambda: events_of(node) == COUNT + 10)
        came = from_peers(node)
        assert 0 < came <= 0.04 * size
    finally:
        node.discard()


def keys(count: int) -> list[EventId]:
    event = CID.of(RAW, b"an event")
    return [EventId.build(NETWORK, "blog", "did:key:z", event, n, event) for n in range(count)]


async def test_waiting_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    filling = Filling()
    await filling.wait(1000)  # nothing is filled
    assert trio.current_time() == 0
    filling.begin([EVERYTHING])
    await filling.wait(5)
    assert (trio.current_time(), filling.ranges) == (5, [EVERYTHING])
    await trio.sleep(20)
    [key] = keys(1)
    filling.note([(key, bytes(PROGRESS - 1))])
    filling.note([(key, b"1")])  # a large event is as much as a thousand small ones
    await trio.sleep(20)
    filling.note([(key, bytes(PROGRESS - 1))])  # a drip would keep peers waiting forever
    await filling.wait(1000)  # it has stalled
    assert 25 + STALL <= trio.current_time() <= 26 + STALL
    assert filling.ranges == []
    filling.begin([EVERYTHING])
    filling.narrow([])
    assert filling.ranges == []


async def test_what_came_by_a_snapshot_is_not_pushed() -> None:
    filling = Filling()
    first = keys(4)
    assert filling.without_filled(first) == first
    filling.begin([EVERYTHING])
    filling.note([(key, b"") for key in first[:2]])
    assert filling.without_filled(first) == first[2:]
    assert filling.without_filled(first) == first  # once
    assert filling.without_filled(None) == ()
    filling.end()
    assert filling.without_filled(None) is None
