"""The commands that talk to a node, against a real one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import click
import httpx
import pytest
from click.testing import CliRunner, Result
from nacl.signing import SigningKey
from support import forking
from support.waiting import kept_port

from recon_node import __version__
from recon_node.ceramic import METAMODEL, StreamId, StreamType
from recon_node.ceramic.builder import init_event
from recon_node.cli import main
from recon_node.ipld import CID, DAG_CBOR, multibase
from recon_node.testnet import Testnet, TestnetNode
from spark_sink.errors import FeedRefusedError
from spark_sink.source.feed_client import Feed

Events = list[dict[str, str]]
KEY = SigningKey(bytes(32))
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"of documents"))
DOCUMENT = str(StreamId(StreamType.MODEL_INSTANCE, METAMODEL.cid))
"""Of a document that no node has."""


def run(node: TestnetNode, *args: str, data: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, args, input=data, env={"RECON_NODE_URL": node.api_url})


def head(node: TestnetNode) -> int:
    return int(httpx.get(f"{node.api_url}/ceramic/feed/head").json()["head"])


def test_events_go_in_shuffled_and_come_out_in_causal_order(
    node: TestnetNode, sample: Events, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    events, before = sample[:100], head(node)
    file.write_text("\n".join(json.dumps(event) for event in reversed(events)))
    result = run(node, "events", "add", str(file))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("100 events: 100 new, 0 known, 0 refused, in ")
    feed = httpx.get(f"{node.api_url}/ceramic/feed/events?limit=1000").json()["events"][before:]
    order = [event["id"] for event in feed]
    assert sorted(order) == sorted(event["cid"] for event in events)
    for event in events:
        if "prev" in event:
            assert order.index(event["prev"]) < order.index(event["cid"])
    again = run(node, "events", "add", str(file))
    assert (again.exit_code, head(node)) == (0, before + 100)
    assert again.stdout.startswith("100 events: 0 new, 100 known, 0 refused, in ")


def test_the_feed_is_followed(node: TestnetNode) -> None:
    """In a process of its own: it prints at once, and ends when it is told to."""
    start = str(head(node))
    command = [sys.executable, "-m", "recon_node", "feed", "tail", "--from", start, "--follow"]
    env = {**os.environ, "RECON_NODE_URL": node.api_url}
    with forking.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        for number in range(2):
            event = init_event(KEY, MODEL, {"n": number}, unique=b"followed")
            sent = run(node, "events", "add", "-", data=multibase.encode(event.car))
            assert "1 new" in sent.output
            assert str(event.cid) in following.stdout.readline()
        following.terminate()


def test_the_id_of_a_running_node(node: TestnetNode, tmp_path: Path) -> None:
    result = run(node, "id", "--json")
    answer = json.loads(result.stdout)
    assert run(node, "id").stdout == f"{answer['peer_id']}\n"
    assert answer["addresses"]
    here = run(node, "id", "--data-dir", str(tmp_path))  # asks the directory, not the node
    assert (here.exit_code, "no identity yet" in here.stderr) == (1, True)
    both = run(node, "id", "--data-dir", str(tmp_path), "--url", node.api_url)
    assert (both.exit_code, "--url asks a running node" in both.stderr) == (2, True)


def test_refused_events_are_named_and_the_others_go_in(node: TestnetNode, sample: Events) -> None:
    before = head(node)
    orphan = next(event for event in reversed(sample) if "prev" in event)
    good = next(event for event in sample[100:] if "prev" not in event)
    lines = [json.dumps(good), "{", json.dumps(orphan), "", "mAAAA"]
    result = run(node, "events", "add", "-", data="\n".join(lines))
    assert result.exit_code == 1
    assert "4 events: 1 new, 0 known, 3 refused" in result.stdout
    refused = result.stderr.splitlines()
    assert len(refused) == 3
    assert refused[0].startswith("line 2: not JSON")
    assert refused[1].startswith(f"line 3 ({orphan['cid']}): ")
    assert refused[2].startswith("line 5: ")
    assert head(node) == before + 1


def test_get_and_add_are_each_others_inverse(
    node: TestnetNode, sample: Events, tmp_path: Path
) -> None:
    event = sample[0]
    assert run(node, "events", "add", "-", data=event["car"]).exit_code == 0
    result = run(node, "events", "get", event["cid"])
    assert result.stdout == event["car"] + "\n"
    file = tmp_path / "event.car"
    result = run(node, "events", "get", event["cid"], "--car", str(file))
    assert (result.exit_code, result.stdout) == (0, "")
    assert file.read_bytes() == multibase.decode(event["car"])
    result = run(node, "events", "get", event["cid"], "--car", "-")
    assert result.stdout_bytes == file.read_bytes()
    result = run(node, "events", "add", str(file))
    assert result.stdout.startswith("1 event: 0 new, 1 known, 0 refused")


def test_show_says_what_an_event_says(node: TestnetNode, sample: Events) -> None:
    model, event = sample[0], next(event for event in sample if "prev" in event)
    shown = json.loads(run(node, "events", "get", model["cid"], "--show").stdout)
    assert (shown["cid"], shown["kind"], shown["prev"]) == (model["cid"], "init", [])
    assert shown["payload"]["data"]["name"] == "Note"
    assert shown["signer"] == shown["payload"]["header"]["controllers"][0]
    assert set(shown["payload"]["header"]["model"]["/"]) == {"bytes"}
    shown = json.loads(run(node, "events", "get", event["cid"], "--show").stdout)
    assert (shown["kind"], shown["prev"]) == ("data", [event["prev"]])
    assert shown["payload"]["id"] == {"/": shown["init"]}


def test_status(node: TestnetNode) -> None:
    shown = json.loads(run(node, "status", "--json").stdout)
    assert shown["events"] == head(node)
    assert 0 <= shown["peer_memory"]["held"] < shown["peer_memory"]["budget"]
    text = run(node, "status").stdout
    assert re.search(r"disk +[\d.,]+ \w+ free, [\d.,]+ \w+ are kept free \(keep_free\)", text)
    assert re.search(r"held for peers +[\d.,]+ \w+ of [\d.,]+ \w+ \(max_peer_memory\)", text)
    assert shown["sha256a"] in text
    assert node.peer_id in text
    assert "the network: announced to " in text


def test_status_shows_the_syncs_that_moved_events(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = {
        **dict.fromkeys(("bytes_sent", "bytes_received", "event_bytes_received"), 87),
        **dict.fromkeys(("event_bytes_sent", "events_sent", "events_received"), 0),
        "finished_at": time.time(),
        **{"peer": "12D3KooW", "role": "responder", "outcome": "agreed", "rounds": 1, "seconds": 1},
    }
    moved = {**idle, "events_sent": 930, "event_bytes_sent": 613_000}
    recon = {"events": 930, "pending": 7, "syncs": [idle] * 100, "transfers": [moved]}
    monkeypatch.setattr("recon_node.connection.Connection.request", lambda *_: recon)
    shown = CliRunner().invoke(main, ["status"]).stdout
    first, second = shown.partition("latest syncs that moved events")[2].split("latest syncs")
    assert re.search(r"responder +930 +0 +613,087 +174 ", first)
    assert not re.search(r"\b930\b", second)  # but of so many minutes ago
    assert re.search(r"^pending +7\b", shown, re.MULTILINE)
    recon["syncs"] = [moved]  # as after the first sync: one table is enough
    shown = CliRunner().invoke(main, ["status"]).stdout
    assert "latest syncs" in shown
    assert "that moved events" not in shown


@pytest.mark.parametrize(
    ("shares", "covers", "shown"),
    [
        (None, None, ["unknown"]),
        ([], 0.0, ["0% of the events"]),
        (["model=k1", "family=tea"], 0.25, ["model=k1", "family=tea", "25% of the events"]),
        ([f"n={n}" for n in range(5)], 1.0, ["n=0", "n=1", "n=2", "and 2 others", "100% of the"]),
    ],
)
def test_what_peers_share_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    shares: list[str] | None,
    covers: float | None,
    shown: list[str],
) -> None:
    peer = {"id": "12D3", "connected": True, "addresses": [], "shares": shares, "covers": covers}
    peer |= {"speaks": ["recon/1.2.0", "recon/1.0.0"]}
    monkeypatch.setattr("recon_node.connection.Connection.request", lambda *_: {"peers": [peer]})
    monkeypatch.setenv("COLUMNS", "200")
    text = CliRunner().invoke(main, ["peers"]).stdout
    assert all(each in text for each in shown)
    assert "n=3" not in text
    assert "\\n" not in text  # lines of a cell are lines
    [listed] = json.loads(CliRunner().invoke(main, ["peers", "--json"]).stdout)
    assert (listed["shares"], listed["covers"]) == (shares, covers)


def test_what_a_peer_is_worth_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its latency, how far it was behind, and how likely it is drawn for the next sync."""
    peer = {"id": "12D3", "connected": True, "addresses": [], "shares": [], "covers": 1.0}
    peer |= {"latency": 0.0421, "behind": 0.37, "score": 0.25}
    far = {**peer, "id": "12D4", "connected": False, "latency": None, "score": None}
    answer = {"peers": [peer, far]}
    monkeypatch.setattr("recon_node.connection.Connection.request", lambda *_: answer)
    monkeypatch.setenv("COLUMNS", "200")
    text = CliRunner().invoke(main, ["peers"]).stdout
    assert all(each in text for each in ("42 ms", "37%", "25%", "latency", "behind", "score"))


