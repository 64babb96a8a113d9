"""What the API answers about damaged events, and about a stream that the node has forgotten."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from api_samples import api_of, read
from click.testing import CliRunner

from recon_node.ceramic import Network, parse_event
from recon_node.cli import main
from recon_node.client.feed_entries import _entry
from recon_node.ipld import multibase
from recon_node.store import open_store

Events = list[dict[str, str]]
DAMAGED = 20
"""The feed position of the damaged event."""


def damage(directory: Path) -> None:
    with closing(sqlite3.connect(directory / "events.sqlite3")) as connection:
        of_event = "id = (SELECT id FROM events WHERE position = ?)"
        [(car,)] = connection.execute(f"SELECT car FROM cars WHERE {of_event}", (DAMAGED,))
        spoilt = bytearray(car)
        spoilt[-1] ^= 1
        connection.execute(f"UPDATE cars SET car = ? WHERE {of_event}", (bytes(spoilt), DAMAGED))
        connection.commit()


async def test_damage_is_reported_and_never_served(api, store, filled, tmp_path):
    cid, car = filled[DAMAGED - 1]["cid"], filled[DAMAGED - 1]["car"]
    init = parse_event(multibase.decode(car)).init
    damage(tmp_path / "node")
    feed = "/ceramic/feed/events"
    page = (await api.get(feed, params={"includeData": "full"})).json()
    assert (len(page["events"]), page["resumeToken"]) == (DAMAGED - 1, str(DAMAGED - 1))
    for path, params in (
        (f"/ceramic/events/{cid}", {}),
        (feed, {"resumeAt": DAMAGED - 1}),
        (feed, {"resumeAt": DAMAGED - 1, "includeData": "full"}),
        ("/ceramic/feed/arrow", {}),
        ("/ceramic/feed/arrow", {"after": DAMAGED - 1, "upto": DAMAGED}),
        (f"/ceramic/streams/{init}/events", {}),
    ):
        answer = await api.get(path, params=params)
        assert answer.status_code == 503, path
        assert int(answer.headers["retry-after"]) > 0
        assert f"the event {cid} " in answer.json()["message"]
        assert "is damaged in this node's log" in answer.json()["message"]
    whole = await api.get("/ceramic/feed/arrow", params={"upto": DAMAGED - 1})
    assert pa.ipc.open_stream(whole.content).read_all().num_rows == DAMAGED - 1
    assert (await api.get("/ceramic/recon")).json()["damaged"] == 1
    metrics = (await api.get("/metrics")).text
    assert "recon_damaged_events 1.0" in metrics

    assert (await api.post("/ceramic/events", json={"data": car})).status_code == 204
    assert (await api.get(f"/ceramic/events/{cid}")).json() == {"id": cid, "data": car}
    whole = await api.get("/ceramic/feed/arrow")
    assert pa.ipc.open_stream(whole.content).read_all().num_rows == len(filled)
    assert (await api.get("/ceramic/recon")).json()["damaged"] == 0
    assert "recon_mended_events_total 1.0" in (await api.get("/metrics")).text


async def test_a_long_answer_breaks_off_where_it_meets_damage(api, filled, tmp_path):
    """A filter looks through less; what it does not touch is answered."""
    damage(tmp_path / "node")
    cid = filled[DAMAGED - 1]["cid"]
    answer = await api.get(f"/ceramic/events/{cid}")
    assert answer.status_code == 503
    answer = await api.get("/ceramic/feed/arrow", params={"sortKey": "nothing"})
    assert answer.status_code == 200


NETWORK = Network.local(7)


async def test_a_forgotten_stream_is_gone(tmp_path: Path, sample: list[dict[str, str]]) -> None:
    directory = tmp_path / "node"
    events = [parse_event(multibase.decode(event["car"])) for event in sample[:60]]
    async with open_store(directory, NETWORK) as store:
        await store.admit_local([event.car for event in events])
    init = events[-1].init
    theirs = {str(event.cid) for event in events if event.init == init}
    stream = next(str(event.stream_id()) for event in events if event.cid == init)
    command = ["store", "forget", stream, "--yes", "--json", "--data-dir", str(directory)]
    done = CliRunner().invoke(main, command)
    assert json.loads(done.stdout) == {"streams": 1, "events": len(theirs), "still_there": []}
    command[2] = "no-stream"
    assert CliRunner().invoke(main, command).exit_code == 2

    async with open_store(directory, NETWORK) as store, api_of(store) as api:
        for path in (
            f"streams/{stream}",
            f"streams/{stream}/merge",
            f"streams/{stream}/events",
            f"events/{init}",
        ):
            message = (await read(api, path, 410))["message"]
            assert "is of a stream that this node has forgotten" in message
        page = await read(api, "feed/events", includeData="full", details="true")
        page = page["events"]
        assert {event["id"] for event in page if "data" not in event} == theirs
        assert {str(entry.cid) for entry in map(_entry, page) if entry.event is None} == theirs
        whole = await api.get("/ceramic/feed/arrow")
        rows = pa.ipc.open_stream(whole.content).read_all()
        assert [bool(car) for car in rows["car"].to_pylist()] == [
            event["id"] not in theirs for event in page
        ]
        assert (await read(api, "recon"))["damaged"] == 0
        other = next(str(e.stream_id()) for e in events if e.cid == e.init != init)
        await read(api, f"streams/{other}")
