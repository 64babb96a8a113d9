"""The tables in an engine of others: DuckDB with its extension for Delta.

Its reader is not ours, but the one of the Delta project (delta-kernel-rs), as in other engines.
"""

import json
from pathlib import Path

import pytest
from spark_helpers import feed_rows, filled, told
from spark_oracle import table_rows
from spark_samples import change, document, replace
from support.duckdb_delta import delta_extension, duckdb_python
from support.waiting import finished
from test_spark_views import OF, history

from spark_sink.schema import TABLES

pytestmark = pytest.mark.long
PROGRAM = """
import json, sys
import duckdb
duck = duckdb.connect(config={"allow_unsigned_extensions": True})
duck.execute(f"LOAD '{sys.argv[1]}'")
for name in sys.argv[3:]:
    sql = f"SELECT * FROM delta_scan('{sys.argv[2]}/{name}')"
    rows = duck.execute(f"SELECT hex(stream_cid), columns('.*(position|order)') FROM ({sql})")
    print(json.dumps([name, sorted(rows.fetchall())]))
"""


def test_duckdb_reads_the_tables_and_views(tmp_path: Path) -> None:
    """After merges, rows that changed, `optimize` and `forget`."""
    events = history()
    first = events[0]
    gone = document(OF, {"title": "gone"}, b"gone")
    changed = change(events[5], replace("/title", "again"))
    sink = filled(tmp_path, feed_rows(events), *range(1, len(events) + 1))
    place = ("--tables", tmp_path)
    told("view", "create", OF, "--as", "posts", *place)
    told("optimize", *place)
    told("forget", "--yes", events[4].stream_id(), *place)
    sink = filled(tmp_path, feed_rows([*events, gone, changed]))
    sink.fill_new_views()
    names = [*TABLES, "views/posts"]
    command = [duckdb_python(), "-c", PROGRAM, delta_extension(), str(tmp_path), *names]
    done = finished(command)
    assert done.returncode == 0, done.stderr
    readings = dict(map(json.loads, done.stdout.splitlines()))
    assert set(readings) == set(names)
    for name, spec in TABLES.items():
        rows = table_rows(tmp_path, name)
        wanted = sorted([row["stream_cid"].hex().upper(), row[spec.order]] for row in rows)
        assert [row[:2] for row in readings[name]] == wanted, name
    assert len(readings["views/posts"]) == 4
    assert bytes(first.cid).hex().upper() in {row[0] for row in readings["views/posts"]}
