"""A server may answer anything: a command prints what it understands, or one line of error."""

from typing import Any

import pytest
from click.testing import CliRunner

from recon_node.base.connection import Answer, Connection, Request
from recon_node.ceramic import METAMODEL, StreamId, StreamType
from recon_node.cli import main
from recon_node.ipld import CID, RAW
from tests.support.odd_answers import variants

ROOT = CID.of(RAW, b"root")
STREAM = StreamId(StreamType.MODEL_INSTANCE, ROOT)
DID = "did:key:z6MkeTG3bFFSLYVU7VqhgZxqr6YzpaGrQtFMh1uvqGy1vDnP"

PEER = {"id": "12D3KooW", "connected": True, "addresses": ["/ip4/192.0.2.7"], "covers": 0.5}
PEER |= {"speaks": ["recon/1.2.0"], "shares": ["model=k"], "latency": 0.1, "behind": 0.1}
PEER |= {"score": 0.5, "last_sync": 1.0}
SYNC = {"peer": "12D3KooW", "role": "responder", "outcome": "agreed", "finished_at": 1.0}
SYNC |= dict.fromkeys(("events_received", "bytes_sent", "bytes_received", "rounds"), 1)
SYNC |= dict.fromkeys(("event_bytes_sent", "event_bytes_received", "seconds"), 1)
INTEREST = {"sep": "model", "sepValue": "k", "controller": DID, "configured": True}
STATUS = {
    "peers": [PEER],
    "interests": [INTEREST],
    "rendezvous": [{"sort_value": None, "told": 1, "found": 2}],
    "write_policy": {"allow_models": ["k"], "deny_controllers": [], "refused": 1, "not_fetched": 2},
    "damaged": 1,
    "anchoring_alarm": "no coins",
    "disk": {"free": 1, "keep_free": 2, "is_short": True},
    "native_core": "0.2.0",
    "peer_memory": {"held": 1, "budget": 2},
    "syncs": [SYNC],
    "transfers": [],
}
TREE = {"root": str(ROOT), "leaves": 1, "tx_hash": None, "block_time": 1, "cost_wei": "5"}
ANCHORING = {"authority": "evm", "chain_id": "eip155:1", "contract": "0x", "account": "0x"}
ANCHORING |= {"balance_wei": "1", "spent_wei": "1", "coin": "ETH", "trees": 1, "waits_for": ""}
ANCHORING |= {"requests": {"waiting": 1, "in_tree": 1, "anchored": 1}, "due_at": 1, "alarm": "x"}
ANCHORING |= {"under_way": None, "latest": [{**TREE, "explorer": None}]}
ANCHOR = {"state": "anchored", "time": 1, "anchored_event": "", "cost_wei": "5"}
ANCHOR |= dict.fromkeys(("time_event", "chain_id", "tx_hash", "root", "explorer"), "x")
EVENT = {"cid": str(ROOT), "kind": "init", "prev": [], "height": 0, "state": "delivered"}
EVENT |= dict.fromkeys(("time", "chain_id", "expires", "fault", "copy_of"))
NOTHING = {"count": 0, "first": ["x"]}
DAG = {"complete": False, "blocks": 1, "bytes": 1, "missing_blocks": NOTHING, "shards": ["x"]}
DAG |= {"unclaimed": [], "missing_shards": NOTHING, "heads": [], "head": None}
PUBLISHED = {"id": DID, "link": "x", "origin": "x", "pending": {"link": "x", "origin": "x"}}
PUBLISHED |= {"order": ["x"], "waiting_for": ["x"], "ignored": 1}
PUBLISHED |= {"refused": [{"cid": "x", "reason": "x"}]}
WAITING = {"cid": "x", "fault": "x", "builds_on": [{"cid": "x", "state": "missing"}]}
WAITING |= {"lookup": {"chain_id": "x", "transaction": "x", "tries": 1}}
FEED = {"id": "x", "position": 1, "kind": "init", "init": "x", "deliveredAt": 1, "fault": None}

