"""The directory of the tables: directories that are not one, and tables of an older version."""

import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from spark_helpers import EPOCH, feed_rows, filled, told

from recon_node.ceramic import Event
from spark_sink.errors import SinkError, TablesError
from spark_sink.query.question import run_query
from spark_sink.run.spark_session import Java, start_session
from spark_sink.schema import TABLES
from spark_sink.serve.database import Database
from spark_sink.tables.catalog import no_tables, open_delta
from spark_sink.tables.delta_log import query
from spark_sink.tables.tables import Tables, check_checkpoint, lock


def test_plain_parquet_tables_of_an_older_version_are_left_alone(tmp_path: Path) -> None:
    """The error says how to get Delta tables of the same events."""
    (tmp_path / "raw_events").mkdir()
    (tmp_path / "raw_events" / "_position.json").write_text("{}")
    with (
        pytest.raises(TablesError, match="run it with --tables and a new directory"),
        lock(tmp_path),
    ):
        pass
    for command in (
        ["status"],
        ["query", "FROM raw_events"],
        ["optimize"],
        ["rebuild", "raw_events"],
    ):
        assert "plain Parquet files of an older version" in refused(*command, "--tables", tmp_path)
    assert len(list(tmp_path.rglob("*"))) == 2


def test_a_table_is_not_a_directory_of_tables(tmp_path: Path) -> None:
    """What was made in it, vacuum would take for files of the table."""
    Tables(tmp_path, EPOCH)
    for name in TABLES:
        path = tmp_path / name
        with pytest.raises(TablesError, match=f"is a table itself.* in {tmp_path}"), lock(path):
            pass
        assert not list(path.glob(".*lock"))


def test_a_checkpoint_is_not_in_a_table(tmp_path: Path) -> None:
    """Vacuum would delete it, and what clears the staging would, too."""
    tables = tmp_path / "tables"
    for name in ("raw_events", "_staging"):  # neither is there yet
        for place in (tables / name, tables / name / "a/b", tables / "_checkpoint/.." / name):
            with pytest.raises(TablesError, match=f"the checkpoint cannot be in .*/{name}: "):
                check_checkpoint(place, tables)
    Tables(tables, EPOCH)
    (tmp_path / "link").symlink_to(tables / "raw_events")
    with pytest.raises(TablesError, match=r"cannot be in .*/tables/raw_events: "):
        check_checkpoint(tmp_path / "link/a", tmp_path / "other")
    for place in (tables, tables / "_checkpoint", tmp_path / "raw_events", tmp_path):
        check_checkpoint(place, tables)


def test_a_directory_that_may_not_be_read_is_reported(tmp_path, monkeypatch):
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


def test_a_comma_is_nothing_for_spark(tmp_path: Path) -> None:
    """It would write into two directories, one of them below the current one."""
    with pytest.raises(SinkError, match="has a comma in its name"):
        start_session(Java(Path("java"), 17), tmp_path / "a,b" / "_scratch")
    assert not list(tmp_path.iterdir())


refused = partial(told, code=1)
ODD = ("st*r", "st[a]r {star,x}", "year=2026", "50% a+b#c ünï'c\"ode")


@pytest.fixture(scope="module")
def star(sample: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of some events, in directories of several names; not to be changed."""
    directory = tmp_path_factory.mktemp("odd") / "star"
    filled(directory, feed_rows(sample[:40]))
    for name in ODD:  # with files of the same names, which a pattern would find
        shutil.copytree(directory, directory.parent / name)
    return directory


@pytest.mark.parametrize("name", ODD)
def test_the_name_of_a_directory_is_taken_as_it_is(star: Path, name: str) -> None:
    """DuckDB takes some characters for a pattern, or for a column with one value."""
    sql = "SELECT * FROM stream_states ORDER BY stream_cid"
    with run_query(star, sql) as there, run_query(star.parent / name, sql) as here:
        assert (here.columns, list(here.rows)) == (there.columns, list(there.rows))

    database = Database(star.parent / name, memory_mb=200, threads=1)
    statement = database.understand("SELECT * FROM tables.stream_states ORDER BY stream_cid")
    database.open_tables(statement)
    schema = database.schema(statement, {})
    served = pa.Table.from_batches(database.answer(statement, {}, schema), schema)
    raw = open_delta(star)["stream_states"]
    assert served.num_rows == query(raw, "SELECT count(*) n FROM t")["n"][0].as_py()
    assert set(served.column_names) == set(TABLES["stream_states"].schema.names)


@pytest.mark.parametrize(
    ("name", "way"),
    [("a%20b", "directory"), ("a%2Fb", "parent"), ("back\\slash", "link"), ("tab\t", "directory")],
)
def test_a_directory_that_delta_rs_takes_for_another_one_is_refused(tmp_path, name, way):
    """It decodes what is not encoded, and would look for the tables elsewhere."""
    odd = tmp_path / name
    directory = odd if way == "directory" else odd / "tables"
    if way == "link":
        odd.mkdir()
        directory = tmp_path / "link"
        directory.symlink_to(odd)
    before = sorted(tmp_path.rglob("*"))
    for command in (["status"], ["query", "FROM raw_events"], ["optimize"]):
        text = refused(*command, "--tables", directory)
        assert "for something else. Use another directory" in text
    with pytest.raises(TablesError, match="something else"):
        Tables(directory, EPOCH)
    assert sorted(tmp_path.rglob("*")) == before
