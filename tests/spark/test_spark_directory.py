"""The directory of the tables: directories that are not one, and tables of the other format."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from spark_helpers import feed_rows

from recon_node.ceramic import Event
from spark_sink.errors import SinkError, TablesError
from spark_sink.run.java import Java
from spark_sink.run.session import start_session
from spark_sink.schema import TABLES
from spark_sink.tables.directory import Format, Tables, lock
from spark_sink.tables.status import no_tables

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


def test_a_directory_that_may_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Path, *args: object, **named: object) -> bool:
        raise PermissionError(13, "Permission denied")

    for name in ("exists", "is_dir"):
        monkeypatch.setattr(Path, name, denied)
    with (
        pytest.raises(TablesError, match=r"cannot write to .*: Permission denied"),
        lock(tmp_path, make=False),
    ):
        pass
    assert str(no_tables(tmp_path)).endswith("Permission denied")


def test_older_columns_in_any_file_are_noticed(
    tmp_path: Path, sample: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rebuild that was killed between two files leaves raw_events."""
    monkeypatch.setattr("spark_sink.tables.parquet._POSITIONS_PER_FILE", 10)
    Tables(tmp_path, EPOCH, (), table_format="parquet").append(feed_rows(sample[:30]))
    *_, last = sorted((tmp_path / "raw_events").glob("part-*.parquet"))
    pq.write_table(pq.read_table(last).drop_columns(["time"]), last)
    with pytest.raises(TablesError, match="has other columns than this version"):
        Tables(tmp_path, EPOCH, (), table_format="parquet")


def test_a_comma_is_nothing_for_spark(tmp_path: Path) -> None:
    """It would write into two directories, one of them below the current one."""
    with pytest.raises(SinkError, match="has a comma in its name"):
        start_session(Java(Path("java"), 17), tmp_path / "a,b" / "_scratch")
    assert not list(tmp_path.iterdir())
