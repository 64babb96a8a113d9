"""Writers of rows of streams, for processes that import no more than they need."""

import hashlib
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pyarrow as pa

from spark_sink.errors import ConflictError
from spark_sink.schema import TABLES, partition_of
from spark_sink.tables import delta_log, leaves
from spark_sink.tables.location import Location
from spark_sink.tables.sink_table import SinkTable

SPEC = TABLES["stream_states"]


def cid_of(stream: int) -> bytes:
    return b"\x01\x71\x12\x20" + hashlib.sha256(stream.to_bytes(4, "big")).digest()


def row(stream: int, value: int) -> dict[str, Any]:
    cid = cid_of(stream)
    return {
        "stream_id": f"k{cid.hex()}",
        "stream_cid": cid,
        "stream_type": 3,
        "controller": "did:key:z6Mk",
        "dimensions": [("model", b"model"), ("none", None)],
        "event_cid": cid,
        "event_type": "data",
        "event_height": value,
        "data": b"%d" % value * 9,
        "position": 1,
        "stream_cid_partition": partition_of(cid),
    }


def table_of(values: dict[int, int]) -> pa.Table:
    return pa.Table.from_pylist([row(*item) for item in values.items()], SPEC.schema)


def put_and_die(path: Location, epoch: str, values: dict[int, int], steps: int) -> None:
    """In a process: put rows; SIGKILL after this many files, before or after one is there."""
    at = count()

    def or_die() -> None:
        if next(at) == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(function: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            or_die()
            function(*args)

        return call

    table = SinkTable(SPEC, path, epoch)
    leaves._LEAF_BYTES = 2_000  # type: ignore[misc]
    leaves.put_object = dying(leaves.put_object)
    delta_log.put_if_absent = dying(delta_log.put_if_absent)
    table.put(table_of(values), 2)
    os.kill(os.getpid(), signal.SIGKILL)


def put_often(path: Location, epoch: str, stream: int, times: int) -> None:
    """In a process: put a row often, again if another process came first."""
    value = 0
    while value < times:
        table = SinkTable(SPEC, path, epoch)
        with suppress(ConflictError):
            table.put(table_of({stream: value + 1}), table.position + 1)
            value += 1
