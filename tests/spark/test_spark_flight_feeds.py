"""Feeds of `spark-sink serve`: what a table has, and then what comes, while it is open."""

import tempfile
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from adbc_driver_manager import Error, ProgrammingError
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from flight_support import (
    EPOCH,
    asked,
    connected,
    fill,
    following,
    in_table,
    rows_of_scenario,
    served,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_helpers import filled
from support import vectors
from support.waiting import wait_until

from spark_sink.errors import RequestError
from spark_sink.schema import FEED, RAW, TABLES, with_partition
from spark_sink.serve import served_feed as feed_module
from spark_sink.serve.database import Database, Wanted
from spark_sink.serve.query_turns import QueryLimits, QueryWorkers
from spark_sink.serve.served_feed import ServedFeed
from spark_sink.tables.delta_log import query
from spark_sink.tables.tables import Tables
from spark_sink.upkeep.maintenance import forget

ROWS = rows_of_scenario(more=30)


class DoneError(Exception):
    """A feed waits, and nothing more will come."""


def followed(directory: Path, name: str, commits: list[Any]) -> list[dict[str, Any]]:
    """The rows of a feed, while these functions are called one by one whenever it waits."""
    waiting = iter(commits)

    def wait(seconds: float) -> None:
        commit = next(waiting, None)
        if commit is None:
            raise DoneError
        commit()

    database = Database(directory, memory_mb=200, threads=1)
    rows: list[dict[str, Any]] = []
    try:
        for _ in ServedFeed(database, name, wait).steps():
            sql = f"SELECT * FROM ceramic.tables.{name}_feed"
            rows += database.connection.execute(sql).to_arrow_table().to_pylist()
    except DoneError:
        return rows
    raise AssertionError("a feed has ended")


@pytest.mark.parametrize("table", [RAW, "event_states", "stream_tips"])
@settings(max_examples=2, deadline=None)
@given(
    st.lists(st.integers(0, ROWS.num_rows), max_size=5).map(sorted),
    st.sampled_from([3, 40, 50_000]),
    st.booleans(),
)
def test_whoever_follows_a_feed_has_the_table(table, cuts, window, tidy):
    """Whatever the commits: each row comes, in its last form last, and events come in order."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_module, "_POSITIONS_PER_STEP", window)
        directory = Path(name)
        commits = [partial(fill, directory, ROWS.slice(0, cut), [table]) for cut in cuts]
        commits.append(partial(fill, directory, ROWS, [table]))
        if tidy:
            commits.insert(1, partial(tidied, directory))
        rows = followed(directory, table, commits)
        key, order = TABLES[table].key, TABLES[table].order
        last = {row[key]: row for row in rows}
        assert sorted(last.values(), key=lambda row: row[order]) == in_table(directory, table)
        if TABLES[table].rows_are_events:
            first = list(dict.fromkeys(row[order] for row in rows))
            assert first == list(range(1, ROWS.num_rows + 1))
            assert len(first) == len(rows) or table == "event_states"


def test_a_feed_that_opens_during_a_step_has_all_rows(tmp_path: Path) -> None:
    """A large step writes rows of streams before the commit that moves the table's position."""
    fill(tmp_path / "done", ROWS, ["stream_tips"])
    fill(tmp_path / "tables", ROWS.slice(0, 20), ["stream_tips"])
    rows = query(DeltaTable(tmp_path / "done" / "stream_tips"), "SELECT * FROM t")
    tables = Tables(tmp_path / "tables", EPOCH, ["stream_tips"])
    tables.append(ROWS)
    tables.derived["stream_tips"].revise(rows.slice(0, rows.num_rows // 2), ROWS.num_rows)
    done = partial(fill, tmp_path / "tables", ROWS, ["stream_tips"])
    seen = {row["stream_cid"]: row for row in followed(tmp_path / "tables", "stream_tips", [done])}
    expected = in_table(tmp_path / "done", "stream_tips")
    assert sorted(seen.values(), key=itemgetter("position")) == expected


def tidied(directory: Path) -> None:
    """Let all tables be merged into few files, which changes no row."""
    for name in TABLES:
        if (directory / name).exists():
            DeltaTable(str(directory / name)).optimize.compact()


def test_rows_come_again_when_their_model_changes_them(tmp_path: Path) -> None:
    """Documents before their model are checked when it comes; only what differs comes again."""
    fill(tmp_path, ROWS.slice(0, 2))
    rows = followed(tmp_path, "event_states", [lambda: fill(tmp_path, ROWS)])
    orders = [row["conclusion_event_order"] for row in rows]
    assert orders[:2] == [1, 2]
    assert orders.count(2) == 2  # it turned out to be against the rules of its model
    assert orders.count(1) == 1
    first, again = (row for row in rows if row["conclusion_event_order"] == 2)
    assert not first["validation_errors"]
    assert again["validation_errors"]


def test_an_open_feed_gets_new_events(tmp_path: Path) -> None:
    fill(tmp_path, ROWS.slice(0, 10))
    sql = "SELECT conclusion_event_order AS n FROM conclusion_events_feed WHERE n % 2 = 0"
    with served(tmp_path) as url, connected(url) as connection, following(connection, sql) as rows:
        assert [next(rows)["n"] for _ in range(5)] == [2, 4, 6, 8, 10]
        fill(tmp_path, ROWS.slice(0, 14))
        assert [next(rows)["n"] for _ in range(2)] == [12, 14]
        fill(tmp_path, ROWS.slice(0, 16))
        assert next(rows)["n"] == 16


def test_a_feed_ends_after_its_limit(tmp_path: Path) -> None:
    """As the SDK waits for an event: it need not be there yet."""
    wanted = ROWS["event_cid"][11].as_py()
    sql = "SELECT event_state_order AS n FROM event_states_feed WHERE event_cid = $cid LIMIT $n"
    fill(tmp_path, ROWS.slice(0, 10))
    with served(tmp_path) as url, connected(url) as connection:
        with following(connection, sql, (wanted, 1)) as rows:
            fill(tmp_path, ROWS.slice(0, 20))
            assert list(rows) == [{"n": 12}]
        assert asked(connection, sql, (wanted, 1)).to_pylist() == [{"n": 12}]
        assert asked(connection, sql, (wanted, 0)).num_rows == 0
        with pytest.raises(ProgrammingError, match="cannot be negative"):
            asked(connection, "SELECT 1 FROM event_states_feed LIMIT $n", (-1,))


def test_a_feed_can_be_opened_before_its_table(tmp_path: Path) -> None:
    with (
        served(tmp_path / "later") as url,
        connected(url) as connection,
        following(connection, "SELECT position FROM tables.raw_events_feed LIMIT 3") as rows,
    ):
        fill(tmp_path / "later", ROWS)
        assert [row["position"] for row in rows] == [1, 2, 3]


NEED_ALL_ROWS = vectors.load("spark/feed_refusals")


def test_what_needs_all_rows_of_a_feed_is_refused(flight: Any, tmp_path: Path) -> None:
    database = Database(tmp_path, memory_mb=200, threads=1)
    for sql, what in NEED_ALL_ROWS:
        with pytest.raises(RequestError, match=f"never ends.*{what}"):
            database.understand(sql)
    with pytest.raises(ProgrammingError, match=r"never ends.*an aggregate"):
        asked(flight, NEED_ALL_ROWS[0][0])


@pytest.fixture(scope="module")
def flight(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with (
        served(tmp_path_factory.mktemp("flight"), QueryLimits(feeds=2)) as url,
        connected(url) as connection,
    ):
        yield connection


def test_there_are_only_so_many_feeds(flight: Any) -> None:
    """A feed whose client has left makes room for another one."""
    sql = "SELECT 1 FROM stream_tips_feed"
    with following(flight, sql), following(flight, sql):
        with pytest.raises(Error, match="2 feeds are open already"):
            asked(flight, sql)
        assert asked(flight, "SELECT 1").num_rows == 1  # queries have their own slots

    def is_free() -> bool:
        try:
            with following(flight, sql):
                return True
        except Error:
            return False

    wait_until(is_free, "the slots are free again")


def test_a_table_that_is_rebuilt_ends_its_feed(tmp_path: Path) -> None:
    fill(tmp_path, ROWS.slice(0, 20))

    def anew() -> None:
        filled(tmp_path / "other", ROWS.slice(0, 5), epoch=EPOCH.replace("0", "1"), names=())
        (tmp_path / RAW).rename(tmp_path / "old")
        (tmp_path / "other" / RAW).rename(tmp_path / RAW)

    nothing = [lambda: None] * 100
    with pytest.raises(RequestError, match="made anew"):
        followed(tmp_path, RAW, [anew, *nothing])


def test_a_query_waits_for_what_the_node_has(tmp_path: Path) -> None:
    """But not for another log, and not when it would be in vain."""
    fill(tmp_path, ROWS.slice(0, 10))
    database = Database(tmp_path, memory_mb=200, threads=1)

    def count(position: int, seconds: float, epoch: str = EPOCH) -> Any:
        statement = database.understand("SELECT count(*) AS n FROM conclusion_events")
        database.open_tables(statement, Wanted(epoch, position, seconds))
        [batch] = database.answer(statement, {}, pa.schema([("n", pa.int64())]))
        return batch["n"][0].as_py()

    assert count(10, 3600) == 10
    assert count(2_000_000, 3600) == 10
    assert count(11, 3600, "another log") == 10
    assert count(11, 0.2) == 10


def test_a_feed_of_large_rows_takes_smaller_steps(tmp_path: Path) -> None:
    """The rows of a window are sorted in memory, and events may have a megabyte each."""
    with served(tmp_path, QueryLimits(memory_mb=120)) as url, connected(url) as connection:
        fill(tmp_path, ROWS, [RAW])
        table = DeltaTable(str(tmp_path / RAW))
        cars = pa.array([bytes([n]) * 3_000_000 for n in range(60)], pa.binary())
        count = ROWS.num_rows
        large = ROWS.slice(0, 60).set_column(ROWS.column_names.index("car"), "car", cars)
        large = large.set_column(0, "position", pa.array(range(count + 1, count + 61)))
        commit(table, with_partition(large.cast(FEED)), count + 60)
        sql = "SELECT position, car FROM tables.raw_events_feed LIMIT $n"
        with following(connection, sql, (count + 60,)) as rows:
            assert [row["position"] for row in rows] == list(range(1, count + 61))


def commit(table: DeltaTable, rows: pa.Table, position: int) -> None:
    """Append rows to a table, as the pipeline does."""
    transaction = Transaction(f"spark-sink/{EPOCH}", position)
    properties = CommitProperties(app_transactions=[transaction])
    write_deltalake(table, rows, mode="append", commit_properties=properties)


def test_tables_in_a_store_are_served(store, s3, monkeypatch, tmp_path):
    for name, value in {**s3, "XDG_STATE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    fill(store, ROWS.slice(0, 12), ["event_states"])
    sql = "SELECT conclusion_event_order AS n FROM event_states"
    with served(store, workers=QueryWorkers) as url, connected(url) as connection:
        row = asked(connection, f"{sql} WHERE event_cid = $1", (ROWS["event_cid"][4].as_py(),))
        assert row.to_pylist() == [{"n": 5}]
        with following(connection, sql.replace("event_states", "event_states_feed")) as rows:
            assert [next(rows)["n"] for _ in range(12)] == list(range(1, 13))
            fill(store, ROWS.slice(0, 20), ["event_states"])
            assert [next(rows)["n"] for _ in range(8)] == list(range(13, 21))
        with pytest.raises(ProgrammingError, match="not allowed in FROM"):
            asked(connection, "FROM read_text('/etc/passwd')")


def test_a_feed_ends_when_its_changes_are_not_there_any_more(tmp_path: Path) -> None:
    """In words for its client, whatever the library raises."""
    fill(tmp_path, ROWS.slice(0, 20))

    def gone() -> None:
        fill(tmp_path, ROWS)
        for path in (tmp_path / "stream_states" / "_change_data").rglob("*.parquet"):
            path.unlink()

    with pytest.raises(RequestError, match="this feed is too far behind"):
        followed(tmp_path, "stream_states", [gone])


@pytest.mark.parametrize("name", ["raw_events", "stream_states"])
def test_a_feed_ends_when_rows_are_forgotten(tmp_path: Path, name: str) -> None:
    fill(tmp_path, ROWS)
    stream = ROWS["stream_cid"][0].as_py()
    with pytest.raises(RequestError, match="start the feed again from its beginning"):
        followed(tmp_path, name, [lambda: forget(tmp_path, [stream])])
