"""Checks in other processes: the same findings, whatever becomes of the processes."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_events import LOCAL, Case
from store_helpers import KEYS, MODEL, NETWORK, World, check_feed, feed_of
from support import forking, sdk_sample
from support.time_events import time_event
from support.waiting import wait_until
from trio.testing import MockClock

from recon_node.ceramic.builder import init_event
from recon_node.ipld import CID, DAG_CBOR, car
from recon_node.store import StoreSettings, open_store
from recon_node.verification import Broken, Facts, Unreadable, check_event
from recon_node.verification import verifiers as verifiers
from recon_node.verification.facts import from_wire, to_wire
from recon_node.verification.verifiers import Verifiers

STORE_TESTS = Path(__file__).parent


def some_cars(count: int) -> list[bytes]:
    return sdk_sample.cars()[:count]


def child(code: str) -> tuple[str, ...]:
    """A verifier, but for what `code` makes of it."""
    start = "from recon_node.verification import worker"
    return (sys.executable, "-c", f"import os, signal, time\n{start}\n{code}\nworker.main()")


POISON = "b'poison'"
DIES_OF_POISON = (
    "good = worker.check_event\n"
    f"worker.check_event = lambda car: os.kill(os.getpid(), 9) if {POISON} in car else good(car)"
)


@asynccontextmanager
async def running(pool: Verifiers) -> AsyncIterator[Verifiers]:
    """A pool whose processes end with the block."""
    try:
        yield pool
    finally:
        await pool.close()


def pids(pool: Verifiers) -> list[int]:
    return [worker._process.pid for worker in pool._processes._idle]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_large_events_are_verified_in_a_process_however_few_they_are() -> None:
    """To decode a megabyte of lists takes half a second, in which the node did nothing else."""
    async with running(Verifiers(1)) as pool:
        few = some_cars(3)
        large = init_event(KEYS[0], MODEL, {"a": [[]] * 100_000}, unique=b"u").car
        await pool.verify(few)
        assert pids(pool) == []
        findings = await pool.verify([*few, large])
        assert len(pids(pool)) == 1
        assert [type(finding) for finding in findings] == [Facts] * 4
        assert findings[3] == from_wire(to_wire(check_event(large), large), large)


def test_a_large_list_is_refused_without_decoding_it(monkeypatch: pytest.MonkeyPatch) -> None:
    block = b"\x9a\x00\x01\x00\x00" + b"\x80" * 65_536
    cid = CID.of(DAG_CBOR, block)
    data = car.encode([cid], {cid: block})

    def decode(data: bytes) -> None:
        pytest.fail("it was decoded")

    monkeypatch.setattr("recon_node.ceramic.event.dag_cbor.decode", decode)
    facts = check_event(data)
    assert isinstance(facts, Unreadable)
    assert "its payload is not a map" in facts.reason


@settings(max_examples=settings().max_examples // 4)
@given(seed=st.integers(0, 2**32))
def test_facts_survive_the_way_between_processes(seed: int) -> None:
    world = World(seed, time_events=True)
    for event in world.events.values():
        facts = check_event(event.car)
        assert facts.refusal is None
        back = from_wire(to_wire(facts, event.car), event.car)
        assert isinstance(back, Facts)
        assert back.header is None or facts.header is not None
        for name in ("cid", "kind", "init", "prevs", "envelope", "proof", "proof_cid", "signer"):
            assert getattr(back, name) == getattr(facts, name)
        assert (back.validity, back.refusal, back.car) == (facts.validity, None, event.car)
        assert (facts.cid, facts.kind, facts.prevs) == (event.cid, event.kind, event.prevs)


async def test_processes_find_what_this_one_finds(with_native: bool) -> None:
    case = Case()
    cars = [*(make(case) for make, _ in LOCAL.values()), *some_cars(200)]
    anchored = time_event(case.init, case.first.cid, siblings=[CID.of(DAG_CBOR, b"x")])
    cars.append(anchored.car)
    here = Verifiers(0, native=with_native)
    async with running(Verifiers(2, native=with_native)) as there:
        findings = await there.verify(cars)
        assert findings == await here.verify(cars)
        assert len(pids(there)) == 2
        assert {type(finding) for finding in findings} == {Facts, Unreadable}


async def test_the_same_car_is_checked_once_whoever_offers_it() -> None:
    case = Case()
    cars = [case.wrong_signature().car, case.next.car, b"garbage", case.wrong_signature().car]
    pool = Verifiers(0)
    first = await pool.verify(cars)
    assert pool.verified_total == 3
    assert await pool.verify(cars) == first
    assert pool.verified_total == 3
    broken = case.block_that_does_not_match()  # garbage in the name of a good event
    [facts] = await pool.verify([broken])
    assert isinstance(facts, Unreadable)
    [facts] = await pool.verify([case.next.car])
    assert isinstance(facts, Facts)
    assert facts.refusal is None


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "CACHED_FINDINGS", 10)
    pool = Verifiers(0)
    cars = some_cars(30)
    assert len(await pool.verify(cars)) == 30
    assert len(pool._memory) == 10
    await pool.verify(cars[-10:])
    assert pool.verified_total == 30


async def test_a_killed_process_is_replaced_and_loses_nothing() -> None:
    cars = some_cars(400)
    async with running(Verifiers(2)) as pool:
        await pool.verify(cars[:100])
        killed = pids(pool)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        findings = await pool.verify(cars[100:])
        assert all(isinstance(finding, Facts) for finding in findings)
        # By chance, the pool may find them dead before it asks them, which is not a death at work.
        assert killed
        assert not set(killed) & set(pids(pool))


async def test_what_kills_two_processes_is_named_and_its_neighbours_are_not(monkeypatch):
    monkeypatch.setattr(verifiers, "CHUNK_EVENTS", 4)
    good = some_cars(60)
    poison = init_event(KEYS[0], World(0).headers[next(iter(World(0).headers))].model, "poison").car
    async with running(Verifiers(2, child(DIES_OF_POISON))) as pool:
        findings = await pool.verify([*good[:20], poison, *good[20:]])
        assert isinstance(findings[20], Broken)
        assert "two processes" in findings[20].reason
        assert all(isinstance(finding, Facts) for finding in [*findings[:20], *findings[21:]])


async def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "CHUNK_TIMEOUT", 0.05)
    monkeypatch.setattr(verifiers, "MIN_BATCH", 1)
    hanging = child("worker.check_event = lambda car: time.sleep(1000)")
    async with running(Verifiers(1, hanging)) as pool:
        findings = await pool.verify([b"one", b"another"])
        assert all(isinstance(finding, Broken) for finding in findings)


@pytest.mark.parametrize("command", [("/nowhere/python",), (sys.executable, "-c", "1 / 0")])
async def test_without_processes_events_are_checked_here(command, with_native):
    pool = Verifiers(2, command, native=with_native)
    findings = await pool.verify(some_cars(100))
    assert all(isinstance(finding, Facts) for finding in findings)
    assert pids(pool) == []


def test_processes_are_started_again_after_a_while(tmp_path: Path) -> None:
    """What kept them from starting, such as too little memory, may have passed."""
    python = tmp_path / "python"
    clock = MockClock(rate=1.0)

    async def main() -> None:
        pool = Verifiers(1, (str(python), "-P", "-m", "recon_node.verification.worker"))
        await pool.verify(some_cars(40))
        python.symlink_to(sys.executable)
        await pool.verify(some_cars(80))
        assert pids(pool) == []
        clock.jump(verifiers.RETRY_AFTER)
        await pool.verify(some_cars(120))
        assert len(pids(pool)) == 1
        await pool.close()

    trio.run(main, clock=clock)


async def test_processes_end_with_the_store(tmp_path: Path) -> None:
    world = World(1, events=60)
    async with open_store(
        tmp_path, NETWORK, settings=StoreSettings(verifiers=2, native="off")
    ) as store:
        assert pids(store._intake.verifiers) == []
        await store.admit_remote(world.offers())
        processes = pids(store._intake.verifiers)
        assert len(processes) == 2
        check_feed(await feed_of(store), world.events)
    assert not any(map(is_alive, processes))


def test_processes_do_not_outlive_a_killed_node(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, trio\n"
        f"sys.path[:0] = {[str(STORE_TESTS), str(STORE_TESTS.parent)]!r}\n"
        "from store_helpers import *\n"
        "from recon_node.store import *\n"
        "async def main():\n"
        "    settings = StoreSettings(verifiers=2, native='off')\n"
        f"    path = pathlib.Path({str(tmp_path)!r})\n"
        "    async with open_store(path, NETWORK, settings=settings) as s:\n"
        "        await s.admit_remote(World(1, events=60).offers())\n"
        "        idle = s._intake.verifiers._processes._idle\n"
        "        print(*[process._process.pid for process in idle], flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    node = forking.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with node.stdout:
        processes = [int(pid) for pid in node.stdout.readline().split()]
        for pid in processes:  # a signal for the whole group leaves them to the node
            os.kill(pid, signal.SIGTERM)
        assert len(processes) == 2
        assert all(map(is_alive, processes))
        node.kill()
        node.wait()
        assert node.stdout.read() == b""
    wait_until(lambda: not any(map(is_alive, processes)))


def test_a_process_imports_no_more_than_it_needs() -> None:
    code = "import sys, recon_node.verification.worker; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"trio", "sqlite3", "libp2p", "recon_node.store"} & set(out.stdout.split())


async def test_what_is_remembered_of_strangers_is_bounded() -> None:
    """A finding that holds an event's CAR, since it came with a block too many, is found anew."""
    pool = Verifiers(0)
    event = init_event(KEYS[0], MODEL, {"text": "x" * verifiers.MAX_CACHED_SIZE})
    blocks = car.decode(event.car).blocks
    padded = car.encode([event.cid], {CID.of(DAG_CBOR, b"\xf6"): b"\xf6"} | blocks)
    for offered, looked_at in ((event.car, 1), (event.car, 1), (padded, 2), (padded, 3)):
        [facts] = await pool.verify([offered])
        assert facts.car == event.car
        assert pool.verified_total == looked_at