ANSWERS: dict[str, dict[str, Any]] = {
    "status": {"/ceramic/recon": STATUS},
    "peers": {"/ceramic/recon": STATUS},
    "status --pending": {
        "/ceramic/undelivered": {
            **{"waiting": 1, "pending": 1, "refused": 1},
            "chains": [{"chain_id": "x", "has_provider": True, "proofs": 1, "next_due": 1}],
        },
        "/ceramic/undelivered/waiting": {"events": [WAITING], "next": None},
        "/ceramic/undelivered/pending": {"events": [], "next": None},
        "/ceramic/undelivered/refused": {"events": [{"cid": "x", "reason": "x"}], "next": None},
    },
    "interests list": {"/ceramic/experimental/interests": {"interests": [INTEREST]}},
    "id": {"/ceramic/recon": {"peer_id": "x", "addresses": ["x"]}},
    "stream list": {
        "/ceramic/streams": {
            "streams": [
                {"id": "x", "model_name": None, "name": None, "sort_value": "x", "events": 1}
                | {"controller": DID}
            ],
            "total": 1,
            "next": None,
        }
    },
    "model list": {
        "/ceramic/models": {
            "models": [{"id": "x", "name": "x", "streams": 1, "events": 1}],
            "total": 1,
            "next": None,
        }
    },
    f"stream show {STREAM}": {
        f"/ceramic/streams/{STREAM}/events": {"id": str(STREAM), "events": [{**EVENT, "rank": ""}]}
    },
    f"stream anchor {STREAM}": {
        f"/api/v0/streams/{STREAM}/anchor": {"cid": str(ROOT)},
        f"/ceramic/anchors/events/{ROOT}": ANCHOR,
    },
    f"events get {ROOT} --show": {f"/ceramic/events/{ROOT}": {"data": "uOA"}},
    "events get bagcqceraaa": {"/ceramic/search": {"events": [{"cid": "x"}]}},
    "feed tail": {
        "/ceramic/feed/head": {"head": 1},
        "/ceramic/feed/events": {"events": [], "resumeToken": "1"},
    },
    "anchor status": {"/ceramic/anchors": ANCHORING},
    "anchor requests": {
        "/ceramic/anchors/requests": {
            "requests": [{"cid": "x", "state": "waiting", "made_at": 1, "time_event": None}]
        }
    },
    f"anchor verify {ROOT}": {f"/ceramic/anchors/events/{ROOT}": ANCHOR},
    f"dag status {ROOT}": {f"/ceramic/dag/{ROOT}": DAG},
    f"dag resolve {DID} -v": {f"/ceramic/dag/publish/{DID}": PUBLISHED},
    f"dag show {ROOT}": {f"/ceramic/dag/{ROOT}/replicas": {"root": "x", "replicas": []}},
    f"tangle show --root {STREAM} --name t": {
        f"/ceramic/tangles/t/{STREAM}": {
            "messages": [
                {"id": str(STREAM), "author": DID, "model": str(METAMODEL), "timestamp": 1}
                | {"previous": [], "content": {}}
            ],
            "tips": [str(STREAM)],
            "excluded": [{"id": str(STREAM), "reason": "x"}],
        }
    },
}
"""What commands are answered by path: only what they read of it."""


@pytest.mark.parametrize("command", ANSWERS)
def test_an_odd_answer_is_one_line_of_error(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ANSWERS[command]
    current: dict[str, Any] = {}

    def exchange(self: Connection, request: Request) -> Answer:
        if request.path not in current:
            return Answer(404, "")
        return Answer(200, "JSON", current[request.path])

    monkeypatch.setattr(Connection, "exchange", exchange)
    monkeypatch.setenv("RECON_NODE_URL", "http://node")
    refused = 0
    for path, answer in answers.items():
        for where, variant in variants(answer):
            current = {**answers, path: variant}
            result = CliRunner().invoke(main, command.split())
            odd = (path, where, variant, result.output)
            assert result.exception is None or isinstance(result.exception, SystemExit), odd
            if result.stderr.startswith("Error: "):
                assert result.exit_code == 1, odd
                refused += 1
    assert refused


def test_a_mistake_of_a_command_is_not_one_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def exchange(self: Connection, request: Request) -> Answer:
        return Answer(200, "JSON", STATUS)

    def mistaken(unix_time: float) -> str:
        raise KeyError(unix_time)

    monkeypatch.setattr(Connection, "exchange", exchange)
    monkeypatch.setattr("recon_node.cli.peers._ago", mistaken)
    result = CliRunner().invoke(main, ["peers", "--url", "http://node"])
    assert isinstance(result.exception, KeyError)


def test_an_error_below_api_v0_is_shown_by_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def exchange(self: Connection, request: Request) -> Answer:
        return Answer(409, "", {"Message": "this node does not anchor", "Code": 0, "Type": "error"})

    monkeypatch.setattr(Connection, "exchange", exchange)
    result = CliRunner().invoke(main, ["stream", "anchor", str(STREAM), "--url", "http://node"])
    assert (result.exit_code, result.stderr) == (1, "Error: this node does not anchor\n")
