"""`spark-sink forget`: nothing of a stream remains in any file, and the rest is as it was."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from nacl.signing import SigningKey
from spark_helpers import EPOCH, KilledError, feed_rows, filled, invoked, printed, read_on, told
from spark_oracle import table_rows
from spark_samples import document, replace
from support import forking
from test_spark_views import OF, history

from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, deterministic_init_event, init_event
from spark_sink.query.changes import Changes
from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, RAW
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.tables import Tables

OTHER = SigningKey(b"f" * 32)
SECRET = b"a secret that nobody must find"
HIDDEN = init_event(OTHER, OF, {"title": SECRET.decode()}, unique=b"hidden")
MORE = data_event(OTHER, HIDDEN.cid, [HIDDEN.cid], [replace("/title", f"{SECRET.decode()} 2")])
LATE = data_event(OTHER, HIDDEN.cid, [MORE.cid], [replace("/title", f"{SECRET.decode()} 3")])
EVENTS = [*history()[:5], HIDDEN, *history()[5:], MORE]
DID = controller_of(OTHER)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables and a view of all events; to be copied."""
    directory = tmp_path_factory.mktemp("filled")
    sink = filled(directory, feed_rows(EVENTS[:6]))
    told("view", "create", OF, "--as", "posts", "--tables", directory)
    read_on(sink, feed_rows(EVENTS))
    sink.fill_new_views()
    return directory


@pytest.fixture
def tables(template: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return shutil.copytree(template, tmp_path / "tables")


def forgotten(directory: Path, whom: object) -> dict[str, Any]:
    report = json.loads(printed("forget", "--tables", directory, whom, "--yes", "--json"))
    return dict(report)


def titles_in_view(directory: Path) -> list[str]:
    view = DeltaTable(directory / "views" / "posts").to_pyarrow_table(filesystem=None)
    return list(view["title"].to_pylist())


def assert_nothing_remains(directory: Path) -> None:
    """In no file, be it Parquet (read whole, as its pages are compressed) or of the log."""
    for path in directory.rglob("*"):
        if path.is_file() and path.name != "_forgotten":
            assert SECRET not in path.read_bytes(), path
            assert DID.encode() not in path.read_bytes(), path
    for path in directory.rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            text = str(pq.read_table(path, partitioning=None).to_pylist())
            assert SECRET.decode() not in text, path
            assert DID not in text, path


@pytest.mark.parametrize("whom", [str(HIDDEN.stream_id()), DID])
def test_nothing_of_a_stream_remains(tables: Path, whom: str) -> None:
    before = {name: table_rows(tables, name) for name in (RAW, *DERIVED)}
    views = len(titles_in_view(tables))
    cid = bytes(HIDDEN.cid)
    assert any(SECRET in row["car"] for row in before[RAW])
    report = forgotten(tables, whom)
    assert report["streams"] == 1
    assert report["tables"][RAW] == 2
    assert_nothing_remains(tables)
    for name, rows in before.items():
        after = table_rows(tables, name)
        if name == RAW:
            wanted = [row | {"car": b""} if row["stream_cid"] == cid else row for row in rows]
        else:
            wanted = [row for row in rows if row["stream_cid"] != cid]
        assert after == wanted, name
    assert len(titles_in_view(tables)) == views - 1
    told("check", "--deep", "--tables", tables)
    assert forgotten(tables, whom)["tables"] == dict.fromkeys(report["tables"], 0)


def test_what_comes_of_it_later_is_left_out_also_by_a_rebuild(tables: Path) -> None:
    forgotten(tables, HIDDEN.stream_id())
    sink = Sink(Tables(tables, EPOCH))
    other = document(OF, {"title": "more of others"}, b"more")
    read_on(sink, feed_rows([*EVENTS, LATE, other]))
    sink.fill_new_views()
    assert_nothing_remains(tables)
    assert len(table_rows(tables, RAW)) == len(EVENTS) + 2
    assert "more of others" in titles_in_view(tables)
    for name in DERIVED:
        told("rebuild", name, "--tables", tables)
        assert bytes(HIDDEN.cid) not in {row["stream_cid"] for row in table_rows(tables, name)}
    assert_nothing_remains(tables)


@pytest.mark.parametrize("name", [RAW, "stream_states", "posts"])
def test_copies_come_to_know(tables: Path, name: str) -> None:
    """Of every table: all rows come again, those that are gone do not."""
    token = Changes(tables, name, None).token
    forgotten(tables, HIDDEN.stream_id())
    kinds = [(kind, rows.to_pylist()) for kind, rows in Changes(tables, name, token).rows()]
    assert kinds[0] == ("reset", [])
    again = [row for _, rows in kinds for row in rows]
    theirs = [row for row in again if row["stream_cid"] == bytes(HIDDEN.cid)]
    assert len(again) == len(EVENTS) if name == RAW else not theirs
    assert all(row.get("car") == b"" for row in theirs)


PROGRAM = """
import os, sys
from spark_sink.cli import main
from spark_sink.tables.sink_table import SinkTable
SinkTable.forget_old_versions = lambda *_: os.kill(os.getpid(), 9)
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
        for kind, name in ((SinkTable, "_write"), (SinkTable, "forget_old_versions")):
            patch.setattr(kind, name, until(getattr(kind, name)))
        for steps in (0, 1, 2, 5):
            left = steps
            with pytest.raises(KilledError):
                told("forget", "--yes", "--tables", tables, DID)
    command = [sys.executable, "-c", PROGRAM, "--tables", str(tables), DID]
    assert forking.run(command, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    forgotten(tables, DID)
    assert_nothing_remains(tables)
    told("check", "--deep", "--tables", tables)


def test_what_is_wrong_is_reported(tables: Path) -> None:
    assert "is not a StreamID" in told("forget", "--tables", tables, "x", "--yes", code=2)
    assert invoked("forget", "--tables", tables, DID, stdin="n\n").exit_code == 1
    assert SECRET.decode() in str(table_rows(tables, "stream_states"))
    result = invoked("forget", "--tables", tables, DID, f"{DID[:-1]}?", stdin="n\n")
    assert f"Warning: {tables} has no stream of {DID[:-1]}?, or no longer\n" in result.stderr
    assert "Remove 1 stream from" in result.stderr
    assert result.stderr.count("Warning") == 1


def test_an_account_is_forgotten_however_it_is_spelled(tables: Path) -> None:
    account = "did:pkh:eip155:1:0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
    theirs = deterministic_init_event(account, OF)
    read_on(Sink(Tables(tables, EPOCH)), feed_rows([*EVENTS, theirs]))
    assert forgotten(tables, account.lower())["streams"] == 1


def test_a_damaged_list_is_named(tables: Path) -> None:
    """To rebuild a table, as for a damaged file of one, would not help."""
    (tables / "_forgotten").write_text("not hexadecimal")
    said = told("check", "--tables", tables, code=1)
    assert f"the list of forgotten streams {tables / '_forgotten'} is damaged" in said
    assert "spark-sink rebuild" not in said
