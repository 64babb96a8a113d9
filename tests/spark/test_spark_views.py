"""Typed views: a model's fields as columns, in tables that follow the model's documents."""

import json
import random
import resource
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import flight_support as support
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from spark_helpers import EPOCH, feed_rows, invoked, printed, read_on, told
from spark_samples import KEY, change, document, replace
from support import forking, vectors

from recon_node.ceramic import Event, StreamId
from recon_node.ceramic.builder import model_event
from spark_sink.run.pipeline import Sink
from spark_sink.schema import TAKEN, view_schema
from spark_sink.tables.tables import Tables, lock
from spark_sink.views import model_columns
from spark_sink.views.keeping import Views
from spark_sink.views.model_columns import Columns

DEFINITION: dict[str, Any] = vectors.load("spark/blog_post")["definition"]
SCHEMA = DEFINITION["schema"]
MODEL = model_event(KEY, DEFINITION)
OF = MODEL.stream_id()
PARENT = document(OF, {"title": "the parent"}, b"parent")
CONTENT = vectors.load("spark/blog_post", parent=PARENT.stream_id())["content"]
POST = document(OF, CONTENT, b"post")
BADLY = document(
    OF, {"title": "early", "likes": "many", "day": "2026-02-30", "tags": ["a", 1]}, b"early"
)
TEXT = pa.string()


def asked(*arguments: object) -> list[Any]:
    """The JSON that a command prints."""
    text = printed(*arguments)
    return [json.loads(text)] if "--json" in arguments else [*map(json.loads, text.splitlines())]


def created(tables: Path, name: str, model: StreamId | None = None) -> None:
    told("view", "create", "--tables", tables, model or OF, "--as", name)


def rows_of(tables: Path, name: str) -> dict[str, dict[str, Any]]:
    table = DeltaTable(tables / "views" / name).to_pyarrow_table(filesystem=None)
    return {row["stream_id"]: row for row in table.to_pylist()}


def filled(directory: Path, events: list[Event]) -> Sink:
    sink = Sink(Tables(directory, EPOCH, ["stream_states"]))
    added(sink, events)
    return sink


def added(sink: Sink, events: list[Event]) -> None:
    read_on(sink, feed_rows(events))
    sink.fill_new_views()


def test_fields_are_typed_columns(tmp_path: Path) -> None:
    filled(tmp_path, [MODEL, PARENT, POST])
    (made,) = asked("view", "create", "--tables", tmp_path, str(OF), "--json")
    assert (made["name"], made["rows"]) == ("blog_post", 2)
    row = rows_of(tmp_path, "blog_post")[str(POST.stream_id())]
    assert {name: row[name] for name in made["columns"] if name not in TAKEN} == {
        "title": "A post",
        "likes": 3,
        "score": 0.5,
        "open": True,
        "day": date(2026, 2, 28),
        "when": datetime(2026, 2, 28, 10, 0, 0, 250_000, UTC),
        "state": "draft",
        "tags": ["a", "b"],
        "place": {"city": "Rome", "at": [41.9, 12.0]},
        "comments": [{"text": "first", "replies": ['{"text": "second"}']}],
        "counts": [("x", 1)],
        "either": "7",
        "parent": str(PARENT.stream_id()),
        "Position_": 5,
        "stream_id_": "odd",
    }
    assert (row["event_cid"], row["position"], row["misfits"]) == (bytes(POST.cid), 3, [])
    sql = (
        "SELECT post.title, parent.title AS of, post.place.city, post.when::DATE = post.day AS same"
        " FROM blog_post AS post JOIN blog_post AS parent ON post.parent = parent.stream_id"
    )
    assert asked("query", "--tables", tmp_path, sql) == [
        {"title": "A post", "of": "the parent", "city": "Rome", "same": True}
    ]


