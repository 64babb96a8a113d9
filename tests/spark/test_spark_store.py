"""Tables in an object store: a real S3 server, over HTTP."""

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from spark_helpers import EPOCH, ROWS, filled, told
from spark_oracle import assert_tables

from spark_sink.errors import TablesError, store_fault
from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, TABLES
from spark_sink.tables import retention
from spark_sink.tables.location import (
    Location,
    StoreUrl,
    files_below,
    location_of,
    open_delta_table,
    storage_options,
)
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.tables import STAGING_DIR, Tables, lock

AZURE_WITH_A_WRONG_KEY = {"AZURE_STORAGE_ACCOUNT_NAME": "name", "AZURE_STORAGE_ACCOUNT_KEY": "x"}
NO_CREDENTIALS = {
    "AWS_ENDPOINT_URL": None,
    "AWS_ACCESS_KEY_ID": None,
    "AWS_SECRET_ACCESS_KEY": None,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": "/none",
    "AWS_CONFIG_FILE": "/none",
}


def fill(location: Location, *ends: int, names: Sequence[str] = DERIVED) -> Sink:
    return filled(location, ROWS, *ends, names=names)


@pytest.fixture
def _environment(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {**s3, "XDG_STATE_HOME": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.long
@pytest.mark.usefixtures("_environment")
def test_tables_in_a_store_are_kept_as_on_a_disk(store: Location) -> None:
    """And all commands take them, with what is in the environment."""
    fill(store, 12, 20)
    again = fill(store, len(ROWS))  # another process goes on
    again.tables.tidy(idle=True)
    assert_tables(store, ROWS.to_pylist())
    assert not [f for f in files_below(store) if f.path.startswith("_")]
    where = ("--tables", store)
    tables = json.loads(told("status", *where, "--json"))["tables"]
    assert {table["position"] for table in tables} == {len(ROWS)}
    assert told("optimize", *where, "raw_events").split()[0] == "raw_events"
    sql = "SELECT count(*) AS n, max(position) AS last FROM raw_events WHERE stream_cid IS NOT NULL"
    assert json.loads(told("query", *where, sql)) == {"n": len(ROWS), "last": len(ROWS)}
    assert json.loads(told("query", *where, "--version", "1", sql)) == {"n": 12, "last": 12}
    told("rebuild", *where, "stream_states")
    assert "files deleted" in told("vacuum", *where, "--history", "0h")
    assert "its versions are" in told("query", *where, "--version", "1", sql, code=1)
    assert_tables(store, ROWS.to_pylist())


def test_of_two_drivers_one_is_refused(store: Location) -> None:
    """Whichever commits first goes on, and no row is there twice."""
    names = ("conclusion_events",)
    fill(store, 12, names=names)
    first, second = (Sink(Tables(store, EPOCH, names)) for _ in range(2))
    second.tables.append(ROWS.slice(0, 20))
    with pytest.raises(TablesError, match=r"another process has written the table .*raw_events"):
        first.tables.append(ROWS.slice(0, 20))
    third = Sink(Tables(store, EPOCH, names))
    second.catch_up()
    with pytest.raises(TablesError, match=r"another process has written the table .*conclusion_"):
        third.catch_up()
    assert_tables(store, ROWS.slice(0, 20).to_pylist(), ("raw_events", *names))


def test_a_commit_that_was_read_with_a_later_one_is_the_last(store, monkeypatch):
    """Otherwise this driver would write on top of rows that it has not seen."""
    fill(store, 12, names=())
    one, other = (Tables(store, EPOCH, []) for _ in range(2))
    commit = DeltaTable.create_write_transaction

    def then_the_other(table: DeltaTable, *args: Any, **named: Any) -> None:
        commit(table, *args, **named)
        monkeypatch.undo()
        other.raw = SinkTable(TABLES["raw_events"], store / "raw_events", EPOCH)
        other.append(ROWS.slice(0, 30))

    monkeypatch.setattr(DeltaTable, "create_write_transaction", then_the_other)
    with pytest.raises(TablesError, match="another process has written the table"):
        one.append(ROWS.slice(0, 20))
    fill(store, len(ROWS), names=())
    assert_tables(store, ROWS.to_pylist(), ("raw_events",))


@pytest.mark.usefixtures("_environment")
@pytest.mark.long
def test_what_workers_wrote_for_a_killed_run_is_deleted_when_it_is_old(store, monkeypatch):
    """Unlike on a disk, it may be for a run that is about to commit it, on another machine."""
    monkeypatch.setattr(retention, "_COMMITS_PER_TIDY", 1)
    names = ("stream_tips",)
    killed = fill(store, 12, names=names).tables
    rows = open_delta_table(store / "stream_tips").to_pyarrow_table()

    def clean(by: str, upto: int) -> int:
        sink = fill(store, upto, names=names)
        if by == "run":
            sink.tables.tidy()
        else:
            told("vacuum", "--tables", store)
        return len(files_below(store, STAGING_DIR))

    killed.scratch_stager("stream_tips").stage(rows)
    staged = len(files_below(store, STAGING_DIR))
    assert staged
    assert clean("vacuum", 12) == clean("run", 20) == staged
    monkeypatch.setattr("spark_sink.tables.tables._ABANDONED_AFTER", timedelta(0))
    assert clean("vacuum", 20) == 0
    killed.scratch_stager("stream_tips").stage(rows)
    assert clean("run", len(ROWS)) == 0
    assert_tables(store, ROWS.to_pylist(), ("raw_events", *names))


@pytest.mark.usefixtures("_environment")
def test_two_drivers_of_one_machine_are_told_at_once(store: Location) -> None:
    with (
        lock(store),
        pytest.raises(TablesError, match=f"another spark-sink is writing the tables in {store}"),
        lock(store),
    ):
        pass


@pytest.mark.parametrize(
    ("where", "variables", "message"),
    [
        ("s3://nowhere/t", {}, "the bucket does not exist"),
        ("s3://bucket/t", NO_CREDENTIALS, "there are no credentials for the store"),
        ("s3://bucket/t", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "the store does not answer"),
        ("s3://bucket/t", {"AWS_ENDPOINT_URL": "127.0.0.1:9000"}, "not the URL of a store's ser"),
        ("s3://bucket/t", {"AWS_ENDPOINT_URL": ""}, "AWS_ENDPOINT_URL is '', which is not the URL"),
        ("gs://bucket/t", {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}, "cannot open the table gs://"),
        ("gs://bucket/t", {"GOOGLE_SERVICE_ACCOUNT": "/none"}, "its credentials cannot be read"),
        ("az://bucket/t", {}, "set AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://bucket/t", AZURE_WITH_A_WRONG_KEY, "its credentials cannot be read"),
    ],
)
@pytest.mark.usefixtures("_environment")
def test_what_is_wrong_with_a_store_is_reported_in_a_sentence(
    where, variables, message, monkeypatch
):
    for name, value in variables.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    soon = ("--storage-option", "max_retries=1")
    (line,) = told("optimize", "--tables", where, *soon, code=1).splitlines()
    assert line.startswith("Error: ")
    assert message in line
    assert len(line) < 330


def test_what_a_store_answers_is_reported_in_a_sentence() -> None:
    """As S3, MinIO and the SDK say it."""
    for text, message in (
        ("<Code>InvalidAccessKeyId</Code>", "does not accept the credentials"),
        ("non-2xx status code 403 Forbidden <Code>AccessDenied</Code>", "lack a permission"),
        ("an error occurred while loading credentials", "there are no credentials"),
        ("PUT http://169.254.169.254/latest/api/token", "there are no credentials"),
        ("<Code>PermanentRedirect</Code>", "another region"),
        ("non-2xx status code 503 Slow Down", "does not answer as it should"),
        ("No space left on device", None),
    ):
        assert (message is None) == (store_fault(text) is None)
        assert message is None or message in (store_fault(text) or "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://bucket/t", "the URL of a store begins with s3://"),
        ("s3:///t", "has the form s3://BUCKET/PATH"),
        ("s3://bucket/t?x=1", "has the form s3://BUCKET/PATH"),
    ],
)
def test_a_url_that_names_no_store_is_refused(text: str, message: str) -> None:
    assert message in told("status", "--tables", text, code=2)


def test_secrets_are_in_no_message() -> None:
    location = location_of("s3://bucket/a/t/", {"aws_secret_access_key": "hunter2"})
    assert isinstance(location, StoreUrl)
    assert (str(location), location.name, str(location.parent)) == (
        "s3://bucket/a/t",
        "t",
        "s3://bucket/a",
    )
    assert "hunter2" not in f"{location!r} {location / 'raw_events'!r} {location}"
    assert storage_options(location / "x") == storage_options(location)
    assert location_of("file:///a%20b", {}) == location_of("/a b", {}) == Path("/a b")
    assert "hunter2" not in told("status", "--tables", "t", "--storage-option", "=hunter2", code=2)