def test_peers(node: TestnetNode) -> None:
    assert json.loads(run(node, "peers", "--json").stdout) == []
    assert "no peers yet" in run(node, "peers").stdout
    result = run(node, "peers", "add", "not-a-multiaddr")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: 'not-a-multiaddr' is not a multiaddr such as /ip4/")


def test_a_peer_is_removed_until_it_is_added(node: TestnetNode) -> None:
    peer = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
    removed = run(node, "peers", "remove", f"/ip4/192.0.2.7/tcp/4101/p2p/{peer}")
    assert (removed.exit_code, removed.stdout) == (0, f"removed {peer}\n")
    assert f"removed, and refused: {peer}" in run(node, "peers").stdout
    assert json.loads(run(node, "peers", "remove", peer, "--json").stdout) == {"removed": peer}
    wrong = run(node, "peers", "remove", "nonsense")
    assert (wrong.exit_code, "'nonsense' is not a peer id" in wrong.stderr) == (1, True)


def test_a_node_without_peers() -> None:
    with Testnet(nodes=1, flags=["--offline"]) as net:
        [node] = net.nodes
        assert "the node runs offline" in run(node, "peers").stdout
        assert "none: the node runs offline" in run(node, "status").stdout
        added = run(node, "peers", "add", "/ip4/127.0.0.1/tcp/1/p2p/12D3KooW")
        assert "without a network side" in added.stderr
        assert len(node.peer_id) == 52
        assert node.addresses == ()


