"""What the API answers about a stream that the node has forgotten."""

import json
from pathlib import Path

import pyarrow as pa
from api_samples import api_of, read
from click.testing import CliRunner

from recon_node.ceramic import Network, parse_event
from recon_node.cli import main
from recon_node.client.feed_entries import _entry
from recon_node.ipld import multibase
from recon_node.store import open_store

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
