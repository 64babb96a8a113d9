"""The directory of the tables: what is no such directory, and tables of the other format."""

from pathlib import Path

import pytest
from spark_helpers import feed_rows

from recon_node.ceramic import Event
from spark_sink.errors import TablesError
from spark_sink.schema import TABLES
from spark_sink.tables.directory import Format, Tables, lock

EPOCH = "5f0c8a10-aaaa-bbbb-cccc-000000000009"


@pytest.mark.parametrize(
    ("made", "wanted", "told"),
    [
        ("parquet", "delta", "raw_events is a Parquet table: use --format parquet"),
        ("delta", "parquet", "raw_events is a Delta table: use --format delta"),
    ],
)
def test_tables_of_the_other_format_are_left_alone(
    tmp_path: Path, sample: list[Event], made: Format, wanted: Format, told: str
) -> None:
    Tables(tmp_path, EPOCH, table_format=made).append(feed_rows(sample[:30]))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TablesError, match=told):
        Tables(tmp_path, EPOCH, table_format=wanted)
    assert sorted(tmp_path.rglob("*")) == before
    assert Tables(tmp_path, EPOCH, table_format=made).raw_position == 30


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_a_table_is_no_directory_of_tables(tmp_path: Path, table_format: Format) -> None:
    """What was made in it, vacuum would take for files of the table."""
    Tables(tmp_path, EPOCH, table_format=table_format)
    for name in TABLES:
        path = tmp_path / name
        with pytest.raises(TablesError, match=f"is a table itself.* in {tmp_path}"), lock(path):
            pass
        assert not list(path.glob(".*lock"))