def test_a_new_view_is_filled_alone_and_whole_or_not_there(tmp_path: Path) -> None:
    large = document(OF, {"title": "large", "either": random.randbytes(30_000).hex()})
    filled(tmp_path, [MODEL, PARENT, large])
    create = ("view", "create", "--tables", tmp_path, OF, "--as")
    with lock(tmp_path):
        told(*create, "left_to_run")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        assert "cannot write the tables" in told(*create, "posts", code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert told(*create, "posts").startswith("posts: 2 rows; columns ")
    assert [
        view["rows"] for view in asked("view", "list", "--tables", tmp_path, "--json")[0]["views"]
    ] == [0, 2]


def test_a_new_view_is_not_there_if_it_was_interrupted(tmp_path, monkeypatch) -> None:
    filled(tmp_path, [MODEL, POST])
    create = ("view", "create", "--tables", tmp_path, OF, "--as", "posts")
    with monkeypatch.context() as patched:
        patched.setattr(
            model_columns.Columns, "values", lambda *_: signal.raise_signal(signal.SIGINT)
        )
        assert "Aborted!" in told(*create, code=130)
    assert told(*create).startswith("posts: 1 row; columns ")


def test_views_take_in_only_what_has_changed(tmp_path: Path) -> None:
    sink = filled(tmp_path, [MODEL, POST])
    for name in ("posts", "others"):
        created(tmp_path, name)
    views = Views(tmp_path)
    assert views.keep() == 0
    for number in (1, 2):
        events = [MODEL, POST, *(document(OF, {"title": str(n)}) for n in range(number))]
        read_on(sink, feed_rows(events))
        assert (views.keep(), views.keep()) == (2, 0)


def test_a_model_may_be_called_as_a_word_of_sql(tmp_path: Path) -> None:
    order = model_event(KEY, {**DEFINITION, "name": "Order"})
    filled(tmp_path, [order, document(order.stream_id(), {"title": "one"})])
    told("view", "create", "--tables", tmp_path, order.stream_id())
    assert {"name": "order"} in asked("query", "--tables", tmp_path, "SHOW TABLES")
    assert asked("query", "--tables", tmp_path, 'SELECT title FROM "order"') == [{"title": "one"}]


def test_what_does_not_fit_is_null_with_the_reason(tmp_path: Path) -> None:
    """A document that came before its model was never checked by its schema."""
    filled(tmp_path, [BADLY, MODEL])
    created(tmp_path, "posts")
    state = rows_of(tmp_path, "posts")[str(BADLY.stream_id())]
    assert state["event_cid"] is None, "the model has come, and by its schema it is wrong"
    fields, misfits, _ = Columns(DEFINITION).values(BADLY.payload["data"])
    assert (fields["title"], fields["likes"], fields["day"], fields["tags"]) == (
        "early",
        None,
        None,
        ["a", None],
    )
    assert misfits == [
        ("$.likes", '"many" is not an integer of 64 bits'),
        ("$.day", '"2026-02-30" is not a date'),
        ("$.tags[1]", "1 is not text"),
    ]


def test_a_document_of_an_older_version_has_misfits(tmp_path: Path) -> None:
    post = document(OF, {"title": "old", "likes": 1}, b"old")
    sink = filled(tmp_path, [MODEL, post])
    created(tmp_path, "posts")
    retyped = {"title": {"type": "string"}, "likes": {"type": "array", "items": {"type": "string"}}}
    version = change(MODEL, replace("/schema/properties", retyped))
    added(sink, [MODEL, post, version])
    row = rows_of(tmp_path, "posts")[str(post.stream_id())]
    assert (row["title"], row["likes"]) == ("old", None)
    assert row["misfits"] == [{"field": "$.likes", "reason": "1 is not a list"}]
    assert set(row) == {*TAKEN, "title", "likes"}
    (listed,) = asked("view", "list", "--tables", tmp_path, "--json")
    assert listed["views"] == [
        {"name": "posts", "model": str(OF), "position": 3, "rows": 1, "misfits": 1}
    ]


def history() -> list[Event]:
    """Documents that change, one that is wrong, other models, and versions of the model."""
    other = model_event(KEY, {**DEFINITION, "name": "Other"})
    first, second = (document(OF, {"title": name}, name.encode()) for name in ("one", "two"))
    more = change(
        MODEL, {"op": "add", "path": "/schema/properties/extra", "value": {"type": "string"}}
    )
    return [
        first,
        other,
        document(other.stream_id(), {"title": "of another model"}, b"x"),
        MODEL,
        second,
        change(first, replace("/title", "uno")),
        change(second, {"op": "add", "path": "/likes", "value": "wrong"}),
        document(OF, ["not an object"], b"list"),
        more,
        change(more, replace("/name", "the same columns")),
        document(OF, CONTENT, b"later"),
    ]


@pytest.mark.parametrize("cut", [4, 7, 10])
def test_a_view_is_the_same_whenever_it_was_created(tmp_path: Path, cut: int) -> None:
    """And however often it was brought up to date: as one that is created at the end."""
    events = history()
    sink = filled(tmp_path, events[:cut])
    created(tmp_path, "early")
    for end in range(cut + 1, len(events) + 1):
        added(sink, events[:end])
    created(tmp_path, "late")
    early, late = rows_of(tmp_path, "early"), rows_of(tmp_path, "late")
    assert len(late) == 4
    assert early == late
    assert all("extra" in row for row in late.values())
    assert {row["title"] for row in late.values()} == {"uno", "two", None, "A post"}
    lines = asked("changes", "--tables", tmp_path, "early")
    assert {line["row"]["stream_id"] for line in lines if "row" in line} == set(early)


def test_a_rebuilt_table_is_followed(tmp_path: Path) -> None:
    events = history()
    filled(tmp_path, events[:8])
    created(tmp_path, "posts")
    before = rows_of(tmp_path, "posts")
    asked("rebuild", "stream_states", "--tables", tmp_path, "--json")
    sink = Sink(Tables(tmp_path, EPOCH, ["stream_states"]))
    sink.fill_new_views()
    assert rows_of(tmp_path, "posts") == before
    added(sink, events)
    created(tmp_path, "anew")
    assert rows_of(tmp_path, "posts") == rows_of(tmp_path, "anew")


def test_views_are_shown_and_maintained_as_tables_are(tmp_path: Path) -> None:
    events = history()
    sink = filled(tmp_path, events[:5])
    created(tmp_path, "posts")
    for upto in range(6, len(events) + 1):
        added(sink, events[:upto])
    before = rows_of(tmp_path, "posts")
    [status] = asked("status", "--tables", tmp_path, "--json")
    [shown] = [table for table in status["tables"] if table["name"] == "posts"]
    assert (shown["rows"], shown["position"]) == (len(before), len(events))
    assert shown["total"] > shown["size"] > 0
    [done] = asked("optimize", "--tables", tmp_path, "posts", "--json")
    partitions = {row["stream_cid_partition"] for row in before.values()}
    assert done["tables"] == [{"name": "posts", "files": len(partitions)}]
    [done] = asked("vacuum", "--tables", tmp_path, "posts", "--history", "0h", "--json")
    assert done["tables"][0]["files"] > 0
    assert rows_of(tmp_path, "posts") == before
    view = tmp_path / "views" / "posts"
    file, *_ = view.glob("stream_cid_partition=*/*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    text = told("check", "--deep", "--tables", tmp_path, code=1)
    assert f"posts: {file.relative_to(view)} cannot be read" in text
    for name in ("optimize", "vacuum"):
        text = invoked(name, "--tables", tmp_path, "pots").stderr
        assert "no table pots" in text
        assert "posts" in text


def test_a_view_can_be_dropped_and_created_again_meanwhile(tmp_path: Path) -> None:
    events = history()
    sink = filled(tmp_path, events[:5])
    for cut in (7, 9, 11):
        created(tmp_path, "posts")
        added(sink, events[:cut])
        assert len(rows_of(tmp_path, "posts")) == (2 if cut < 8 else 3 if cut < 11 else 4)
        asked("view", "drop", "--tables", tmp_path, "posts", "--json")
        sink.fill_new_views()
    assert not (tmp_path / "views" / "posts").exists()


def test_a_writer_that_is_killed_goes_on(tmp_path: Path) -> None:
    """Also between its commits: each names what it has followed."""
    events = history()
    filled(tmp_path, events[:4])
    created(tmp_path, "posts")
    sink = Sink(Tables(tmp_path, EPOCH, ["stream_states"]))
    read_on(sink, feed_rows(events[:8]))  # before the model has another version
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from spark_sink.tables.sink_table import SinkTable\n"
        "from spark_sink.views.keeping import Views\n"
        "upsert = SinkTable._upsert\n"
        "def killed(self, rows, properties):\n"
        "    if sys.argv[2] == 'after':\n"
        "        upsert(self, rows, properties)\n"
        "    os.kill(os.getpid(), 9)\n"
        "SinkTable._upsert = killed\n"
        "Views(Path(sys.argv[1])).keep()\n"
    )
    for when in ("before", "after"):
        command = [sys.executable, "-c", program, str(tmp_path), when]
        killed = forking.run(command)
        assert killed.returncode == -signal.SIGKILL
    sink.fill_new_views()
    created(tmp_path, "anew")
    assert rows_of(tmp_path, "posts") == rows_of(tmp_path, "anew")


NAMES_OF_DELTA = ("_change_type", "_commit_version", "_Commit_timestamp", "__delta_rs_target")


def model_with(names: Sequence[str]) -> Event:
    properties = {name: {"type": "string"} for name in names}
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    content = {"version": "2.0", "name": "M", "interface": False, "implements": []}
    return model_event(KEY, {**content, "schema": schema, "accountRelation": {"type": "list"}})


def test_fields_may_have_the_names_of_deltas_own_columns(tmp_path: Path) -> None:
    model = model_with(NAMES_OF_DELTA)
    posts = [document(model.stream_id(), {name: "v"}, name.encode()) for name in NAMES_OF_DELTA]
    sink = filled(tmp_path, [model, posts[0]])
    created(tmp_path, "v", model.stream_id())
    changed = change(posts[0], replace(f"/{NAMES_OF_DELTA[0]}", "w"))
    added(sink, [model, *posts, changed])
    rows = rows_of(tmp_path, "v")
    for post, name, value in zip(posts, NAMES_OF_DELTA, "wvvv", strict=True):
        assert rows[str(post.stream_id())][f"field{name}"] == value
    table = DeltaTable(tmp_path / "views" / "v")
    assert table.load_cdf(starting_version=table.version()).read_all().num_rows > 0


def test_a_view_that_cannot_be_written_is_left_behind_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(model_columns, "_OF_DELTA", ("none",))  # so delta-rs raises
    monkeypatch.setattr("spark_sink.tables.sink_table.MOST_ROWS", 0)
    model = model_with(["__delta_rs_target"])
    events = [MODEL, PARENT, model, document(model.stream_id(), {"__delta_rs_target": "v"})]
    filled(tmp_path, events)
    created(tmp_path, "posts")
    created(tmp_path, "bad", model.stream_id())
    faults: list[tuple[str, str]] = []
    sink = Sink(Tables(tmp_path, EPOCH), on_view_fault=lambda name, why: faults.append((name, why)))
    events += [POST, change(events[-1], replace("/__delta_rs_target", "w"))]
    added(sink, events)
    added(sink, [*events, document(OF, {"title": "one more"}, b"more")])
    assert [name for name, _ in faults] == ["bad"]
    assert "__delta_rs_target" in faults[0][1]
    assert len(rows_of(tmp_path, "posts")) == 3


def test_programs_see_views_by_flight_sql(tmp_path: Path) -> None:
    events = history()
    sink = filled(tmp_path, events[:5])
    created(tmp_path, "posts")
    with support.served(tmp_path) as url, support.connected(url) as connection:
        assert support.asked(connection, "SELECT count(*) AS n FROM views.posts")[
            "n"
        ].to_pylist() == [2]
        objects = connection.adbc_get_objects(depth="columns", db_schema_filter="views").read_all()
        (schema,) = objects.to_pylist()[0]["catalog_db_schemas"]
        names = {table["table_name"]: table for table in schema["db_schema_tables"]}
        assert set(names) == {"posts", "posts_feed"}
        assert "likes" in {column["column_name"] for column in names["posts"]["table_columns"]}
        sql = "SELECT stream_id, title FROM views.posts_feed LIMIT 3"
        with support.following(connection, sql) as feed:
            rows = [next(feed), next(feed)]
            added(sink, events[:6])
            rows.append(next(feed))
        assert [row["title"] for row in rows] == ["one", "two", "uno"]


def test_what_is_wrong_is_reported(tmp_path: Path) -> None:
    filled(tmp_path, [MODEL, POST])
    filled(tmp_path / "elsewhere", [MODEL, POST])
    created(tmp_path / "elsewhere", "posts")
    for arguments, what in (
        (["create", "nonsense"], "is not a StreamID"),
        (["create", str(POST.stream_id())], "is not the StreamID of a model"),
        (["create", str(StreamId(2, POST.cid))], "is not in the tables"),
        (["create", str(OF), "--as", "../x"], "cannot be the name of a view"),
        (["create", str(OF), "--as", "stream_tips"], "cannot be the name of a view"),
        (["create", str(OF), "--as", "tangles"], "cannot be the name of a view"),
        (["create", str(OF), "--as", "x" * 500], f"'{'x' * 80}' cannot be the name of a view"),
        (["create", str(OF), "--as", "spark_sink_refused"], "cannot be the name of a view"),
        (["drop", "posts"], "there is no view posts"),
        (["drop", "../../elsewhere/views/posts"], "there is no view ../../elsewhere/views/posts"),
    ):
        result = invoked("view", *arguments, "--tables", tmp_path)
        assert (result.exit_code != 0, what in result.stderr) == (True, True), result.output
    create = ("view", "create", OF, "--tables", tmp_path)
    told(*create)
    assert "there is a view blog_post already" in told(*create, code=1)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from(["type", "properties", "items", "$ref", "anyOf", "format", "enum", "const"])
schemas = st.recursive(
    st.sampled_from(
        ["string", "integer", "object", "array", "#/properties/a", "#", "date", None, 1]
    )
    | st.lists(st.sampled_from(["string", "null", "number"])),
    lambda inner: (
        st.dictionaries(names | st.sampled_from(["a", "A", "b c"]), inner, max_size=4)
        | st.lists(inner, max_size=2)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=4), schemas, max_size=4), st.data())
