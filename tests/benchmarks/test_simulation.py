"""The simulator: its wire and hosts by themselves, and small networks of production nodes."""

import os
import random
import subprocess
import sys
from functools import partial

import pytest
import trio

from benchmarks.simulate import deterministic
from benchmarks.simulate.host import DIAL_ROUND_TRIPS, SimulatedHost
from benchmarks.simulate.output import draw, read_csv, write_csv
from benchmarks.simulate.scenarios import Outcome, heal, spread
from benchmarks.simulate.wire import TICK, Lane, Place, Wire, round_trip
from benchmarks.simulate.world import Plan, World, simulated_settings

SMALL = Plan(nodes=12, events=50)
EUROPE = Place(0, 2, 0.002, 1e6)
ASIA = Place(1, 3, 0.003, 1e6)


def place(number: int) -> Place:
    return Place(number, 0, 0.001, 1e6)


# --- the wire --------------------------------------------------------------------------------


@pytest.fixture
async def wire(nursery):
    wire = Wire(0.0, random.Random(1))
    nursery.start_soon(wire.run)
    return wire


async def times_of(wire: Wire, lane: Lane, *sizes: int) -> list[float]:
    """Send all at once; return when each arrives."""
    arrived: list[float] = []
    started = trio.current_time()
    for size in sizes:
        wire.carry(lane, size, lambda: arrived.append(trio.current_time() - started))
    await trio.sleep(1000)
    assert len(arrived) == len(sizes)
    return arrived


async def test_bytes_arrive_after_the_latency_and_the_time_to_send_them(wire, autojump_clock):
    lane = Lane(EUROPE, ASIA)
    assert round_trip(EUROPE, ASIA) == round_trip(ASIA, EUROPE) == pytest.approx(0.240)
    arrived = await times_of(wire, lane, 0, 500_000, 1_000_000)
    assert arrived == pytest.approx([0.12, 0.62, 1.62], abs=2 * TICK)
    assert EUROPE.sent == 1_500_000


async def test_a_partition_holds_bytes_back(wire, autojump_clock):
    near, far = place(0), place(1)
    arrived: list[float] = []
    wire.cut_off([far])
    wire.carry(Lane(near, far), 100, lambda: arrived.append(trio.current_time()))
    await trio.sleep(50)
    assert arrived == []
    assert wire.is_cut(near, far)
    assert not wire.is_cut(near, place(2))
    healed = trio.current_time()
    wire.cut_off([])
    await trio.sleep(1)
    assert arrived == [pytest.approx(healed + round_trip(near, far) / 2, abs=2 * TICK)]


# --- hosts -----------------------------------------------------------------------------------


@pytest.fixture
async def hosts(wire, nursery):
    """Three hosts; the second one echoes."""
    others: dict[str, SimulatedHost] = {}
    made = [
        SimulatedHost(wire, place(number), f"peer{number}", others, simulated_settings(),
                      random.Random(number))
        for number in range(3)
    ]  # fmt: skip

    async def echo(stream):
        while data := await stream.receive_some(1000):
            await stream.send_all(data)

    for host in made:
        host.start(nursery)
    made[1].handle("/echo", echo)
    return made


async def test_streams_carry_bytes_in_both_directions_and_end(hosts, autojump_clock):
    here, there, _ = hosts
    identified: list[str] = []
    there.on_identified(lambda peer_id, addresses: identified.append(peer_id))
    started = trio.current_time()
    assert await here.connect(there.addresses[0]) == there.peer_id
    trip = round_trip(here.place, there.place)
    assert trio.current_time() - started == pytest.approx(DIAL_ROUND_TRIPS * trip, abs=2 * TICK)
    assert (here.has_dialled("peer1"), there.has_dialled("peer0")) == (True, False)
    assert here.latency("peer1") == pytest.approx(trip)
    stream = await here.open_stream("peer1", "/unknown", "/echo")
    assert stream.protocol == "/echo"
    await stream.send_all(b"hello")
    assert await stream.receive_some(100) == b"hello"
    assert here.traffic["/echo"] > 0
    await stream.aclose()
    await trio.sleep(1)
    assert identified == ["peer0"]
    assert not here.has_streams("peer1")
    assert not there.has_streams("peer0")


async def test_a_slow_reader_holds_the_writer_back(hosts, nursery, autojump_clock):
    here, there, _ = hosts

    async def never_read(stream):
        await trio.sleep_forever()

    there.handle("/slow", never_read)
    await here.connect(there.addresses[0])
    stream = await here.open_stream("peer1", "/slow")
    window = here.settings.connection.max_window
    with trio.move_on_after(3600) as scope:
        for _ in range(10):
            await stream.send_all(bytes(window // 2))
    assert scope.cancelled_caught
    await trio.sleep(10)
    assert there.budget.held <= window


# --- networks --------------------------------------------------------------------------------


@pytest.mark.long
def test_the_same_seed_gives_the_same_output():
    command = [sys.executable, "-m", "benchmarks.simulate", "partition", "--seed", "1"]
    command += ["--nodes", "4", "--events", "1"]

    def output(hash_seed: str) -> bytes:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, env=environment, check=True, capture_output=True).stdout

    first = output("1")
    assert b"cut off" in first
    assert output("2") == first


def test_an_event_reaches_all_nodes():
    row = spread(SMALL, 2).row
    assert row["unreached"] == 0
    assert 0 < row["t50"] <= row["t99"] <= row["all_p99"]
    assert 1 <= row["hops_p99"] < SMALL.nodes
    assert row["bytes_per_node"] > 0


def test_an_event_reaches_only_those_who_want_it():
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            world = World(Plan(nodes=12, events=100, models=4, interests=1), nursery)
            world.start(world.nodes)
            await trio.sleep(60)
            model = world.nodes[0].models[0]
            await world.write(world.nodes[0], model).done.wait()
            await trio.sleep(60)
            for node in world.nodes:
                assert all(map(node.store.wants, node.store.keys))
            nursery.cancel_scope.cancel()

    deterministic.run(1, main)


def test_a_divided_network_becomes_one_again():
    row = heal(SMALL, 2, 0.25).row
    assert row["missing"] > 0
    assert row["unreached"] == 0


def test_runs_leave_random_numbers_and_settings_as_they_were():
    before = random.getstate()
    deterministic.run(1, partial(trio.sleep, 1))
    assert random.getstate() == before


def test_tables_and_curves_are_written_and_drawn(tmp_path):
    outcomes = {"a": Outcome({"nodes": 3, "t50": 0.123456}, [(0.5, 1.0), (1.0, 2.5)])}
    write_csv("sizes", outcomes, tmp_path)
    draw("sizes", tmp_path)
    assert read_csv(tmp_path / "sizes.csv") == [{"label": "a", "nodes": "3", "t50": "0.1235"}]
    assert [row["reached"] for row in read_csv(tmp_path / "sizes-curves.csv")] == ["0.5", "1.0"]
    assert (tmp_path / "sizes.png").stat().st_size > 1000