def test_errors_of_the_node_are_shown(node: TestnetNode, sample: Events) -> None:
    missing = sample[-1]["cid"]
    result = run(node, "events", "get", missing)
    assert (result.exit_code, result.stderr) == (1, f"Error: Event not found : {missing}\n")
    result = run(node, "events", "get", "nonsense")
    assert result.exit_code == 1
    assert "Invalid Cid" in result.stderr


@pytest.mark.parametrize(
    "command",
    [["status"], ["peers"], ["events", "get", "bagc"], ["events", "add", "-"]],
)
def test_no_node_answers(command: list[str], sample: Events) -> None:
    with kept_port() as port:
        url = f"http://127.0.0.1:{port}"
        result = CliRunner().invoke(main, [*command, "--url", url], input=sample[0]["car"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: no node answers at {url} (")
    assert "recon-node run" in result.stderr


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://x"])
def test_a_url_that_is_not_valid(url: str) -> None:
    result = CliRunner().invoke(main, ["status", "--url", url])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no node answers at ")


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["id"],
        ["events", "add"],
        ["events", "get"],
        ["peers"],
        ["interests", "list"],
        ["interests", "add"],
        ["interests", "remove"],
        ["status"],
        ["testnet"],
        ["stream", "show"],
        ["tangle", "show"],
        ["dag", "show"],
    ],
)
def test_help_teaches_by_example(command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"recon-node {' '.join(command)}" in result.stdout.partition("Example")[2]


def test_every_command_and_option_explains_itself() -> None:
    def check(command: click.Command, context: click.Context) -> None:
        assert command.help, context.command_path
        for param in command.get_params(context):
            hidden = isinstance(param, click.Argument) or getattr(param, "hidden", False)
            assert hidden or getattr(param, "help", None), (context.command_path, param.name)
        for name in command.list_commands(context) if isinstance(command, click.Group) else ():
            inner = command.get_command(context, name)  # type: ignore[union-attr]
            assert inner is not None
            assert inner.name == name
            check(inner, click.Context(inner, parent=context, info_name=name))

    check(main, click.Context(main, info_name="recon-node"))


def test_the_help_of_run_shows_the_defaults() -> None:
    from recon_node.settings import Settings

    text = CliRunner().invoke(main, ["run", "--help"]).stdout
    settings = Settings()
    for default in (settings.network, *settings.p2p.listen, settings.api.address):
        assert f"[default: {default}]" in " ".join(text.split())
    assert f"[default: {settings.p2p.sync_interval:g}]" in text


def test_a_misspelt_command_is_refused_with_the_names_that_it_resembles() -> None:
    result = CliRunner().invoke(main, ["streams", "list"])
    assert result.exit_code == 2
    assert "No such command 'streams'. Did you mean 'stream'" in result.stderr
    unlike = CliRunner().invoke(main, ["qqq"])
    assert unlike.exit_code == 2
    assert unlike.stderr.endswith("No such command 'qqq'.\n")


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.stdout == f"recon-node, version {__version__}\n"


def test_interests(node: TestnetNode) -> None:
    assert json.loads(run(node, "interests", "list", "--json").stdout) == []
    assert "syncs everything" in run(node, "interests", "list").stdout
    models = "kh4q0ozorrgaq2mezktnrmdwleo1d"
    added = run(node, "interests", "add", models)
    assert (added.exit_code, added.stdout) == (0, f"the node syncs {models} from now on\n")
    assert "from now on it syncs nothing else" in added.stderr
    second = run(node, "interests", "add", f"model={models}", "controller=did:key:z6Mk")
    assert second.stderr == ""
    listed = json.loads(run(node, "interests", "list", "--json").stdout)
    assert [interest.get("controller") for interest in listed] == [None, "did:key:z6Mk"]
    lines = run(node, "interests", "list").stdout.splitlines()
    assert lines == [f"model={models}", f"model={models} controller=did:key:z6Mk"]
    status = " ".join(run(node, "status").stdout.split())
    assert f"interests model={models} model={models} controller=did:key:z6Mk" in status
    removed = run(node, "interests", "remove", models)
    assert (removed.exit_code, removed.stdout) == (0, f"removed the interest {models}\n")
    removed = run(node, "interests", "remove", f"model={models}", "controller=did:key:z6Mk")
    assert "the node syncs everything on its network" in removed.stdout
    assert "syncs everything on its network" in run(node, "status").stdout


def test_a_sort_key_that_may_be_mistyped_is_noted(node: TestnetNode) -> None:
    noted = run(node, "interests", "add", "modle=blog")
    assert (noted.exit_code, "'modle' is not a usual sort key" in noted.stderr) == (0, True)
    assert run(node, "interests", "add", "controllers=did:key:z6Mk").stderr == ""
    for interest in ("modle=blog", "controllers=did:key:z6Mk"):
        run(node, "interests", "remove", interest)


@pytest.mark.parametrize(
    ("interest", "message"),
    [
        (DOCUMENT, "yet, so its model and controller"),
        (f"model={DOCUMENT}", "the StreamID of a document, not of a model"),
        ("controller=did:key:z6Mk", "a controller alone is not a range of keys"),
        ("nonsense", "is not a StreamID"),
    ],
)
def test_an_interest_that_can_never_match_is_refused(
    node: TestnetNode, interest: str, message: str
) -> None:
    refused = run(node, "interests", "add", interest)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: ")
    assert message in refused.stderr
    assert json.loads(run(node, "interests", "list", "--json").stdout) == []
    missing = run(node, "interests", "remove", f"model={DOCUMENT}")
    assert (missing.exit_code, "this node has no interest" in missing.stderr) == (1, True)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestnetNode, Path]]:
    """A node of another network that requires a token for everything, and the token file."""
    file = tmp_path_factory.mktemp("guarded") / "token"
    file.write_text("the-token-of-this-test\n")
    flags = ("--token-file", str(file), "--token-for", "all")
    with Testnet(1, flags=flags) as net:
        yield net.nodes[0], file


