"""A stream whose event expired, repaired at real nodes (CIP-145, figures 5 and 6)."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from client_samples import POST, issued
from nacl.signing import SigningKey
from support.waiting import anchoring_pair, wait_until

from recon_node.cli import main
from recon_node.client import CID, Ceramic, Document, Key, SolanaAccount
from recon_node.ipld import multibase
from recon_node.testnet import TestnetNode

WALLET = SigningKey(b"w" * 32)
ACCOUNT = SolanaAccount(
    multibase.encode(bytes(WALLET.verify_key), "base58btc")[1:],
    lambda text: WALLET.sign(text.encode()).signature,
)
KEY = Key.from_seed(b"k" * 32)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TestnetNode]]:
    with anchoring_pair(tmp_path_factory.mktemp("repair"), ("--network", "local-4719")) as pair:
        yield pair


def expired(ceramic: Ceramic) -> tuple[Document, CID, CID, CID]:
    """The stream of figure 5, whose event A was anchored after its capability expired.

    Returns the document at B, and the events A, Time 2 and B.
    """
    model = ceramic.create_model(POST)
    post = ceramic.create(model.id, {"title": "init"})
    time_1 = ceramic.wait_until_anchored(post.event, timeout=60).time_event
    now = time.time()  # nodes tolerate five minutes
    request = issued(ACCOUNT.request(KEY, domain="notes.example"), now - 120, now - 60)
    short = ACCOUNT.complete(request, WALLET.sign(request.message.encode()).signature)
    a = ceramic.update(post.id, {"title": "A"}, at=post.event, key=short).event
    time_2 = ceramic.wait_until_anchored(a, timeout=60).time_event
    assert time_1 is not None
    assert time_2 is not None
    b = ceramic.update(post.id, {"title": "init", "stars": 2}, at=time_1)
    return ceramic.read(post.id), a, time_2, b.event


def test_the_repair_is_proposed_and_shown(nodes, tmp_path, monkeypatch):
    """C = [B, Time 2], although no two dominant data events are left."""
    key = ACCOUNT.sign_in(KEY, domain="notes.example")
    with Ceramic(nodes[0].api_url, key=key, timeout=60) as ceramic:
        read, a, time_2, b = expired(ceramic)
        assert (read.content, read.event) == ({"title": "init", "stars": 2}, read.open_tips[0])
        assert read.event in (b, ceramic.anchor(b).time_event)
        assert read.open_tips[1:] == (time_2,)
        assert read.expired[time_2].event == a
        assert read.id in {document.id for document in ceramic.diverged()}
        url = f"{nodes[0].api_url}/ceramic/streams/{read.id}"
        answer = httpx.get(f"{url}/merge").raise_for_status().json()
        assert answer["prev"][1:] == [str(time_2)]
        assert answer["content"] == read.content
        [shown] = answer["expired"]
        assert (shown["prev"], shown["event"]) == (str(time_2), str(a))
        assert shown["time"] > shown["expires"]
        drawn = httpx.get(f"{url}/picture").raise_for_status().json()
        assert drawn["merge"][1:] == [str(time_2)]
        assert not drawn["diverged"]
        dry = command(nodes[0], tmp_path, key, str(read.id), "--dry-run")
        assert str(a) in json.loads(dry.stdout)["expired"][str(time_2)]
        with monkeypatch.context() as patch:  # the stream is fetched once, to merge it
            patch.delattr(Ceramic, "read")
            done = command(nodes[0], tmp_path, key, str(read.id), "--json")
        assert f"repairs: {a} was anchored at" in done.stderr
        merged = json.loads(done.stdout)
        assert (merged["content"], merged["open_tips"]) == (read.content, [])
        c = ceramic.event(merged["event"])
        assert c.prevs[1:] == (time_2,)
        assert ceramic.propose_merge(read.id) is None
        assert httpx.get(f"{url}/merge").json()["prev"] == []
    with Ceramic(nodes[1].api_url, timeout=60) as other:  # all nodes agree
        wait_until(lambda: c.cid in {event.cid for event in other.events(read.id)})
        there = other.read(read.id)
        assert (there.content, there.open_tips, there.expired) == (read.content, (), {})


def test_what_expired_can_be_taken_over(nodes: list[TestnetNode]) -> None:
    """By who may write now; a further time event on the branch asks for nothing."""
    key = ACCOUNT.sign_in(KEY, domain="notes.example")
    with Ceramic(nodes[0].api_url, key=key, timeout=60) as ceramic:
        read, _, time_2, _ = expired(ceramic)
        merged = ceramic.merge(read.id, prefer=time_2)
        assert (merged.content, merged.open_tips) == ({"title": "A"}, ())
        assert ceramic.merge(read.id).sent == ()


def command(node: TestnetNode, directory: Path, key: Key, *args: str) -> Result:
    if not (directory / "key").exists():
        key.save(directory / "key")
        key.capability.save(directory / "cacao")
    files = ["--key", str(directory / "key"), "--capability", str(directory / "cacao")]
    result = CliRunner().invoke(main, ["stream", "merge", *args, *files, "--url", node.api_url])
    assert result.exit_code == 0, result.output
    return result
