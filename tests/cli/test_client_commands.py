"""The commands that talk to a node, against a real one."""

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
from typing import Any

import click
import httpx
import pytest
from cli_run import Events, error_of, json_of, run
from nacl.signing import SigningKey
from support import forking
from support.interrupts import interrupted_at
from support.waiting import finished, kept_port

from recon_node import __version__
from recon_node.ceramic import METAMODEL, StreamId, StreamType
from recon_node.ceramic.builder import init_event
from recon_node.cli import main
from recon_node.ipld import CID, DAG_CBOR, multibase
from recon_node.testnet import Testnet, TestnetNode
from spark_sink.errors import FeedRefusedError
from spark_sink.source.feed_client import Feed

KEY = SigningKey(bytes(32))
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"of documents"))
DOCUMENT = str(StreamId(StreamType.MODEL_INSTANCE, METAMODEL.cid))
"""Of a document that no node has."""


def lines_of(events: Events) -> str:
    return "\n".join(map(json.dumps, events))


def head(node: TestnetNode) -> int:
    return int(httpx.get(f"{node.api_url}/ceramic/feed/head").json()["head"])


def test_events_go_in_shuffled_and_come_out_in_causal_order(node, sample, tmp_path):
    file = tmp_path / "events.jsonl"
    events, before = sample[:100], head(node)
    file.write_text(lines_of(events[::-1]))
    result = run("events", "add", file, node=node)
    assert result.stdout.startswith("100 events: 100 new, 0 known, 0 refused, in ")
    feed = httpx.get(f"{node.api_url}/ceramic/feed/events?limit=1000").json()["events"][before:]
    order = [event["id"] for event in feed]
    assert sorted(order) == sorted(event["cid"] for event in events)
    for event in events:
        if "prev" in event:
            assert order.index(event["prev"]) < order.index(event["cid"])
    again = run("events", "add", file, node=node)
    assert again.stdout.startswith("100 events: 0 new, 100 known, 0 refused, in ")
    assert head(node) == before + 100


def test_the_feed_is_followed(node: TestnetNode) -> None:
    """In a process of its own: it prints at once, and ends on a signal."""
    start = str(head(node))
    command = [sys.executable, "-m", "recon_node", "feed", "tail", "--from", start, "--follow"]
    env = {**os.environ, "RECON_NODE_URL": node.api_url}
    with forking.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as following:
        for number in range(2):
            event = init_event(KEY, MODEL, {"n": number}, unique=b"followed")
            sent = run("events", "add", "-", node=node, data=multibase.encode(event.car))
            assert "1 new" in sent.output
            assert str(event.cid) in following.stdout.readline()
        following.terminate()


def test_the_id_of_a_running_node(node: TestnetNode, tmp_path: Path) -> None:
    answer = json_of("id", node=node)
    assert run("id", node=node).stdout == f"{answer['peer_id']}\n"
    assert answer["addresses"]
    assert "default: http" not in run("id", "--help").stdout
    here = ("id", "--data-dir", tmp_path)
    assert "no identity yet" in error_of(*here, node=node)  # it asks the directory, not the node
    assert "--url asks a running node" in error_of(*here, "--url", node.api_url, code=2)


def test_refused_events_are_named_and_the_others_go_in(node: TestnetNode, sample: Events) -> None:
    before = head(node)
    orphan = next(event for event in reversed(sample) if "prev" in event)
    good = next(event for event in sample[100:] if "prev" not in event)
    lines = [json.dumps(good), "{", json.dumps(orphan), "", "mAAAA"]
    result = run("events", "add", "-", node=node, data="\n".join(lines), code=1)
    assert "4 events: 1 new, 0 known, 3 refused" in result.stdout
    first, second, third = result.stderr.splitlines()
    assert first.startswith("line 2: not JSON")
    assert second.startswith(f"line 3 ({orphan['cid']}): ")
    assert third.startswith("line 5: ")
    assert head(node) == before + 1
    many = run("events", "add", "-", node=node, data="mAAAA\n" + "{\n" * 249, code=1)
    printed = [line.partition(":")[0] for line in many.stderr.splitlines()]
    assert printed == [*(f"line {n}" for n in range(1, 101)), "... and 150 more refused"]
    assert "250 events: 0 new, 0 known, 250 refused" in many.stdout


