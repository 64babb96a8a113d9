"""`spark-sink changes`: whoever writes its rows by their keys has the table, at any time."""

import json
import subprocess
import sys
from base64 import urlsafe_b64encode
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from deltalake import DeltaTable
from spark_helpers import EPOCH, ROWS, Served, feed_rows, filled, invoked, read_on, silent, told
from spark_oracle import sorted_rows, table_rows
from support import forking

from recon_node.ceramic import Event
from spark_sink.errors import TablesError
from spark_sink.query import changes
from spark_sink.query.show import show, to_json
from spark_sink.run.pipeline import Sink
from spark_sink.schema import TABLES, with_partition
from spark_sink.tables import retention, staging
from spark_sink.tables.retention import Retention
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.staging import Staged
from spark_sink.tables.tables import Tables
from spark_sink.upkeep.maintenance import rebuild


def asked(name: str, tables: Path, *options: object, code: int = 0) -> Result:
    result = invoked("changes", name, "--tables", tables, *options)
    assert result.exit_code == code, result.output
    return result


class Copy:
    """A copy of a table, made of the lines that the command prints."""

    def __init__(self, tables: Path, name: str) -> None:
        self.tables = tables
        self.key = TABLES[name].key
        self.name = name
        self.rows: dict[str, Any] = {}
        self.token: str | None = None
        self.resets = 0

    def follow(self) -> int:
        """Take in what has changed; return how many rows that were."""
        since = [] if self.token is None else ["--since", self.token]
        *lines, last = map(json.loads, asked(self.name, self.tables, *since).stdout.splitlines())
        self.token = last["token"]
        self.resets += sum("reset" in line for line in lines)
        rows = [line["row"] for line in lines if "row" in line]
        self.rows.update((str(row[self.key]), row) for row in rows)
        return len(rows)

    def assert_is_the_table(self) -> None:
        table = DeltaTable(self.tables / self.name).to_pyarrow_table(filesystem=None)
        now = {}
        for row in table.select(TABLES[self.name].schema.names).to_pylist():
            shown = json.loads(to_json(show(row)))
            now[str(shown[self.key])] = shown
        assert self.rows == now


@pytest.mark.parametrize("size", [None, pytest.param(0.0, marks=pytest.mark.long)])
def test_a_copy_stays_the_same_as_its_table(tmp_path, monkeypatch, size):
    """Also if what the token's version had is not kept any more."""
    monkeypatch.setattr(retention, "_GRACE", 0.0)
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.set_retention(Retention(1.0, size))
    copies = [Copy(tmp_path, name) for name in TABLES]
    total = len(ROWS)
    for step, (_, end) in enumerate(pairwise(range(0, total + 11, 11))):
        read_on(sink, ROWS.slice(0, min(end, total)))
        sink.tables.tidy(idle=False)
        for at, copy in enumerate(copies):
            if (step + at) % 3 == 0:  # each at times of its own
                copy.follow()
                copy.assert_is_the_table()
    for copy in copies:
        copy.follow()
        copy.assert_is_the_table()
        assert copy.follow() == 0
    resets = {copy.name: copy.resets for copy in copies}
    if size is None:
        assert not any(resets.values())
    else:
        assert resets["stream_tips"] > 0
        assert resets["raw_events"] == resets["conclusion_events"] == 0


def test_changes_are_kept_for_as_long_as_they_should(tmp_path, monkeypatch):
    """Whatever becomes of the older versions."""
    monkeypatch.setattr(retention, "_GRACE", 0.0)
    sink = Sink(Tables(tmp_path, EPOCH))
    sink.tables.set_retention(Retention(0.0, 0, changes=24.0))
    copies = [Copy(tmp_path, name) for name in TABLES]
    for end in (*range(20, len(ROWS), 20), len(ROWS)):
        read_on(sink, ROWS.slice(0, end))
        sink.tables.tidy(idle=False)
        for copy in copies if end == 40 else ():
            copy.follow()
    told("vacuum", "--tables", tmp_path)
    table = tmp_path / "stream_states"
    live = len(DeltaTable(table).file_uris())
    assert len(list(table.glob("stream_cid_partition=*/*.parquet"))) == live
    for copy in copies:
        copy.follow()
        copy.assert_is_the_table()
        assert copy.resets == 0


