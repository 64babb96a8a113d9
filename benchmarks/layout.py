"""What an engine has to read of `stream_states` and of a view, by the order of the rows.

    python -m benchmarks.layout [--rows N] [--models N] [--partitions N] [--json FILE]

Synthetic documents, 50 of each controller, are written as Delta tables: `stream_states` as the
pipeline leaves it after `spark-sink optimize` (sorted by stream), and a typed view of one of the
models; then the same rows in files sorted in other ways, with a column for the model. For each
question, the statistics of Delta and Parquet tell which files an engine opens and which row groups
it reads: DuckDB, Spark, Polars and Trino all prune by these. Reading is counted as the footers of
the opened files and the pages of the columns that the question is about:

- `stream`: all columns of one stream, with its partition; `anywhere`: without
- `controller`: `data` of what a controller wrote
- `model`: `data` of the documents of a model; in the view, one field of them

Streams are spread over the 16 partitions by their hashes, so one is like the other. With
`--partitions 1`, only one is written, and what is needed of all of them is 16 times as much.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.report import Row, count, new_file, progress, show
from spark_sink.schema import PARTITION_COLUMN, PARTITIONS, TABLES, TableSpec, view_schema
from spark_sink.tables.delta import FeedTable
from spark_sink.tables.delta_log import names_of
from spark_sink.tables.staging import ROW_GROUP

_PER_CONTROLLER: Final = 50
_PER_FILE: Final = 100_000
"""Rows of a file: about as many as `optimize` puts into its 32 MB."""
_CID: Final = bytes.fromhex("01850112")
_MODEL: Final = "model"
_FOOTER: Final = 8
"""Bytes after a footer, which say how long it is."""
_ORDERS: Final = {
    "controller, stream": ("controller", "stream_cid"),
    "model, stream": (_MODEL, "stream_cid"),
}


@dataclass(frozen=True, slots=True)
class Documents:
    """Synthetic rows of `stream_states`, the same for each seed.

    Args:
        rows: in all partitions together.
        models: of which each has about as many documents.
        partitions: that are written.
    """

    rows: int
    models: int
    partitions: int = PARTITIONS

    @property
    def names(self) -> list[bytes]:
        """The StreamIDs of the models, as bytes."""
        random = np.random.default_rng(1)
        return [b"\xce\x01\x02" + _CID + random.bytes(32) for _ in range(self.models)]

    def partition(self, number: int) -> pa.Table:
        """Return the rows of a partition, with a further column for the model."""
        random = np.random.default_rng(100 + number)
        rows = self.rows // PARTITIONS
        digests = random.integers(0, 256, (rows, 32), np.uint8)
        digests[:, -1] = digests[:, -1] // PARTITIONS * PARTITIONS + number
        cids = _binary(digests)
        controllers = random.integers(0, max(1, self.rows // _PER_CONTROLLER), rows)
        dids = _text("did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2Q", controllers)
        model = pa.array(self.names, pa.binary()).take(
            pa.array(random.integers(0, self.models, rows))
        )
        titles = _text('{"metadata":{"shouldIndex":true},"content":{"title":"', digests[:, 0])
        bodies = _text('","body":"', random.integers(0, 2**62, rows))
        data = pc.binary_join_element_wise(titles, bodies, "lorem ipsum dolor sit amet", '"}}', "")
        positions = pa.array(random.integers(1, self.rows, rows), pa.int64())
        columns = {
            "stream_id": _text("kjzl6kcym7w8y", random.integers(0, 2**62, rows)),
            "stream_cid": cids,
            "stream_type": pa.repeat(pa.scalar(3, pa.int8()), rows),
            "controller": dids,
            "dimensions": _dimensions(model),
            "event_cid": _binary(random.integers(0, 256, (rows, 32), np.uint8)),
            "event_type": pa.repeat("data", rows),
            "event_height": pa.array(random.integers(0, 9, rows), pa.int32()),
            "data": data.cast(pa.binary()),
            "position": positions,
            PARTITION_COLUMN: pa.repeat(pa.scalar(number, pa.int32()), rows),
        }
        schema = TABLES["stream_states"].schema
        table = pa.table([columns[name] for name in schema.names], schema=schema)
        return table.append_column(_MODEL, model)


def _binary(digests: np.ndarray) -> pa.Array:
    size = len(_CID) + digests.shape[1]
    whole = np.empty((len(digests), size), np.uint8)
    whole[:, : len(_CID)] = np.frombuffer(_CID, np.uint8)
    whole[:, len(_CID) :] = digests
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), len(digests), [None, pa.py_buffer(whole.tobytes())]
    )
    return fixed.cast(pa.binary())


def _text(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _dimensions(model: pa.Array) -> pa.Array:
    rows = len(model)
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32))
    kind = TABLES["stream_states"].schema.field("dimensions").type
    return pa.MapArray.from_arrays(offsets, pa.repeat(_MODEL, rows), model, kind)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a table: paths relative to it."""

    directory: Path
    names: Sequence[str]
    times: int
    """How many times as many there are in the whole table."""

    @property
    def size(self) -> int:
        """In bytes, of the whole table."""
        return self.times * sum((self.directory / name).stat().st_size for name in self.names)

    def needed(
        self,
        columns: Sequence[str] | None,
        column: str | None = None,
        value: bytes | str | None = None,
        partition: int | None = None,
    ) -> Row:
        """Return how many files, row groups and MB are needed for a question.

        Args:
            columns: that are read; None: all.
            column: with the condition; None: without statistics, so all row groups are read.
            value: that the column must have.
            partition: the only one that is asked for.
        """
        files = groups = size = 0
        for name in self.names:
            if partition is not None and f"{PARTITION_COLUMN}={partition}/" not in name:
                continue
            metadata = pq.read_metadata(self.directory / name)
            files += 1
            size += metadata.serialized_size + _FOOTER
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                chunks = [group.column(at) for at in range(group.num_columns)]
                if column is not None and not _may_have(chunks, column, value):
                    continue
                groups += 1
                size += sum(
                    chunk.total_compressed_size
                    for chunk in chunks
                    if columns is None or chunk.path_in_schema.partition(".")[0] in columns
                )
        times = self.times if partition is None else 1
        return {"files": times * files, "row_groups": times * groups, "mb": times * size / 1e6}


