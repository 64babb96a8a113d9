"""Tables of Arrow that are large: too large to be in memory at once, or for one piece of a column.

A plain binary column holds 2 GB in one piece, and to put rows in order Arrow makes them one piece.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_LARGE: Final = {pa.binary(): pa.large_binary(), pa.string(): pa.large_string()}
# Bytes of a slice, on average.
_SLICE: Final = 64 * 1024 * 1024


def ordered_slices(table: pa.Table, names: Sequence[str], most_rows: int) -> Iterator[pa.Table]:
    """The rows in the order of some columns, so many at a time at most; fewer where they are long.

    Bytes and text come as the large types, which are the same for Python.
    """
    order = pc.sort_indices(table.select(names), [(name, "ascending") for name in names])
    whole = with_large_columns(table).combine_chunks()
    rows = max(1, min(most_rows, _SLICE * len(order) // max(1, whole.nbytes)))
    for start in range(0, len(order), rows):
        yield whole.take(order.slice(start, rows))


def in_portions(tables: Iterable[pa.Table], most: int) -> Iterator[pa.Table]:
    """The rows of some tables as they come, so many bytes in memory at a time, or one table's."""
    kept: list[pa.Table] = []
    size = 0
    for table in tables:
        if size and size + table.nbytes > most:
            yield pa.concat_tables(kept)
            kept, size = [], 0
        kept.append(table)
        size += table.nbytes
    if kept:
        yield pa.concat_tables(kept)


def with_large_columns(table: pa.Table) -> pa.Table:
    """The same rows, bytes and text of the large types; nothing but lengths is copied."""
    fields = [field.with_type(_LARGE.get(field.type, field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))
