"""The SDK's Flight SQL client, as it is published on npm, against `spark-sink serve`."""

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from support import npm_packages, sdk_sample

from spark_sink.run.pipeline import Sink
from spark_sink.schema import FEED
from spark_sink.serve.database import NAMES
from spark_sink.serve.flight_server import FlightMetrics, FlightServer
from spark_sink.serve.query_turns import QueryLimits
from spark_sink.tables.tables import Tables

HERE = Path(__file__).parent
EVENTS = 40
LIMIT = 150.0
"""Seconds for the client."""


def sample_rows() -> pa.Table:
    """The first events of the sample, as a node's feed has them."""
    rows = [
        {
            "position": position,
            "event_id": b"\xce\x01\x05" + event.cid,
            "event_cid": bytes(event.cid),
            "stream_cid": bytes(event.init),
            "event_type": event.kind.value,
            "car": event.car,
        }
        for position, event in enumerate(sdk_sample.events()[:EVENTS], 1)
    ]
    return pa.Table.from_pylist(rows, schema=FEED)


@pytest.mark.long
def test_the_sdk_queries_the_tables_and_follows_a_feed(tmp_path: Path) -> None:
    npm_packages.install(HERE, dev=True)
    rows = sample_rows()
    sink = Sink(Tables(tmp_path, "5f0c8a10-aaaa-bbbb-cccc-000000000019"))
    sink.tables.append(rows.slice(0, EVENTS - 5))
    sink.catch_up()
    limits = QueryLimits()
    server = FlightServer(tmp_path, "127.0.0.1:0", limits, FlightMetrics(limits))
    port = server.url.rpartition(":")[2]
    command = ["node", "flight.mjs", port, str(EVENTS)]
    with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert any("following" in line for line in process.stdout)
            sink.tables.append(rows.slice(EVENTS - 5))  # while the client waits for more
            sink.catch_up()
            output, _ = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
            server.stop()
    result = json.loads(output.splitlines()[-1])
    assert result["catalogs"] == ["ceramic"]
    assert result["schemas"] == ["v0", "tables", "views"]
    assert result["tables"] == sum(map(len, NAMES.values()))
    assert result["type"] in (2, 3)
    assert result["queried"] == result["prepared"] > 0
    assert result["positions"] == list(range(1, EVENTS + 1))
