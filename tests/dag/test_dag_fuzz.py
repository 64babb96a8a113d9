"""Whatever is inside of an event about a DAG, the index takes it or counts it, and goes on."""

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from dag_samples import KEYS, NETWORK, NOW, event_with
from hypothesis import given
from hypothesis import strategies as st

from recon_node import feed_index
from recon_node.ceramic import EventKind
from recon_node.dag import dag_index
from recon_node.dag.dag_events import Identifier, sort_bytes
from recon_node.dag.protocol.publishing import make_publish
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, DAG_PB, RAW, car, dag_cbor
from recon_node.store import FeedRow

KEY = KEYS[0]
ROOT = CID.of(DAG_CBOR, b"root")
MINE = Identifier(bytes(KEY.verify_key))
PUBLISH = make_publish(KEY, MINE.key, ROOT, ROOT, prior=None, expires=None).block

cids = st.builds(CID.of, st.sampled_from([DAG_CBOR, DAG_JOSE, DAG_PB, RAW, 0x0129]), st.binary())
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text() | cids,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
operations = st.fixed_dictionaries(
    {"type": st.sampled_from(["append", "join", "publish", "other"])},
    optional={
        "shards": st.lists(cids) | values,
        "forks": st.lists(cids) | values,
        "id": st.just(MINE.key) | values,
        "link": cids | values,
        "origin": cids | values,
        "proof": st.text() | values,
    },
)
replicas = st.builds(dag_cbor.encode, st.fixed_dictionaries({"change": operations}))


@st.composite
def _changed(draw: st.DrawFn, block: bytes) -> bytes:
    at = draw(st.integers(0, len(block) - 1))
    return block[:at] + draw(st.binary(max_size=3)) + block[at + draw(st.integers(0, 3)) :]


def _shard(codec: int, block: bytes) -> bytes:
    cid = CID.of(codec, block)
    return car.encode([cid], {cid: block})


shards = st.builds(
    _shard,
    st.sampled_from([DAG_CBOR, DAG_JOSE, DAG_PB, RAW, 0x0129]),
    st.binary() | st.builds(dag_cbor.encode, values) | st.just(b"\x81" * 5000 + b"\x00"),
)
contents = (
    st.fixed_dictionaries({"shard": shards | st.binary()})
    | st.fixed_dictionaries({"replica": replicas | _changed(PUBLISH) | st.binary()})
    | values
)
subjects = st.sampled_from([bytes(ROOT), sort_bytes(MINE)]) | st.binary(min_size=1, max_size=60)

TAKE = partial(dag_index.take, now=NOW)


def _row(position: int, subject: bytes, data: Any) -> FeedRow:
    event = event_with(subject, data)
    event_id = event.event_id(NETWORK, event.header, 0)
    return FeedRow(position, event_id, event.cid, event.cid, EventKind.INIT, event.car)


@given(st.lists(st.tuples(subjects, contents), max_size=5))
def test_no_event_stops_the_index(events: list[tuple[bytes, Any]]) -> None:
    rows = [_row(number, *event) for number, event in enumerate(events, 1)]
    with database() as connection:
        ignored = feed_index.take_step(connection, TAKE, rows, len(rows))
        assert feed_index.position(connection) == len(rows)
        [(counted,)] = connection.execute("SELECT coalesce(sum(count), 0) FROM ignored")
        assert counted == ignored


def test_an_error_that_nobody_foresaw_leaves_out_one_event() -> None:
    rows = [_row(at, sort_bytes(MINE), {"replica": b"junk"}) for at in range(1, 4)]

    def take(connection: sqlite3.Connection, rows: Sequence[FeedRow]) -> int:
        taken = TAKE(connection, rows)
        if any(row.position == 2 for row in rows):
            raise OverflowError
        return taken

    with database() as connection:
        assert feed_index.take_step(connection, take, rows, 9) == 3
        assert feed_index.position(connection) == 9
        assert connection.execute("SELECT count FROM ignored").fetchone() == (2,)

        def fail(_: sqlite3.Connection, __: Sequence[FeedRow]) -> int:
            raise sqlite3.OperationalError("disk I/O error")

        with pytest.raises(sqlite3.OperationalError):
            feed_index.take_step(connection, fail, rows, 12)
        assert feed_index.position(connection) == 9


def test_deeply_nested_blocks_are_harmless() -> None:
    """Deeper than Python can go down; and links at the bottom of it."""
    deep = b"\x81" * 100_000 + b"\x00"
    rows = [_row(1, bytes(ROOT), {"shard": _shard(DAG_CBOR, deep)})]
    rows.append(_row(2, bytes(ROOT), {"replica": deep}))
    with database() as connection:
        assert TAKE(connection, rows) in (1, 2)


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """An empty index in memory: making a file for each of many examples takes most of the time."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        empty_index().backup(connection)
        yield connection


@cache
def empty_index() -> sqlite3.Connection:
    with tempfile.TemporaryDirectory() as directory:
        connection = sqlite3.connect(":memory:")
        with closing(dag_index.FILE.open(Path(directory), "epoch", 1000)) as index_file:
            index_file.backup(connection)
    return connection