def test_get_and_add_are_each_others_inverse(node, sample, tmp_path):
    event, file = sample[0], tmp_path / "event.car"
    run("events", "add", "-", node=node, data=event["car"])
    get = ("events", "get", event["cid"])
    assert run(*get, node=node).stdout == event["car"] + "\n"
    assert run(*get, "--car", file, node=node).stdout == ""
    assert file.read_bytes() == multibase.decode(event["car"])
    assert run(*get, "--car", "-", node=node).stdout_bytes == file.read_bytes()
    added = run("events", "add", file, node=node)
    assert added.stdout.startswith("1 event: 0 new, 1 known, 0 refused")


def test_show_says_what_an_event_says(node: TestnetNode, sample: Events) -> None:
    model, event = sample[0], next(event for event in sample if "prev" in event)
    shown = json.loads(run("events", "get", model["cid"], "--show", node=node).stdout)
    assert (shown["cid"], shown["kind"], shown["prev"]) == (model["cid"], "init", [])
    assert shown["payload"]["data"]["name"] == "Note"
    assert shown["signer"] == shown["payload"]["header"]["controllers"][0]
    assert set(shown["payload"]["header"]["model"]["/"]) == {"bytes"}
    shown = json.loads(run("events", "get", event["cid"], "--show", node=node).stdout)
    assert (shown["kind"], shown["prev"]) == ("data", [event["prev"]])
    assert shown["payload"]["id"] == {"/": shown["init"]}