def _may_have(chunks: Sequence[pq.ColumnChunkMetaData], column: str, value: object) -> bool:
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == column)
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min <= value <= statistics.max)


def as_table(documents: Documents, directory: Path) -> Files:
    """Write `stream_states` as it is after `optimize`: sorted by stream, in files of one size."""
    spec = TABLES["stream_states"]
    target = FeedTable(spec, directory, "benchmark")

    def rows() -> Iterator[pa.Table]:
        for number in range(documents.partitions):
            table = documents.partition(number).drop_columns(_MODEL).sort_by("stream_cid")
            for start in range(0, table.num_rows, _PER_FILE):
                yield table.slice(start, _PER_FILE)

    target.replace_rows(spec, rows(), documents.rows, ("benchmark", 0))
    return Files(directory, names_of(target._table), PARTITIONS // documents.partitions)


def as_view(documents: Documents, model: bytes, directory: Path) -> Files:
    """Write a typed view of a model."""
    fields = [pa.field("title", pa.string()), pa.field("body", pa.string())]
    schema = view_schema(fields)
    spec = TableSpec("documents", schema, "stream_cid", "benchmark")
    target = FeedTable(spec, directory, "benchmark", for_replacement=True)

    def rows() -> Iterator[pa.Table]:
        for number in range(documents.partitions):
            table = documents.partition(number)
            table = table.filter(pc.equal(table[_MODEL], pa.scalar(model)))
            columns = {name: table[name] for name in table.schema.names}
            columns["title"] = pc.binary_slice(table["data"], 50, 60).cast(pa.string())
            columns["body"] = pc.binary_slice(table["data"], 60, 200).cast(pa.string())
            columns["should_index"] = pa.repeat(pa.scalar(True), table.num_rows)
            columns["misfits"] = pa.array([[]] * table.num_rows, schema.field("misfits").type)
            yield pa.table([columns[name] for name in schema.names], schema=schema)

    target.replace_rows(spec, rows(), documents.rows, ("benchmark", 0))
    return Files(directory, names_of(target._table), PARTITIONS // documents.partitions)


def in_order(documents: Documents, order: Sequence[str], directory: Path) -> Files:
    """Write the same rows, with a column for the model, in files that are sorted in another way."""
    names = []
    for number in range(documents.partitions):
        folder = directory / f"{PARTITION_COLUMN}={number}"
        folder.mkdir(parents=True)
        table = documents.partition(number).drop_columns(PARTITION_COLUMN)
        table = table.sort_by([(name, "ascending") for name in order])
        for start in range(0, table.num_rows, _PER_FILE):
            path = folder / f"{start}.parquet"
            pq.write_table(
                table.slice(start, _PER_FILE),
                path,
                row_group_size=ROW_GROUP,
                use_dictionary=["controller", _MODEL],
            )
            names.append(str(path.relative_to(directory)))
    return Files(directory, names, PARTITIONS // documents.partitions)


def measured(documents: Documents, place: Path) -> Iterator[Row]:
    """Write each layout, yield what each question needs of it, and delete it."""
    document = documents.partition(0).slice(documents.rows // PARTITIONS // 2, 1).to_pylist()[0]
    cid, did, model = document["stream_cid"], document["controller"], document[_MODEL]
    orders = {"stream": None, **_ORDERS, "view": None}
    for name, order in orders.items():
        progress(f"{name}, {documents.rows:,} rows")
        directory = place / name.replace(", ", "-")
        if name == "view":
            files = as_view(documents, model, directory)
            questions = {
                "controller": files.needed(["title", "controller"], "controller", did),
                "model": files.needed(["title"]),
            }
        else:
            files = (
                as_table(documents, directory)
                if order is None
                else in_order(documents, order, directory)
            )
            by_map = order is None
            questions = {
                "stream": files.needed(None, "stream_cid", cid, partition=0),
                "anywhere": files.needed(None, "stream_cid", cid),
                "controller": files.needed(["data", "controller"], "controller", did),
                "model": files.needed(["data", "dimensions"])
                if by_map
                else files.needed(["data", _MODEL], _MODEL, model),
            }
        for question, needed in questions.items():
            yield {
                "rows": documents.rows,
                "sorted_by": name,
                "question": question,
                "table_mb": files.size / 1e6,
                **needed,
            }
        shutil.rmtree(directory)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.layout",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--rows", type=count, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--models", type=count, default=50, help="default: %(default)s")
    parser.add_argument("--partitions", type=int, choices=(1, 2, 4, 8, 16), default=PARTITIONS)
    parser.add_argument("--directory", type=Path, help="for the tables; default: a temporary one")
    parser.add_argument("--json", type=new_file)
    options = parser.parse_args()
    documents = Documents(options.rows, options.models, options.partitions)
    with tempfile.TemporaryDirectory(dir=options.directory) as place:
        rows = list(measured(documents, Path(place)))
    show("What has to be read", rows, options.json)


if __name__ == "__main__":
    main()
