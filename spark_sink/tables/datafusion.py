"""Questions to Delta tables in SQL, answered by the DataFusion that delta-rs carries.

Not by way of `DeltaTable.to_pyarrow_table`: a process that used it was seen to abort at its end.
"""

from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from spark_sink.errors import cannot_read

_PLAIN_TYPES: Final = {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}


def query(tables: dict[str, DeltaTable], sql: str) -> pa.Table:
    """What DataFusion answers to a SELECT, its views of text and bytes made plain columns.

    Raises:
        TablesError: a file of a table is not there or damaged.
    """
    builder = QueryBuilder()
    for name, table in tables.items():
        builder.register(name, table)
    try:
        answer = pa.table(builder.execute(sql).read_all())
    except Exception as error:  # what the reader of the answer raises is of no class of its own
        raise cannot_read(error) from error
    return answer.cast(pa.schema([_plain(field) for field in answer.schema]))


def _plain(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_map(kind):
        kind = pa.map_(_plain(kind.key_field).type, _plain(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_plain(kind.value_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_plain(each) for each in kind])
    else:
        kind = _PLAIN_TYPES.get(kind, kind)
    return field.with_type(kind)