def test_rows_that_do_not_fit_in_memory_come_in_parts(tmp_path, monkeypatch):
    """A file has a hundred times its size of a stranger's content. A stream's events come in their
    order all the same."""
    filled(tmp_path, ROWS, len(ROWS) // 2, len(ROWS))
    monkeypatch.setattr(changes, "_AT_ONCE", 10_000)
    monkeypatch.setattr(staging, "_PART_BYTES", 10_000)
    for name, spec in TABLES.items():
        came: list[dict[str, Any]] = []
        for _, rows in changes.Changes(tmp_path, name, None).rows():
            assert rows.nbytes < 11_000 or rows.num_rows == 1
            came += rows.to_pylist()
        by_stream = sorted(came, key=itemgetter("stream_cid"))  # keeps the order within a stream
        assert by_stream == sorted(came, key=itemgetter("stream_cid", spec.order))
        assert sorted_rows(name, came) == table_rows(tmp_path, name)


def test_rows_that_are_there_twice_are_damage(tmp_path, monkeypatch):
    table = SinkTable(TABLES["raw_events"], tmp_path / "raw_events", EPOCH)
    rows = with_partition(ROWS.slice(0, 3))
    table.append(Staged(tables=(rows, rows)), 3)
    monkeypatch.setattr(changes, "_AT_ONCE", 1)
    with pytest.raises(TablesError, match="has two rows of a stream at position 1; rebuild"):
        list(changes.Changes(tmp_path, "raw_events", None).rows())


def test_history_may_be_forgotten_while_a_table_is_opened(tmp_path, monkeypatch):
    sink = filled(tmp_path, ROWS, 10, 20, len(ROWS), names=())
    opened = changes.find_delta_table

    def forgotten(path: Path) -> DeltaTable | None:
        monkeypatch.setattr(changes, "find_delta_table", opened)
        table = opened(path)
        sink.tables.raw.forget_old_versions()
        return table

    monkeypatch.setattr(changes, "find_delta_table", forgotten)
    rows = changes.Changes(tmp_path, "raw_events", None).rows()
    assert sum(part.num_rows for _, part in rows) == len(ROWS)


@pytest.mark.parametrize("name", ["raw_events", "conclusion_events", "stream_states"])
def test_a_rebuilt_table_comes_again(tmp_path: Path, name: str) -> None:
    filled(tmp_path, ROWS)
    copy = Copy(tmp_path, name)
    copy.follow()
    for resets in (1, 2):
        rebuild(tmp_path, name, Served(ROWS), silent)
        assert copy.follow() == len(copy.rows)
        assert copy.resets == resets
        copy.assert_is_the_table()


def test_a_checkpoint_is_the_token_of_the_last_call(sample: list[Event], tmp_path: Path) -> None:
    tables, other, file = tmp_path / "tables", tmp_path / "other", tmp_path / "token"
    counts = []
    for end in (10, 25, 25):
        filled(tables, feed_rows(sample[:end]), names=())
        lines = asked("raw_events", tables, "--checkpoint", file).stdout.splitlines()
        counts.append(len(lines) - 1)
        assert json.loads(lines[-1])["token"] == file.read_text().strip()
    assert counts == [10, 15, 0]
    filled(other, feed_rows(sample[:5]), names=())
    lines = asked("raw_events", other, "--checkpoint", file).stdout.splitlines()
    assert (lines[0], len(lines)) == ('{"reset": true}', 7)


def test_what_is_wrong_is_reported(tmp_path: Path) -> None:
    asks = ("raw_events", tmp_path)
    assert "there is no table raw_events" in asked(*asks, code=1).stderr
    Tables(tmp_path, EPOCH)
    text = asked(*asks, "--since", "nonsense", code=1).stderr
    assert "is not a token of `spark-sink changes`" in text
    asked(*asks, "--since", "x", "--checkpoint", "y", code=2)


@pytest.mark.parametrize(
    "content",
    [
        b"nonsense",
        b"caf\xe9",
        b"A" * 65_537,
        b"A" * 60_000,
        urlsafe_b64encode(b"[" * 40_000),
        urlsafe_b64encode(b'{"table":"t","version":1.5,"position":true}'),
        urlsafe_b64encode(b'{"table":"t","version":1,"position":9223372036854775808}'),
    ],
)
def test_a_checkpoint_that_is_none_is_an_error(content: bytes, tmp_path: Path) -> None:
    tables, file = tmp_path / "tables", tmp_path / "token"
    Tables(tables, EPOCH)
    file.write_bytes(content)
    error = asked("raw_events", tables, "--checkpoint", file, code=1).stderr
    assert error.startswith(f"Error: the checkpoint {file}")
    assert content.decode("latin-1")[:9] not in error  # it may be a secret
    assert file.read_bytes() == content


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    filled(tables, ROWS[:3], names=())
    (tmp_path / "file").touch()
    for file in (tmp_path / "no" / "token", tmp_path / ("x" * 300), tmp_path / "file" / "token"):
        error = asked("raw_events", tables, "--checkpoint", file, code=1).stderr
        assert error.startswith(f"Error: the checkpoint {file}: ")
    words = ["changes", "raw_events", "--tables", str(tables)]
    program = "from spark_sink.cli import main; main()"
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", program, *words]
        done = forking.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "Error: standard output cannot be written: No space left on device\n"


def test_a_name_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    Tables(tmp_path, EPOCH)
    for words in (
        ("changes", "\udcff", "--tables", tmp_path),
        ("changes", "raw_events", "--tables", "\udcff"),
        ("query", "SELECT '\udcff'", "--tables", tmp_path),
    ):
        result = invoked(*words)
        assert result.exit_code == 1
        assert "is not text in UTF-8" in result.stderr