def test_any_schema_has_columns_and_any_content_values(properties, data):
    columns = Columns({"schema": {"properties": properties}})
    members = dict.fromkeys(properties, values)
    content = data.draw(values | st.fixed_dictionaries({}, optional=members))
    fields, misfits, _ = columns.values(content)
    row = {"stream_id": "k", "stream_cid": b"", "controller": "", "position": 1}
    row |= {"misfits": [{"field": f, "reason": r} for f, r in misfits], "stream_cid_partition": 0}
    schema = view_schema(columns.fields)
    table = pa.Table.from_pylist([row | fields], schema=schema)
    assert table.num_rows == 1
    lowered = [name.lower() for name in schema.names]
    assert len(set(lowered)) == len(lowered)


WELL_FORMED = {
    "string": st.text(),
    "integer": st.integers(-(2**63), 2**63 - 1),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
}


@given(st.data())
def test_what_conforms_to_the_schema_has_no_misfits(data: st.DataObject) -> None:
    """As the node itself checks documents."""
    kinds = data.draw(st.lists(st.sampled_from(sorted(WELL_FORMED)), min_size=1, max_size=4))
    schema = {"properties": {f"f{i}": {"type": kind} for i, kind in enumerate(kinds)}}
    content = {f"f{i}": data.draw(WELL_FORMED[kind]) for i, kind in enumerate(kinds)}
    fields, misfits, _ = Columns({"schema": schema}).values(content)
    assert misfits == []
    assert fields == content


