"""The commands that draw: streams of a real node, tangles and feeds of a file."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from cli_run import error_of, json_of, run
from nacl.signing import SigningKey
from support import vectors
from support.tangle_samples import AUTHOR, feed_message
from support.time_events import time_event

from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event
from recon_node.dag.dag_events import replica_event
from recon_node.dag.protocol.dag_operations import Append
from recon_node.dag.protocol.replica import Replica
from recon_node.ipld import CID, DAG_CBOR, RAW, multibase
from recon_node.tangles.classic_feed import message_id
from recon_node.testnet import TestnetNode

KEY = SigningKey(bytes(32))
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"of pictures"))
INIT = init_event(KEY, MODEL, {"n": 0}, unique=b"picture")


def change(n: int, *prevs: Event) -> Event:
    patch = [{"op": "replace", "path": "/n", "value": n}]
    return data_event(KEY, INIT, [prev.cid for prev in prevs], patch)


@pytest.fixture(scope="module")
def diverged(node: TestnetNode) -> dict[str, Event]:
    """Ten events in a row; two branches then, and an anchor that nobody looks up."""
    events = {"init": INIT}
    last = INIT
    for number in range(1, 11):
        last = events[str(number)] = change(number, last)
    events["left"], events["right"] = change(11, last), change(12, last)
    events["anchor"] = time_event(INIT, events["right"].cid)
    lines = "\n".join(multibase.encode(event.car) for event in events.values())
    run("events", "add", "-", node=node, data=lines)
    return events


def lowest_cid(events: dict[str, Event]) -> list[str]:
    return sorted((str(events[name].cid) for name in ("left", "right")), key=CID.parse)


def test_a_diverged_stream(node: TestnetNode, diverged: dict[str, Event]) -> None:
    winner, loser = lowest_cid(diverged)
    shown = run("stream", "show", INIT.stream_id(), node=node).stdout
    assert shown == run("stream", "show", f"ceramic://{INIT.cid}", node=node).stdout
    title, summary, _, *lines = shown.splitlines()
    assert title == f"Stream {INIT.stream_id()}"
    assert summary == "14 events, 1 of them not delivered yet, diverged, 1 pruned"
    graph = lines[: lines.index("")]
    [tip] = [line for line in graph if "[TIP]" in line]
    assert f"…{winner[-8:]}  data  11  not anchored" in tip
    [pruned] = [line for line in graph if "[pruned]" in line]
    assert f"…{loser[-8:]}" in pruned
    assert "[candidate]" in pruned
    [pending] = [line for line in graph if "[pending]" in line]
    assert "anchor on eip155:11155111 not looked up" in pending
    assert [line.split(" ", 2)[0] for line in graph[-2:]] == ["┊", "◆"]
    assert "9 events" in graph[-2]
    notes = "\n".join(lines[lines.index("") :])
    assert f"…{winner[-8:]} (not anchored) wins over …{loser[-8:]} (not anchored)" in notes
    assert notes.endswith(f"would merge it (`recon-node stream merge`):\n{winner}\n{loser}")


def test_how_much_is_drawn(node: TestnetNode, diverged: dict[str, Event]) -> None:
    def graph(*options: str) -> list[str]:
        return run("stream", "show", INIT.cid, *options, node=node).stdout.splitlines()[3:]

    assert sum("  data  " in line for line in graph("--all", "--no-why")) == 12
    assert graph("--limit", "1", "--no-why")[-1] == "5 more below: --limit 0 shows all"
    assert any(str(INIT.cid) in line for line in graph("--full"))
    assert "\n".join(graph("--ascii")).isascii()
    assert not any("wins over" in line for line in graph("--no-why"))


def test_a_stream_as_json(node: TestnetNode, diverged: dict[str, Event]) -> None:
    printed = json_of("stream", "show", INIT.cid, node=node)
    winner, loser = lowest_cid(diverged)
    assert (printed["id"], printed["tip"]) == (str(INIT.stream_id()), winner)
    assert (printed["pruned"], printed["merge"]) == ([loser], [winner, loser])
    assert printed["decisions"] == [{"rule": "lowest CID", "winner": winner, "rivals": [loser]}]
    assert {event["cid"] for event in printed["events"]} == {str(e.cid) for e in diverged.values()}


def test_a_stream_as_svg(node: TestnetNode, diverged: dict[str, Event], tmp_path: Path) -> None:
    file = tmp_path / "stream.svg"
    show = ("stream", "show", INIT.cid, "--all", "--svg")
    assert run(*show, file, node=node).stdout == f"wrote {file}: 14 rows\n"
    assert run(*show, "-", node=node).stdout == file.read_text()
    title = "{http://www.w3.org/2000/svg}title"
    titles = [element.text for element in ElementTree.parse(file).iter(title)]
    assert set(titles[1:]) == {str(event.cid) for event in diverged.values()}
    error_of(*show, tmp_path, node=node, code=2)
    assert "No such file" in error_of(*show, tmp_path / "no/f", node=node)
    assert json_of(*show, file, node=node)["tip"]
    error_of(*show, "-", "--json", node=node, code=2)


def test_why_an_event_is_not_delivered(node: TestnetNode, diverged: dict[str, Event]) -> None:
    shown = run("status", "--pending", node=node).stdout
    anchor = str(diverged["anchor"].cid)
    assert "pending  1  (for the lookup of an anchor)" in shown
    assert "eip155:11155111: 1 anchor that nobody looks up" in shown
    [line] = [line for line in shown.splitlines() if anchor in line]
    assert "transaction 0x" in line
    printed = json_of("status", "--pending", node=node)
    assert [event["cid"] for event in printed["events"]["pending"]] == [anchor]


def test_no_such_stream(node: TestnetNode) -> None:
    for stream, words in (
        ("nonsense", "Error: 'nonsense' is not a StreamID: 'nonsense' is not valid"),
        ("", "neither an id nor a name"),
        ("a/b", "'a/b' is not a StreamID"),
        (MODEL, "Stream not found"),
    ):
        assert words in error_of("stream", "show", stream, node=node)


# --- the logs of DAGs ---


def test_the_log_of_a_dag(node: TestnetNode, tmp_path: Path) -> None:
    """A push, two appends to it that know nothing of each other, and one to what is not here."""
    (tmp_path / "file").write_bytes(b"some text")
    pushed = run("dag", "push", tmp_path / "file", node=node, RECON_NODE_DATA_DIR=str(tmp_path))
    root = pushed.stdout.split()[0]
    assert re.search(r"kjz\S+ +a DAG +did:", run("stream", "list", node=node).stdout)
    assert "Error: 'x/y' is not a CID: 'x/y' is not valid" in error_of(
        "dag", "show", "x/y", node=node
    )
    [first] = httpx.get(f"{node.api_url}/ceramic/dag/{root}/replicas").json()["replicas"]
    forks = [append(CID.parse(first["cid"]), number) for number in (1, 2)]
    lost = append(CID.of(DAG_CBOR, b"elsewhere"), 3)
    cars = [
        multibase.encode(replica_event(KEY, CID.parse(root), fork.block).car)
        for fork in (*forks, lost)
    ]
    run("events", "add", "-", node=node, data="\n".join(cars))
    lines = run("dag", "show", root, node=node).stdout.splitlines()
    assert lines[:2] == [f"DAG {root}", "4 operations, 3 heads, 1 missing"]
    graph = "\n".join(lines[3:])
    assert (graph.count("[head]"), graph.count("[not here]"), graph.count("├─╯")) == (3, 1, 1)
    assert graph.splitlines()[-1].startswith(f"◆    …{first['cid'][-12:]}  append  1 shard")
    facts = json_of("dag", "show", root, node=node)
    assert set(facts["heads"]) == {str(fork.cid) for fork in (*forks, lost)}
    [oldest] = [replica for replica in facts["replicas"] if not replica["prev"]]
    assert (oldest["cid"], oldest["type"], len(oldest["shards"])) == (first["cid"], "append", 1)
    nothing = CID.of(DAG_CBOR, b"nothing")
    assert "no replica of the DAG" in error_of("dag", "show", nothing, node=node)


def append(prior: CID, number: int) -> Replica:
    return Replica(prior, Append.of([CID.of(RAW, bytes([number]))]))


# --- tangles and feeds ---


def line(key: str, root: str | None, previous: list[str] | None, time: float = 0) -> str:
    tangles = {"post": {"root": root, "previous": previous}}
    value = {"author": "@someone-with-a-key", "timestamp": time, "content": {"tangles": tangles}}
    return json.dumps({"key": key, "value": value})


POST = ["--root", "A", "--name", "post"]
TANGLE = [
    line("A", None, None, 1_700_000_000_000),
    line("B", "A", ["A"]),
    line("X", "A", ["B"]),
    line("Y", "A", ["B"]),
    line("Z", "A", ["ghost"]),
    line("Q", "other", None),
    json.dumps({"key": "P", "value": {"content": "encrypted.box"}}),
    json.dumps({"key": "O", "value": {"content": {"tangles": {"post": {"previous": "A"}}}}}),
]


def test_a_tangle() -> None:
    args = ("tangle", "show", "-", *POST)
    lines = run(*args, data="\n".join([*TANGLE, "", TANGLE[0]])).stdout.splitlines()
    assert lines[:2] == ["Tangle 'post' of A", "4 messages, 2 tips, 1 left out"]
    graph = "\n".join(line.rstrip() for line in lines[3:])
    assert "Z  @someone-w…" in graph
    assert "[left out: all previous messages must be here]" in graph
    assert "A  @someone-w…  2023-11-14 22:13" in graph
    assert graph.count("[tip]") == 2
    assert graph.endswith("The next message names as previous:\nX\nY")
    facts = json_of(*args, data="\n".join(TANGLE))
    assert facts["tips"] == ["X", "Y"]
    assert facts["messages"][1] == {"id": "B", "previous": ["A"]}
    assert [(message["id"], message["rule"]) for message in facts["left_out"]] == [
        ("Z", "missing_previous")
    ]


def test_a_feed_with_numbers_beyond_doubles(tmp_path: Path) -> None:
    facts = vectors.load("ssb")
    texts = {message["what"]: message for message in facts["messages"]}
    file = tmp_path / "messages.jsonl"
    args = ("tangle", "show", file, "--feed", facts["author"])
    for what in ("a number beyond doubles", "half a surrogate pair"):
        file.write_text(texts[what]["text"] + "\n")
        assert json_of(*args)["tip"] == texts[what]["id"]
    infinite = texts["a number beyond doubles"]
    file.write_text(infinite["text"].replace("1e999", "9" * 5_000))
    assert json_of(*args)["tip"] == infinite["id"]
    signed = texts["under an HMAC"]
    file.write_text(signed["text"] + "\n")
    assert json_of(*args)["left_out"][0]["rule"] == "signature"
    assert json_of(*args, "--hmac", signed["hmac"])["tip"] == signed["id"]
    file.write_text('{"author": "' + facts["author"] + '", "x": NaN}\n')
    assert json_of(*args)["left_out"][0]["rule"] == "fields"
    assert "base64" in error_of(*args, "--hmac", "?").lower()


def test_a_hostile_tangle_moves_no_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "\x1b[2J\u202e<script>[bold]"
    file = tmp_path / "messages.jsonl"
    file.write_text("\n".join([line(evil, None, None), line("<b>\x00", evil, [evil])]))
    args = ("tangle", "show", file, "--root", evil, "--name", "post")
    shown = run(*args).stdout
    assert r"\x1b[2J\u202e<script" in shown
    assert all(line.isprintable() for line in shown.splitlines())
    run(*args, "--svg", tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    assert "<script" not in text
    assert ElementTree.fromstring(text) is not None
    monkeypatch.chdir(tmp_path)
    assert run(*args, "--svg", "-").stdout == text
    assert not (tmp_path / "-").exists()


def test_a_feed() -> None:
    feed: list[dict[str, Any]] = []
    for sequence in range(1, 8):
        feed.append(
            feed_message(sequence, message_id(feed[-1]) if feed else None, {"type": "post"})
        )
    wrong = {**feed_message(8, message_id(feed[-1]), {"type": "post"}), "timestamp": 1}
    data = "\n".join(map(json.dumps, [*feed, wrong]))
    show = ("tangle", "show", "-", "--feed", AUTHOR)
    lines = run(*show, data=data).stdout.splitlines()
    assert lines[:2] == [f"Feed of {AUTHOR}", "7 messages in the feed, 1 left out"]
    assert "[left out: a message must be signed by the author of the feed]" in lines[3]
    assert lines[4].endswith("sequence 7  [tip]")
    assert lines[5:] == ["┊  5 messages", f"◆  {message_id(feed[0])[:12]}…  sequence 1"]
    facts = json_of(*show, data=data)
    assert (facts["tip"], len(facts["messages"])) == (message_id(feed[-1]), 7)
    assert [message["rule"] for message in facts["left_out"]] == ["signature"]


def test_what_is_not_a_tangle() -> None:
    twice = f"{line('A', None, None)}\n{line('A', None, None, 7)}"
    for data, args, words, code in (
        ("", ["--root", "A"], "--root and --name", 2),
        ("", [*POST, "--feed", "@"], "--root and --name", 2),
        ("", [*POST, "--hmac", "?"], "--hmac is for feeds", 2),
        ("", [], "--root and --name", 2),
        ("", ["--feed", "@x"], "is not an SSB identity", 1),
        ("", POST, "the root A of the tangle 'post' is missing", 1),
        ("{", POST, "line 1 is not JSON", 1),
        ("\n[]", POST, "line 2 is not a message", 1),
        ('{"key": 1, "value": {}}', POST, "line 1: the 'key'", 1),
        (twice, POST, "line 2: another message with the key 'A'", 1),
        (line("A", None, ["A"]), POST, "names previous messages", 1),
        ("x" * (1024 * 1024 + 2), POST, "line 1 is longer than", 1),
    ):
        error = error_of("tangle", "show", "-", *args, data=data, code=code)
        assert words in " ".join(error.split())


def test_a_file_that_is_a_link_to_itself(tmp_path: Path) -> None:
    file, drawn = tmp_path / "messages.jsonl", tmp_path / "drawn.svg"
    file.write_text("\n".join(TANGLE))
    drawn.symlink_to(drawn)
    run("tangle", "show", file, *POST, "--svg", drawn)
    assert drawn.read_text().startswith("<svg")


def test_no_color_leaves_no_escape_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text("\n".join(TANGLE))
    args = ("tangle", "show", file, *POST)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1m" in run(*args).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    shown = run(*args).stdout
    assert "Tangle 'post' of A" in shown
    assert "\x1b" not in shown