def test_a_node_that_requires_a_token(
    guarded: tuple[TestnetNode, Path], sample: Events, tmp_path: Path
) -> None:
    node, file = guarded
    events = tmp_path / "events.jsonl"
    events.write_text("\n".join(json.dumps(event) for event in sample[:20]))
    for command in (["status"], ["peers"], ["interests", "list"], ["events", "add", str(events)]):
        refused = run(node, *command)
        assert refused.exit_code == 1
        assert "the node requires a token" in refused.stderr
        for shown in (["--token-file", str(file)], ["--token", "the-token-of-this-test"]):
            assert run(node, *command, *shown).exit_code == 0
    refused = run(node, "stream", "get", "kh4q0ozorrgaq2mezktnrmdwleo1d")
    assert (refused.exit_code, "--token-file" in refused.stderr) == (1, True)
    feed = Feed(node.api_url, patience=0, token="the-token-of-this-test")
    assert feed.head().head == 20
    assert sum(batch.num_rows for batch in feed.read(0, 20, feed.head().epoch)) == 20
    with pytest.raises(FeedRefusedError, match=r"requires a token \(401\): give it to"):
        Feed(node.api_url, patience=0).head()
    assert httpx.get(f"{node.api_url}/ceramic/liveness").status_code == 200


def test_a_token_file_that_does_not_exist(node: TestnetNode) -> None:
    result = run(node, "status", "--token-file", "/nowhere/token")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the token file /nowhere/token cannot be read")


