"""`spark-sink forget`: nothing of a stream remains in any file, and the rest is as it was."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from nacl.signing import SigningKey
from spark_helpers import EPOCH, feed_rows, filled
from spark_oracle import table_rows
from spark_samples import document, replace
from support import forking
from test_spark_crashes import KilledError
from test_spark_views import OF, history

from recon_node.ceramic.builder import controller_of, data_event, init_event
from spark_sink.cli import main
from spark_sink.query.changes import Changes
from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, RAW
from spark_sink.tables.commits import Commits
from spark_sink.tables.delta import FeedTable
from spark_sink.tables.directory import Tables

OTHER = SigningKey(b"f" * 32)
SECRET = b"a secret that nobody must find"
HIDDEN = init_event(OTHER, OF, {"title": SECRET.decode()}, unique=b"hidden")
MORE = data_event(OTHER, HIDDEN.cid, [HIDDEN.cid], [replace("/title", f"{SECRET.decode()} 2")])
LATE = data_event(OTHER, HIDDEN.cid, [MORE.cid], [replace("/title", f"{SECRET.decode()} 3")])
EVENTS = [*history()[:5], HIDDEN, *history()[5:], MORE]
DID = controller_of(OTHER)


def asked(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables and a view of all events; to be copied."""
    directory = tmp_path_factory.mktemp("filled")
    sink = filled(directory, feed_rows(EVENTS[:6]))
    made = asked("view", "create", str(OF), "--as", "posts", "--tables", directory)
    assert made.exit_code == 0, made.output
    sink.tables.append(feed_rows(EVENTS))
    sink.catch_up()
    sink.fill_new_views()
    return directory


@pytest.fixture
def tables(template: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return shutil.copytree(template, tmp_path / "tables")


def forgotten(directory: Path, *whom: str) -> dict[str, Any]:
    result = asked("forget", "--tables", directory, *whom, "--yes", "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def assert_nothing_remains(directory: Path) -> None:
    """In no file, be it Parquet (read whole, as its pages are compressed) or of the log."""
    for path in directory.rglob("*"):
        if path.is_file() and path.name != "_forgotten":
            assert SECRET not in path.read_bytes(), path
            assert DID.encode() not in path.read_bytes(), path
    import pyarrow.parquet as pq

    for path in directory.rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            text = str(pq.read_table(path, partitioning=None).to_pylist())
            assert SECRET.decode() not in text, path
            assert DID not in text, path


@pytest.mark.parametrize("whom", [str(HIDDEN.stream_id()), DID])
def test_nothing_of_a_stream_remains(tables: Path, whom: str) -> None:
    before = {name: table_rows(tables, name) for name in (RAW, *DERIVED)}
    views = DeltaTable(tables / "views" / "posts").to_pyarrow_table(filesystem=None).num_rows
    cid = bytes(HIDDEN.cid)
    assert any(SECRET in row["car"] for row in before[RAW])
    found = forgotten(tables, whom)
    assert found["streams"] == 1
    assert found["tables"][RAW] == 2
    assert_nothing_remains(tables)
    for name, rows in before.items():
        after = table_rows(tables, name)
        if name == RAW:
            wanted = [row | {"car": b""} if row["stream_cid"] == cid else row for row in rows]
        else:
            wanted = [row for row in rows if row["stream_cid"] != cid]
        assert after == wanted, name
    view = DeltaTable(tables / "views" / "posts").to_pyarrow_table(filesystem=None)
    assert view.num_rows == views - 1
    checked = asked("check", "--deep", "--tables", tables)
    assert checked.exit_code == 0, checked.output
    assert forgotten(tables, whom)["tables"] == dict.fromkeys(found["tables"], 0)


def test_what_comes_of_it_later_is_left_out_also_by_a_rebuild(tables: Path) -> None:
    forgotten(tables, str(HIDDEN.stream_id()))
    sink = Sink(Tables(tables, EPOCH))
    other = document(OF, {"title": "more of others"}, b"more")
    sink.tables.append(feed_rows([*EVENTS, LATE, other]))
    sink.catch_up()
    sink.fill_new_views()
    assert_nothing_remains(tables)
    assert len(table_rows(tables, RAW)) == len(EVENTS) + 2
    rows = DeltaTable(tables / "views" / "posts").to_pyarrow_table(filesystem=None)
    assert "more of others" in rows["title"].to_pylist()
    for name in DERIVED:
        rebuilt = asked("rebuild", name, "--tables", tables)
        assert rebuilt.exit_code == 0, rebuilt.output
        assert bytes(HIDDEN.cid) not in {row["stream_cid"] for row in table_rows(tables, name)}
    assert_nothing_remains(tables)


@pytest.mark.parametrize("name", [RAW, "stream_states", "posts"])
def test_copies_come_to_know(tables: Path, name: str) -> None:
    """Of every table: all rows come again, those that are gone do not."""
    token = Changes(tables, name, None).token
    forgotten(tables, str(HIDDEN.stream_id()))
    kinds = [(kind, rows.to_pylist()) for kind, rows in Changes(tables, name, token).rows()]
    assert kinds[0] == ("reset", [])
    again = [row for _, rows in kinds for row in rows]
    theirs = [row for row in again if row["stream_cid"] == bytes(HIDDEN.cid)]
    assert len(again) == len(EVENTS) if name == RAW else not theirs
    assert all(row.get("car") == b"" for row in theirs)


PROGRAM = """
import os, sys
from spark_sink.cli import main
from spark_sink.tables.delta import FeedTable
FeedTable.forget_old_versions = lambda *_: os.kill(os.getpid(), 9)
main(["forget", "--yes", *sys.argv[1:]])
"""


def test_it_goes_on_after_a_kill(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a commit, and before the history of a table is gone."""

    left = 0

    def until(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if not left:
                raise KilledError
            left -= 1
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for kind, name in ((Commits, "write"), (FeedTable, "forget_old_versions")):
            patch.setattr(kind, name, until(getattr(kind, name)))
        for steps in (0, 1, 2, 5):
            left = steps
            with pytest.raises(KilledError):
                asked("forget", "--yes", "--tables", tables, DID)
    command = [sys.executable, "-c", PROGRAM, "--tables", str(tables), DID]
    killed = forking.run(command, stdout=subprocess.DEVNULL)
    assert killed.returncode == -signal.SIGKILL
    forgotten(tables, DID)
    assert_nothing_remains(tables)
    checked = asked("check", "--deep", "--tables", tables)
    assert checked.exit_code == 0, checked.output


def test_what_is_wrong_is_told(tables: Path) -> None:
    assert "is not a StreamID" in asked("forget", "--tables", tables, "x", "--yes").stderr
    refused = CliRunner().invoke(main, ["forget", "--tables", str(tables), DID], input="n\n")
    assert refused.exit_code == 1
    assert SECRET.decode() in str(table_rows(tables, "stream_states"))