def test_empty_objects_take_no_more_values_than_a_row_may_have() -> None:
    """One byte of an event each, and in Arrow a value for each member of the schema."""
    members = {f"m{number}": {"type": "integer"} for number in range(20)}
    items = {"type": "array", "items": {"type": "object", "properties": members}}
    columns = Columns({"schema": {"properties": {"a": items, "b": {"type": "integer"}}}})
    few = columns.values({"a": [{}] * 10, "b": 1}, 1_000)
    assert (len(few[0]["a"]), few[0]["b"], few[1:]) == (10, 1, ([], 212))
    fields, misfits, count = columns.values({"a": [{}] * 1_000, "b": 1}, 1_000)
    assert (fields, count) == ({"a": None, "b": 1}, 1_002)
    assert misfits == [("$.a", "the row would have more than 1,000 values")]


def test_many_fields_of_one_name_take_no_time() -> None:
    """Columns are named in plain letters; with each name looked for from the start, 2,000 that are
    alike took 4 s, and 20,000 hours: the process that writes all tables names them."""
    names = [chr(0x100 + i // 200) + chr(0x400 + i % 200) for i in range(20_000)]
    many = {"properties": {name: {"type": "string"} for name in names}}
    started = time.process_time()
    alike = Columns({"schema": many}).columns
    (nested,) = Columns({"schema": {"properties": {"a": many}}}).columns
    assert time.process_time() - started < 2
    assert [column.name for column in alike[:3]] == ["__", "___", "____"]
    assert nested.kind.type == pa.string()  # which it would be after 2,000 fields, one by one