def test_a_peer_of_another_network_is_reported(
    node: TestnetNode, guarded: tuple[TestnetNode, Path]
) -> None:
    [address] = guarded[0].addresses
    result = run(node, "peers", "add", address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: peer {address.rpartition('/')[2]} is on another net")
    assert "(local-" in result.stderr
    known = json.loads(run(node, "peers", "--json").stdout)
    assert not any(peer["id"] in address for peer in known)


def test_the_first_sync_with_a_peer_is_shown(
    node: TestnetNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recon_node.cli.peers.FIRST_SYNC", 60.0)
    network = httpx.get(f"{node.api_url}/ceramic/config/network").json()["name"]
    with Testnet(1, network=network) as other:
        [address, *_] = other.nodes[0].addresses
        result = run(node, "peers", "add", address)
        monkeypatch.setattr("recon_node.cli.peers.FIRST_SYNC", 0.0)
        nowhere = {"RECON_NODE_URL": "http://127.0.0.1:1"}
        for args in (
            ["add", address, "--url", node.api_url],
            ["--url", node.api_url, "add", address],
        ):
            done = CliRunner().invoke(main, ["peers", *args, "--json"], env=nowhere)
            again = json.loads(done.stdout)
    assert (result.exit_code, result.stdout.splitlines()[1]) == (0, "first sync: agreed")
    assert (again["address"], again["peer"]) == (address, other.nodes[0].peer_id)


def test_refusals_are_capped(node: TestnetNode) -> None:
    result = run(node, "events", "add", "-", data="mAAAA\n" + "{\n" * 249)
    assert result.exit_code == 1
    printed = result.stderr.splitlines()
    assert [line.partition(":")[0] for line in printed[:100]] == [
        f"line {n}" for n in range(1, 101)
    ]
    assert printed[100:] == ["... and 150 more refused"]
    assert "250 events: 0 new, 0 known, 250 refused" in result.stdout


def test_an_interrupt_while_it_waits_for_input(node: TestnetNode, sample: Events) -> None:
    command = [sys.executable, "-m", "recon_node", "events", "add", "-", "--url", node.api_url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with forking.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        line = json.dumps(sample[0]).encode() + b"\n"
        process.stdin.write(line * (300_000 // len(line)))  # no pipe holds that: it is reading
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
        assert process.wait(60) == 1
    assert printed.decode().strip() == "Aborted!"


def test_a_stream_id_is_distinguished_from_a_cid(node: TestnetNode, sample: Events) -> None:
    model = CID.parse(sample[0]["cid"])
    stream = str(StreamId(StreamType.MODEL, model))
    result = run(node, "events", "get", stream)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"`recon-node stream show {stream}`" in result.stderr
    assert sample[0]["cid"] in result.stderr


def test_a_url_may_do_without_http(node: TestnetNode) -> None:
    address = node.api_url.removeprefix("http://")
    result = CliRunner().invoke(main, ["status", "--json", "--url", address])
    assert (result.exit_code, json.loads(result.stdout)["events"]) == (0, head(node))


def test_standard_output_that_cannot_be_written(node: TestnetNode) -> None:
    def end_of(stdout: str) -> tuple[int, str]:
        shell = f'exec "$@" {stdout}'
        done = subprocess.run(
            ["bash", "-c", shell, "-", sys.executable, "-m", "recon_node", "status"],
            env={**os.environ, "RECON_NODE_URL": node.api_url},
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        assert end_of("") == (1, "")  # whoever read it has seen enough
        assert end_of(">&-") == (0, "")
        code, error = end_of(">/dev/full")
    finally:
        os.close(write_end)
    assert (code, error.count("\n")) == (1, 1)
    assert error.startswith("Error: standard output cannot be written: ")


# --- what takes the whole sample: last, since the others count its events ---


def test_streams_and_models_are_listed(node: TestnetNode, sample: Events) -> None:
    run(node, "events", "add", "-", data="\n".join(map(json.dumps, sample)))
    everything = json.loads(run(node, "stream", "list", "--limit", "0", "--json").stdout)
    inits = {event["cid"] for event in sample if "prev" not in event}
    assert inits <= {each["init"] for each in everything}
    some = run(node, "stream", "list", "--limit", "2")
    assert some.exit_code == 0, some.output
    assert [line.split()[0] for line in some.stdout.splitlines()[1:]] == [
        each["id"] for each in everything[:2]
    ]
    assert some.stderr == f"{len(everything) - 2:,} more: --limit 0 lists all\n"
    models = json.loads(run(node, "model", "list", "--json").stdout)
    assert models
    documents = run(node, "stream", "list", "--model", models[0]["id"], "--json")
    assert len(json.loads(documents.stdout)) == min(20, models[0]["streams"])
    wrong = run(node, "stream", "list", "--model", "nonsense")
    assert (wrong.exit_code, "model: " in wrong.stderr) == (1, True)


def test_an_event_by_the_first_characters_of_its_cid(node: TestnetNode, sample: Events) -> None:
    cid = sample[0]["cid"]
    run(node, "events", "add", "-", data=json.dumps(sample[0]))
    assert run(node, "events", "get", cid[:40]).stdout == run(node, "events", "get", cid).stdout
    run(node, "events", "add", "-", data="\n".join(map(json.dumps, sample)))
    many = run(node, "events", "get", cid[:10])
    assert (many.exit_code, "more than one event begins with" in many.stderr) == (1, True)
    none = run(node, "events", "get", "bagcqceraaaaaaaaaaaaaaaaaaaa")
    assert (none.exit_code, none.stdout) == (1, "")


def test_the_feed_is_printed_and_continued(node: TestnetNode, sample: Events) -> None:
    start = head(node)
    add = run(node, "events", "add", "-", data="\n".join(map(json.dumps, sample[200:230])))
    assert add.exit_code == 0, add.output
    last = head(node)
    lines = run(node, "feed", "tail", "-n", "3").stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == [last - 2, last - 1, last]
    today = datetime.now(UTC).date()
    assert all(today - date.fromisoformat(line.split()[1]) <= timedelta(1) for line in lines)
    every = run(node, "feed", "tail", "--from", str(start), "--json")
    found = [json.loads(line) for line in every.stdout.splitlines()]
    assert [each["position"] for each in found] == list(range(start + 1, last + 1))
    again = run(node, "events", "add", "-", data=every.stdout)  # what it prints can be sent on
    assert f"{last - start} events: 0 new, {last - start} known" in again.stdout
    assert run(node, "feed", "tail", "--from", str(last)).stdout == ""
    beyond = run(node, "feed", "tail", "--from", str(last + 1))
    assert (beyond.exit_code, "beyond the feed's end" in beyond.stderr) == (1, True)