def test_status(node: TestnetNode, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = json_of("status", node=node)
    assert shown["events"] == head(node)
    assert 0 <= shown["peer_memory"]["held"] < shown["peer_memory"]["budget"]
    text = run("status", node=node).stdout
    assert re.search(r"disk +[\d.,]+ \w+ free, [\d.,]+ \w+ are kept free \(keep_free\)", text)
    assert re.search(r"held for peers +[\d.,]+ \w+ of [\d.,]+ \w+ \(max_peer_memory\)", text)
    for part in (shown["sha256a"], node.peer_id, "the network: announced to "):
        assert part in text
    for name, value in (("FORCE_COLOR", "1"), ("NO_COLOR", "1"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)  # as on a terminal
    assert shown["sha256a"] in run("status", node=node).stdout  # in one piece, to be copied


def test_status_shows_the_syncs_that_moved_events(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = {
        **dict.fromkeys(("bytes_sent", "bytes_received", "event_bytes_received"), 87),
        **dict.fromkeys(("event_bytes_sent", "events_sent", "events_received"), 0),
        "finished_at": time.time(),
        **{"peer": "12D3KooW", "role": "responder", "outcome": "agreed", "rounds": 1, "seconds": 1},
    }
    moved = {**idle, "events_sent": 930, "event_bytes_sent": 613_000}
    recon = {"events": 930, "pending": 7, "syncs": [idle] * 100, "transfers": [moved]}
    monkeypatch.setattr("recon_node.base.connection.Connection.request", lambda *_: recon)
    shown = run("status").stdout
    first, second = shown.partition("latest syncs that moved events")[2].split("latest syncs")
    assert re.search(r"responder +930 +0 +613,087 +174 ", first)
    assert not re.search(r"\b930\b", second)  # but of so many minutes ago
    assert re.search(r"^pending +7\b", shown, re.MULTILINE)
    recon["disk"] = {"free": 1, "keep_free": 2, "is_short": False, "failure": "check the mount"}
    assert re.search("^LAST WRITE FAILED +check the mount", run("status").stdout, re.MULTILINE)
    recon["syncs"] = [moved]  # as after the first sync: one table is enough
    shown = run("status").stdout
    assert "latest syncs" in shown
    assert "that moved events" not in shown


def test_what_a_peer_shares_and_is_worth_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its latency, how far it was behind, and how likely it is drawn for the next sync, too."""
    monkeypatch.setenv("COLUMNS", "200")
    worth: dict[str, Any] = {"latency": 0.0421, "behind": 0.37, "score": 0.25}
    unknown = {"latency": None, "behind": 0.0, "score": None}
    for shares, covers, known, shown in (
        (None, None, unknown, ["unknown"]),
        ([], 0.0, worth, ["0% of the events", "42 ms", "37%", "25%", "latency", "score"]),
        (["model=k1", "family=tea"], 0.25, worth, ["model=k1", "family=tea", "25% of the events"]),
        ([f"n={n}" for n in range(5)], 1.0, worth, ["n=0", "n=2", "and 2 others", "100% of"]),
    ):
        peer = {"id": "12D3", "connected": True, "addresses": ["/ip4/::/tcp/1/p2p/12D3"]}
        peer |= {"shares": shares}
        peer |= {"covers": covers, "speaks": ["recon/1.2.0", "recon/1.0.0"], **known}
        answer = {"peers": [peer, {**peer, "connected": False, **unknown}]}
        monkeypatch.setattr("recon_node.base.connection.Connection.request", lambda *_, a=answer: a)
        text = run("peers").stdout
        assert all(word in text for word in shown), text
        assert "n=3" not in text
        assert re.search("/tcp/1 *$", text, re.MULTILINE)  # the column before has the id
        assert "\\n" not in text  # lines of a cell are lines
        assert json_of("peers")[0] == peer


def test_peers(node: TestnetNode) -> None:
    assert json_of("peers", node=node) == []
    assert "no peers yet" in run("peers", node=node).stdout
    wrong = error_of("peers", "add", "not-a-multiaddr", node=node)
    assert wrong.startswith("Error: 'not-a-multiaddr' is not a multiaddr such as /ip4/")
    peer = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
    removed = run("peers", "remove", f"/ip4/192.0.2.7/tcp/4101/p2p/{peer}", node=node)
    assert removed.stdout == f"removed {peer}\n"
    assert f"removed, and refused: {peer}" in run("peers", node=node).stdout
    assert json_of("peers", "remove", peer, node=node) == {"removed": peer}
    assert "'nonsense' is not a peer id" in error_of("peers", "remove", "nonsense", node=node)
    assert "is this node itself" in error_of("peers", "remove", node.peer_id, node=node)
    assert node.peer_id not in run("peers", node=node).stdout


def test_a_node_without_peers() -> None:
    with Testnet(nodes=1, flags=["--offline"]) as net:
        [node] = net.nodes
        assert "the node runs offline" in run("peers", node=node).stdout
        assert "none: the node runs offline" in run("status", node=node).stdout
        added = error_of("peers", "add", "/ip4/127.0.0.1/tcp/1/p2p/12D3KooW", node=node)
        assert "without a network side" in added
        assert len(node.peer_id) == 52
        assert node.addresses == ()


def test_errors_of_the_node_are_shown(node: TestnetNode, sample: Events) -> None:
    missing = sample[-1]["cid"]
    assert error_of("events", "get", missing, node=node) == f"Error: Event not found : {missing}\n"
    assert "at least its first 10 characters" in error_of("events", "get", "nonsense", node=node)
    assert "'long nonsense' is not a CID" in error_of("events", "get", "long nonsense", node=node)
    model = StreamId(StreamType.MODEL, CID.parse(sample[0]["cid"]))
    error = error_of("events", "get", model, node=node)
    assert f"`recon-node stream show {model}`" in error
    assert sample[0]["cid"] in error


def test_no_node_answers(sample: Events) -> None:
    with kept_port() as port:
        url = f"http://127.0.0.1:{port}"
        for command in ("status", "peers", "events get bagcqceraj", "events add -"):
            error = error_of(*command.split(), "--url", url, data=sample[0]["car"])
            assert error.startswith(f"Error: no node answers at {url} (")
            assert "recon-node run" in error
    for wrong in ("nonsense", "http://", "ftp://x"):
        assert error_of("status", "--url", wrong).startswith("Error: no node answers at ")


@pytest.mark.parametrize(
    "command",
    [
        *("run", "id", "events add", "events get", "peers", "status", "testnet", "stream show"),
        *("interests list", "interests add", "interests remove", "tangle show", "dag show"),
    ],
)
def test_help_teaches_by_example(command: str) -> None:
    _, _, examples = run(*command.split(), "--help").stdout.partition("Example")
    assert f"recon-node {command}" in examples


def test_every_command_and_option_explains_itself() -> None:
    def check(command: click.Command, context: click.Context) -> None:
        assert command.help, context.command_path
        for param in command.get_params(context):
            hidden = isinstance(param, click.Argument) or getattr(param, "hidden", False)
            assert hidden or getattr(param, "help", None), (context.command_path, param.name)
        assert ".0;" not in command.get_help(context), context.command_path  # 300.0 seconds
        for name in command.list_commands(context) if isinstance(command, click.Group) else ():
            inner = command.get_command(context, name)  # type: ignore[union-attr]
            assert inner.name == name
            assert not inner.get_short_help_str().endswith("..."), context.command_path
            check(inner, click.Context(inner, parent=context, info_name=name))

    check(main, click.Context(main, info_name="recon-node"))


def test_the_help_of_run_shows_the_defaults() -> None:
    from recon_node.settings import Settings

    text = " ".join(run("run", "--help").stdout.split())
    settings = Settings()
    for default in (settings.network, *settings.p2p.listen, settings.api.address):
        assert f"[default: {default}]" in text
    assert f"[default: {settings.p2p.sync_interval:g}]" in text


def test_a_misspelt_command_is_refused_with_the_names_that_it_resembles() -> None:
    similar = error_of("streams", "list", code=2)
    names = "'status', 'store', 'stream'"
    assert f"No such command 'streams'. (Did you mean one of: {names}?)" in similar
    lazy = error_of("stream", "shwo", code=2)
    assert "No such command 'shwo'. Did you mean 'show'?" in lazy
    assert error_of("qqq", code=2).endswith("No such command 'qqq'.\n")
    version = run("--version").stdout.replace(", with the native core", "")
    assert version == f"recon-node, version {__version__}\n"


def test_interests(node: TestnetNode) -> None:
    assert json_of("interests", "list", node=node) == []
    assert "syncs everything" in run("interests", "list", node=node).stdout
    models = "kh4q0ozorrgaq2mezktnrmdwleo1d"
    added = run("interests", "add", models, node=node)
    assert added.stdout == f"the node syncs {models} from now on\n"
    assert "from now on it syncs nothing else" in added.stderr
    second = run("interests", "add", f"model={models}", "controller=did:key:z6Mk", node=node)
    assert second.stderr == ""
    listed = json_of("interests", "list", node=node)
    assert [interest.get("controller") for interest in listed] == [None, "did:key:z6Mk"]
    lines = run("interests", "list", node=node).stdout.splitlines()
    assert lines == [f"model={models}", f"model={models} controller=did:key:z6Mk"]
    status = " ".join(run("status", node=node).stdout.split())
    assert f"interests model={models} model={models} controller=did:key:z6Mk" in status
    removed = run("interests", "remove", models, node=node)
    assert removed.stdout == f"removed the interest {models}\n"
    removed = run("interests", "remove", f"model={models}", "controller=did:key:z6Mk", node=node)
    assert "the node syncs everything on its network" in removed.stdout
    assert "syncs everything on its network" in run("status", node=node).stdout


def test_a_sort_key_that_may_be_mistyped_is_noted(node: TestnetNode) -> None:
    noted = run("interests", "add", "modle=blog", node=node)
    assert "'modle' is not a usual sort key" in noted.stderr
    assert "all streams with this value, whatever their sort key" in noted.stderr
    assert run("interests", "add", "controllers=did:key:z6Mk", node=node).stderr == ""
    for interest in ("modle=blog", "controllers=did:key:z6Mk"):
        run("interests", "remove", interest, node=node)


def test_an_interest_that_can_never_match_is_refused(node: TestnetNode) -> None:
    for interest, message in (
        (DOCUMENT, "yet, so its model and controller"),
        (f"model={DOCUMENT}", "the StreamID of a document, not of a model"),
        ("controller=did:key:z6Mk", "a controller alone is not a range of keys"),
        ("nonsense", "is not a StreamID"),
    ):
        refused = error_of("interests", "add", interest, node=node)
        assert refused.startswith("Error: ")
        assert message in refused
    assert json_of("interests", "list", node=node) == []
    missing = error_of("interests", "remove", f"model={DOCUMENT}", node=node)
    assert "this node has no interest" in missing


@pytest.mark.parametrize(
    "command", ["events get", "anchor verify", "stream anchor", "stream show", "peers remove"]
)
def test_an_id_is_one_part_of_a_path(node: TestnetNode, command: str) -> None:
    """Other paths were asked, and the node taken for something else by what they answer."""
    for text, words in (("x/../../../metrics?y", "'x/../../../metrics?y'"), ("", "''")):
        assert words in error_of(*command.split(), text, node=node)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestnetNode, Path]]:
    """A node of another network that requires a token for everything, and the token file."""
    file = tmp_path_factory.mktemp("guarded") / "token"
    file.write_text("the-token-of-this-test\n")
    flags = ("--token-file", str(file), "--token-for", "all")
    with Testnet(1, flags=flags) as net:
        yield net.nodes[0], file


def test_a_node_that_requires_a_token(guarded, sample, tmp_path):
    node, file = guarded
    events = tmp_path / "events.jsonl"
    events.write_text(lines_of(sample[:20]))
    for command in ("status", "peers", "interests list", f"events add {events}"):
        assert "the node requires a token" in error_of(*command.split(), node=node)
        for shown in (("--token-file", file), ("--token", "the-token-of-this-test")):
            run(*command.split(), *shown, node=node)
    refused = error_of("stream", "get", "kh4q0ozorrgaq2mezktnrmdwleo1d", node=node)
    assert "--token-file" in refused
    feed = Feed(node.api_url, patience=0, token="the-token-of-this-test")
    assert feed.head().head == 20
    assert sum(batch.num_rows for batch in feed.read(0, 20, feed.head().epoch)) == 20
    with pytest.raises(FeedRefusedError, match=r"requires a token \(401\): give it to"):
        Feed(node.api_url, patience=0).head()
    assert httpx.get(f"{node.api_url}/ceramic/liveness").status_code == 200


def test_a_token_file_that_does_not_exist(node: TestnetNode) -> None:
    error = error_of("status", "--token-file", "/nowhere/token", node=node)
    assert error.startswith("Error: the token file /nowhere/token cannot be read")


def test_the_first_sync_with_a_peer_is_shown(node, monkeypatch):
    monkeypatch.setattr("recon_node.cli.peers.FIRST_SYNC", 60.0)
    network = httpx.get(f"{node.api_url}/ceramic/config/network").json()["name"]
    with Testnet(1, network=network) as other:
        [address, *_] = other.nodes[0].addresses
        result = run("peers", "add", address, node=node)
        monkeypatch.setattr("recon_node.cli.peers.FIRST_SYNC", 0.0)
        nowhere = {"RECON_NODE_URL": "http://127.0.0.1:1"}
        json_of("peers", "add", address, "--url", node.api_url, **nowhere)
        again = json_of("peers", "--url", node.api_url, "add", address, **nowhere)
    assert result.stdout.splitlines()[1] == "first sync: agreed"
    assert (again["address"], again["peer"]) == (address, other.nodes[0].peer_id)


def test_an_interrupt_while_it_waits_for_input(node: TestnetNode, sample: Events) -> None:
    command = [sys.executable, "-m", "recon_node", "events", "add", "-", "--url", node.api_url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with forking.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        line = json.dumps(sample[0]).encode() + b"\n"
        process.stdin.write(line * (300_000 // len(line)))  # no pipe holds that: it is reading
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
        assert process.wait(60) == 130
    assert printed.decode().strip() == "Aborted!"


@pytest.mark.parametrize(
    "module", ["click", "recon_node.base.terminal", "recon_node.cli.peers", "trio"]
)
def test_an_interrupt_while_a_command_imports_what_it_needs(module: str) -> None:
    """Each printed where in which import it was."""
    command = [sys.executable, "-c", interrupted_at(module, "recon_node"), "status"]
    done = finished(command, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("", "Aborted!\n", 130)


def test_a_url_may_do_without_http(node: TestnetNode) -> None:
    shown = json_of("status", "--url", node.api_url.removeprefix("http://"))
    assert shown["events"] == head(node)


@pytest.mark.parametrize(
    ("command", "closed", "code"),
    [
        ("recon_node events add -", "<&-", 0),
        ("recon_node status", "<&- >&-", 1),
        ("recon_node status", "<&- 2>&-", 1),
        ("spark_sink query -", "<&- >&-", 2),
    ],
)
def test_streams_that_are_closed_are_nowhere(command: str, closed: str, code: int) -> None:
    """The next file would get the number of standard output, and errors were printed there."""
    done = finished(
        ["bash", "-c", f'exec "$@" {closed}', "-", sys.executable, "-m", *command.split()],
        env={**os.environ, "RECON_NODE_URL": "http://127.0.0.1:1"},
    )
    assert done.returncode == code
    assert "Error" not in done.stdout
    assert ("Error" in done.stderr) == (code > 0 and "2>" not in closed)
    assert "Traceback" not in done.stderr


def test_what_is_not_text_is_said_of_the_argument(node: TestnetNode) -> None:
    assert "is not text" in error_of("stream", "show", "\udcff", node=node)
    assert "is not text" in error_of("stream", "list", "--controller", "\udcff", node=node)
    assert "is not text" in error_of("peers", "remove", "\udcff", node=node)
    assert "no node answers" in error_of("status", "--url", f"http://{'a' * 64}.test")


def test_a_file_that_fails_is_named(node: TestnetNode) -> None:
    error = error_of("events", "add", "/proc/self/mem", node=node)
    assert error == "Error: /proc/self/mem cannot be read: Input/output error\n"


def test_standard_output_that_cannot_be_written(node: TestnetNode) -> None:
    status = [sys.executable, "-m", "recon_node", "status"]
    env = {**os.environ, "RECON_NODE_URL": node.api_url}

    def end_of(stdout: int) -> tuple[int, str]:
        done = forking.run(status, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stderr

    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe, Path("/dev/full").open("wb") as full:
        assert end_of(pipe.fileno()) == (1, "")  # whoever read it has seen enough
        code, error = end_of(full.fileno())
    assert (code, error.count("\n")) == (1, 1)
    assert error.startswith("Error: standard output cannot be written: ")
    closed = ["bash", "-c", 'exec "$@" >&-', "-", *status]
    done = finished(closed, env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_cannot_be_written_whole_is_not_there(node, sample, tmp_path):
    """A file that ends in the middle would be taken for a key, or for what was there before."""
    run("events", "add", "-", node=node, data=lines_of(sample[:3]))
    cid = sample[0]["cid"]
    for name in ("old.car", "old.svg"):
        (tmp_path / name).write_text("as it was")
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    program = f"{limited}; from recon_node.cli import main; main()"
    options = {"env": {**os.environ, "RECON_NODE_URL": node.api_url}, "cwd": tmp_path}
    for words in (
        ("key", "new", "my.key"),
        ("anchor", "key", "coins.key"),
        ("events", "get", cid, "--car", "old.car"),
        ("events", "get", cid, "--car", "new.car"),
        ("stream", "show", cid, "--svg", "old.svg"),
    ):
        command = [sys.executable, "-c", program, *words]
        done = forking.run(command, stderr=subprocess.PIPE, text=True, **options)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert done.stderr.startswith("Error: ")
    assert {path.name for path in tmp_path.iterdir()} == {"old.car", "old.svg"}
    assert {path.read_text() for path in tmp_path.iterdir()} == {"as it was"}
    (tmp_path / "link.car").symlink_to("old.car")
    run("events", "get", cid, "--car", tmp_path / "link.car", node=node)
    assert (tmp_path / "link.car").is_symlink()
    assert (tmp_path / "old.car").read_bytes() != b"as it was"


# --- what takes the whole sample: last, since the others count its events ---


def test_streams_and_models_are_listed(node: TestnetNode, sample: Events) -> None:
    run("events", "add", "-", node=node, data=lines_of(sample))
    everything = json_of("stream", "list", "--limit", "0", node=node)
    inits = {event["cid"] for event in sample if "prev" not in event}
    assert inits <= {stream["init"] for stream in everything}
    first_page = run("stream", "list", "--limit", "2", node=node)
    listed = [line.split()[0] for line in first_page.stdout.splitlines()[1:]]
    assert listed == [stream["id"] for stream in everything[:2]]
    assert first_page.stderr == f"{len(everything) - 2:,} more: --limit 0 lists all\n"
    first, *_ = json_of("model", "list", node=node)
    [own] = [
        line
        for line in run("stream", "list", "--limit", "0", node=node).stdout.splitlines()
        if line.startswith(first["id"])
    ]
    assert f" model {first['name']} " in own  # unlike those of its documents
    documents = json_of("stream", "list", "--model", first["id"], node=node)
    assert len(documents) == min(20, first["streams"])
    assert "model: " in error_of("stream", "list", "--model", "nonsense", node=node)


def test_an_event_by_the_first_characters_of_its_cid(node: TestnetNode, sample: Events) -> None:
    cid = sample[0]["cid"]
    run("events", "add", "-", node=node, data=lines_of(sample))
    get = ("events", "get")
    assert run(*get, cid[:40], node=node).stdout == run(*get, cid, node=node).stdout
    assert "more than one event begins with" in error_of(*get, cid[:10], node=node)
    error_of(*get, "bagcqceraaaaaaaaaaaaaaaaaaaa", node=node)


def test_the_feed_is_printed_and_continued(node: TestnetNode, sample: Events) -> None:
    run("events", "add", "-", node=node, data=lines_of(sample))
    last = head(node)
    lines = run("feed", "tail", "-n", "3", node=node).stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == [last - 2, last - 1, last]
    today = datetime.now(UTC).date()
    assert all(today - date.fromisoformat(line.split()[1]) <= timedelta(1) for line in lines)
    every = run("feed", "tail", "--from", last - 30, "--json", node=node)
    events = [json.loads(line) for line in every.stdout.splitlines()]
    assert [event["position"] for event in events] == list(range(last - 29, last + 1))
    again = run("events", "add", "-", node=node, data=every.stdout)  # what it prints is sent on
    assert "30 events: 0 new, 30 known" in again.stdout
    assert run("feed", "tail", "--from", last, node=node).stdout == ""
    beyond = error_of("feed", "tail", "--from", last + 1, node=node)
    assert "beyond the feed's end" in beyond
