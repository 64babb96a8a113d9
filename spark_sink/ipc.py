"""Arrow data as nodes and clients send it: messages of Arrow's IPC format, in two parts.

A header (flatbuffer) says what the body has. In a stream or a file, and in the `schema` fields of
Flight's messages, both follow a prefix of eight bytes.
"""

import io
import struct
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_CONTINUATION: Final = 0xFFFFFFFF
_ALIGNMENT: Final = 8
_PREFIX: Final = 8
"""Bytes before a header: a mark, and the size of the header."""
_END_OF_STREAM: Final = struct.pack("<II", _CONTINUATION, 0)
_MAX_HEADER: Final = 1024 * 1024
"""Bytes of a header that is read."""
_MAX_BODY: Final = 64 * 1024 * 1024
"""Bytes of a body that is read; those of a node's feed have less than a tenth of it."""
_PIECE_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a message: many clients refuse messages of more than 4 MiB."""

_SCHEMA: Final = 1
"""The kind of a message with a schema."""
_BATCH: Final = 3
"""The kind of a message with rows."""

_PLAIN: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_interval,
    pa.types.is_null,
)
"""Types of which a value has no others in it, and no more bytes than it comes with."""

Parts = tuple[bytes, bytes]
"""The header and the body of a message."""


def schema_bytes(schema: pa.Schema) -> bytes:
    """Return a schema for the `schema` field of a message."""
    return bytes(schema.serialize())


def read_schema(data: bytes) -> pa.Schema:
    """Return the schema in the `schema` field of a message."""
    return pa.ipc.read_schema(pa.py_buffer(data))


def parts_of(item: pa.Schema | pa.RecordBatch) -> Parts:
    """Return the message of a schema, or of a batch without dictionaries."""
    message = pa.ipc.read_message(item.serialize())
    body = message.body
    return bytes(message.metadata), b"" if body is None or not body.size else bytes(body)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces that every client accepts; a single row is never cut."""
    if batch.nbytes <= _PIECE_BYTES or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half))
    yield from pieces(batch.slice(half))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without dictionaries, which DuckDB makes of ENUMs."""
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of `plain_schema`."""
    if batch.schema == schema:
        return batch
    columns = [pc.cast(batch.column(i), field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def read_batches(messages: list[Parts]) -> pa.Table:
    """Return the rows in a client's messages, the first of which has the schema.

    Arrow reads any bytes, but only the frames are checked by that: offsets may lead anywhere in
    this process, a compressed body may have any size, and a nested value any number of nulls. So
    only plain values are taken, uncompressed, and all of them are checked before one is touched.

    Raises:
        pa.ArrowInvalid: they are not such messages.
    """
    stream = io.BytesIO()
    for header, body in messages:
        padding = bytes(-len(header) % _ALIGNMENT)
        stream.write(struct.pack("<II", _CONTINUATION, len(header) + len(padding)))
        stream.write(header + padding + body)
    stream.write(_END_OF_STREAM)
    stream.seek(0)
    schema, batches = read_stream(stream)
    for field in schema:
        if not any(is_plain(field.type) for is_plain in _PLAIN):
            raise pa.ArrowInvalid(f"{field.name} is a {field.type}: bind plain values")
    rows = pa.Table.from_batches(batches, schema)
    rows.validate(full=True)
    return rows


def read_stream(file: io.BufferedIOBase) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of a stream, and its batches as they arrive, which are not validated.

    Each header is judged before its body is read, so no message takes much more memory than its
    bytes, or than `_MAX_BODY`.

    Raises:
        pa.ArrowInvalid: it is not a stream of a schema and uncompressed rows, or was cut off.
    """
    schema = pa.ipc.read_schema(_read_message(file, _exactly(file, _PREFIX), _SCHEMA))
    prefixes = iter(lambda: _exactly(file, _PREFIX), _END_OF_STREAM)
    messages = (_read_message(file, prefix, _BATCH) for prefix in prefixes)
    return schema, (pa.ipc.read_record_batch(message, schema) for message in messages)


def _read_message(file: io.BufferedIOBase, prefix: bytes, kind: int) -> pa.Buffer:
    mark, size = struct.unpack("<II", prefix)
    if mark != _CONTINUATION or size > _MAX_HEADER:
        raise pa.ArrowInvalid("a message does not begin as one")
    start = prefix + _exactly(file, size)
    message = pa.allocate_buffer(len(start) + _body_size(start[_PREFIX:], kind))
    view = memoryview(message).cast("B")
    view[: len(start)] = start
    if file.readinto(view[len(start) :]) < len(view) - len(start):
        raise _cut_off()
    return message


def _exactly(file: io.BufferedIOBase, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise _cut_off()
    return data


def _cut_off() -> pa.ArrowInvalid:
    return pa.ArrowInvalid("the stream was cut off")


def _body_size(header: bytes, kind: int) -> int:
    """Return how many bytes the body of a message has, which must be of a kind and uncompressed.

    The header is a flatbuffer (https://flatbuffers.dev/internals), and its tables are those of
    Arrow's Message.fbs.
    """
    try:
        (root,) = struct.unpack_from("<I", header)
        at_kind, at_body, at_size, at_extra = (_field(header, root, n) for n in (1, 2, 3, 4))
        if at_kind is None or at_body is None or header[at_kind] != kind:
            raise pa.ArrowInvalid("these are not a schema and the rows of it")
        (offset,) = struct.unpack_from("<I", header, at_body)
        compression = _field(header, at_body + offset, 3)
        # Arrow 0.17 noted it in the message's own metadata, and pyarrow still follows that.
        if kind == _BATCH and (compression is not None or at_extra is not None):
            raise pa.ArrowInvalid("the rows are compressed: send them as they are")
        size: int = struct.unpack_from("<q", header, at_size)[0] if at_size is not None else 0
    except (struct.error, IndexError):
        raise pa.ArrowInvalid("a header is broken") from None
    if not 0 <= size <= _MAX_BODY:
        raise pa.ArrowInvalid(f"a message of {size} bytes; the limit is {_MAX_BODY}")
    return size


def _field(buffer: bytes, table: int, number: int) -> int | None:
    """Return where a field of a flatbuffer's table is; None if the table does not have it."""
    (back,) = struct.unpack_from("<i", buffer, table)
    entry = 2 * number + 4
    (size,) = struct.unpack_from("<H", buffer, table - back)
    if entry >= size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, table - back + entry)
    return table + int(offset) if offset else None


def value_bytes(row: pa.Table) -> bytes:
    """Write named values: a row, or none."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, row.schema) as writer:
        writer.write_table(row)
    return bytes(stream.getvalue())


def read_values(data: bytes) -> dict[str, Any]:
    """Read what `value_bytes` wrote.

    Raises:
        pa.ArrowInvalid: the bytes are something else.
    """
    rows = pa.ipc.open_stream(data).read_all().to_pylist()
    return dict(rows[0]) if rows else {}
