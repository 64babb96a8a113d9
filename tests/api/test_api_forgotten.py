"""What the API answers about a stream that the node has forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pyarrow as pa
from click.testing import CliRunner
from openapi_check import check_answer

from recon_node.api import Services, create_app
from recon_node.ceramic import Network, parse_event
from recon_node.cli import main
from recon_node.client.feed_entries import _entry
from recon_node.ipld import multibase
from recon_node.store import open_store

NETWORK = Network.local(7)


async def test_a_forgotten_stream_is_gone(tmp_path: Path, sample: list[dict[str, str]]) -> None:
    directory = tmp_path / "node"
    events = [parse_event(multibase.decode(each["car"])) for each in sample[:60]]
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

    async with open_store(directory, NETWORK) as store:
        transport = httpx.ASGITransport(create_app(Services(store=store)))
        hooks = {"response": [check_answer]}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://node", event_hooks=hooks
        ) as api:
            for path in (
                f"/ceramic/streams/{stream}",
                f"/ceramic/streams/{stream}/merge",
                f"/ceramic/streams/{stream}/events",
                f"/ceramic/events/{init}",
            ):
                answer = await api.get(path)
                assert answer.status_code == 410, path
                assert "is of a stream that this node has forgotten" in answer.json()["message"]
            query = {"includeData": "full", "details": "true"}
            page = (await api.get("/ceramic/feed/events", params=query)).json()["events"]
            assert {each["id"] for each in page if "data" not in each} == theirs
            assert {str(entry.cid) for entry in map(_entry, page) if entry.event is None} == theirs
            whole = await api.get("/ceramic/feed/arrow")
            rows = pa.ipc.open_stream(whole.content).read_all()
            assert [bool(car) for car in rows["car"].to_pylist()] == [
                each["id"] not in theirs for each in page
            ]
            assert (await api.get("/ceramic/recon")).json()["damaged"] == 0
            other = next(str(e.stream_id()) for e in events if e.cid == e.init != init)
            assert (await api.get(f"/ceramic/streams/{other}")).status_code == 200
