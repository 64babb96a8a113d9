"""The directory of the tables: directories that are not one, and tables of an older version."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_sink.cli import main
from spark_sink.errors import SinkError, TablesError
from spark_sink.run.java import Java
from spark_sink.run.session import start_session
from spark_sink.schema import TABLES
from spark_sink.tables.directory import Tables, lock
from spark_sink.tables.status import no_tables

EPOCH = "5f0c8a10-aaaa-bbbb-cccc-000000000009"


def told(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 1
    return result.output


def test_plain_parquet_tables_of_an_older_version_are_left_alone(tmp_path: Path) -> None:
    """Whoever opens them is told how to get Delta tables of the same events."""
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
        assert "plain Parquet files of an older version" in told(*command, "--tables", tmp_path)
    assert len(list(tmp_path.rglob("*"))) == 2


def test_a_table_is_no_directory_of_tables(tmp_path: Path) -> None:
    """What was made in it, vacuum would take for files of the table."""
    Tables(tmp_path, EPOCH)
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


def test_a_comma_is_nothing_for_spark(tmp_path: Path) -> None:
    """It would write into two directories, one of them below the current one."""
    with pytest.raises(SinkError, match="has a comma in its name"):
        start_session(Java(Path("java"), 17), tmp_path / "a,b" / "_scratch")
    assert not list(tmp_path.iterdir())
