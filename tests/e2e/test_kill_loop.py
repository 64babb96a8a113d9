"""A daemon killed over and over, at any moment, while it is written to, synced with and read.

What must hold: every acknowledged event is there, a feed position never changes its event and none
is left out, a resume token that was given out is taken back, and the log is sound at the end.
"""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pyarrow.ipc
import pytest
from click.testing import CliRunner
from nacl.signing import SigningKey
from support.waiting import wait_until

from recon_node.ceramic import METAMODEL
from recon_node.ceramic.builder import data_event, init_event
from recon_node.cli import main
from recon_node.ipld import CID, multibase
from recon_node.testnet import Testnet, TestnetNode

SETTLE_LIMIT = 120.0
"""Seconds until the victim has everything that was written to the other node."""
CHAIN = 5
"""Data events that a writer puts upon each init event."""


class Writer:
    """A client that writes stream after stream and remembers what was acknowledged.

    It offers an event until it is acknowledged, as a client must whose node may die meanwhile.
    """

    def __init__(self, node: TestnetNode, rng: random.Random) -> None:
        self.url = node.api_url
        self.rng = rng
        self.acknowledged: list[bytes] = []

    def run(self, stop: threading.Event) -> None:
        key = SigningKey(self.rng.randbytes(32))
        with httpx.Client(base_url=self.url) as client:
            while not stop.is_set():
                unique = self.rng.randbytes(12)
                last = init = init_event(key, METAMODEL, {"n": 0}, unique=unique)
                for number in range(CHAIN):
                    if not self._post(client, last.car, stop):
                        return
                    self.acknowledged.append(last.cid)
                    last = data_event(key, init, [last.cid], [{"n": number}])

    def _post(self, client: httpx.Client, car: bytes, stop: threading.Event) -> bool:
        while not stop.is_set():
            try:
                answer = client.post("/ceramic/events", json={"data": multibase.encode(car)})
            except httpx.HTTPError:
                stop.wait(0.05)
                continue
            assert answer.status_code == 204, answer.text
            return True
        return False


class Poller:
    """Reads from a node that may be down, until told to stop."""

    def __init__(self, node: TestnetNode) -> None:
        self.url = node.api_url

    def run(self, stop: threading.Event) -> None:
        with httpx.Client(base_url=self.url) as client:
            while not stop.is_set():
                try:
                    self.read(client)
                except httpx.HTTPError:
                    stop.wait(0.05)

    def read(self, client: httpx.Client) -> None:
        raise AssertionError("each kind of reader has its own")


class Reader(Poller):
    """Reads the feed from its start to its end, again and again, and holds it to its promise."""

    def __init__(self, node: TestnetNode) -> None:
        super().__init__(node)
        self.event_at: dict[int, bytes] = {}

    def read(self, client: httpx.Client) -> None:
        """One pass; an interrupted one has held what it saw to the promise, too."""
        after = 0
        head = client.get("/ceramic/feed/head").raise_for_status().json()["head"]
        while after < head:
            query = {"after": after, "upto": head}
            body = client.get("/ceramic/feed/arrow", params=query).raise_for_status().content
            table = pyarrow.ipc.open_stream(body).read_all()
            positions = table["position"].to_pylist()
            assert positions == list(range(after + 1, after + 1 + len(positions))), "a gap"
            for position, cid in zip(positions, table["event_cid"].to_pylist(), strict=True):
                assert self.event_at.setdefault(position, cid) == cid, "a position changed"
            after = positions[-1]


class Follower(Poller):
    """Follows the resume tokens of the JSON feed: each that was given out is taken back."""

    def __init__(self, node: TestnetNode) -> None:
        super().__init__(node)
        self.token = "0"
        self.event_at: dict[int, str] = {}

    def read(self, client: httpx.Client) -> None:
        """One page."""
        answer = client.get("/ceramic/feed/events", params={"resumeAt": self.token, "wait": 0.2})
        assert answer.status_code in (200, 503), answer.text  # 503: it is stopping or starting
        if answer.status_code == 200:
            page = answer.json()
            for position, event in enumerate(page["events"], int(self.token) + 1):
                self.event_at[position] = event["id"]
            assert int(page["resumeToken"]) == int(self.token) + len(page["events"])
            self.token = page["resumeToken"]


def _kill_at_any_moment(victim: TestnetNode, times: int, rng: random.Random) -> None:
    for _ in range(times):
        if rng.random() < 0.25:  # while it starts
            time.sleep(rng.uniform(0, 2))
        else:
            victim.wait_until_ready()
            time.sleep(rng.uniform(0, 1.5))
        victim.kill()
        victim.launch()
    victim.wait_until_ready()


@pytest.fixture
def testnet() -> Iterator[Testnet]:
    with Testnet(2, flags=("--sync-interval", "0.5")) as testnet:
        yield testnet


@pytest.mark.long
def test_kills_under_load_lose_nothing(testnet: Testnet, rng: random.Random) -> None:
    victim, other = testnet.nodes
    writers = [Writer(victim, rng), Writer(victim, rng), Writer(other, rng)]
    reader = Reader(victim)
    followers = [Follower(victim) for _ in range(3)]
    tasks = (*writers, reader, *followers)
    stop = threading.Event()
    with ThreadPoolExecutor(len(tasks)) as pool:
        try:
            running = [pool.submit(task.run, stop) for task in tasks]
            _kill_at_any_moment(victim, 50, rng)
            wait_until(
                lambda: (
                    all(writer.acknowledged for writer in writers)
                    and all(follower.event_at for follower in (reader, *followers))
                ),
                "there is a load, and it is read",
            )
        finally:
            stop.set()
        for process in running:
            process.result()
    written = {cid for writer in writers for cid in writer.acknowledged}

    with httpx.Client(base_url=victim.api_url) as client:
        head = "/ceramic/feed/head"
        wait_until(lambda: client.get(head).json()["head"] >= len(written), limit=SETTLE_LIMIT)
        reader.read(client)
    assert written <= set(reader.event_at.values())
    assert len(set(reader.event_at.values())) == len(reader.event_at), "an event stands twice"
    for follower in followers:
        for position, cid in follower.event_at.items():
            assert str(CID(reader.event_at[position])) == cid, "a position changed"

    assert victim.stop() == 0
    checked = CliRunner().invoke(main, ["store", "check", "--data-dir", str(victim.data_dir)])
    assert checked.exit_code == 0, checked.output
