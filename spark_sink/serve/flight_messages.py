"""The messages of Arrow Flight and Flight SQL that the server reads and writes.

They are Protocol Buffers. The tables below have the names, numbers and types of their fields, as in
`Flight.proto` and `FlightSql.proto` (https://arrow.apache.org/docs/format/FlightSql.html), and the
classes are made from them: no maintained Python package has them, and generated code would be ten
times as long, with hundreds of messages and options that a read-only server never sees. They are in
a pool of their own, so that they cannot clash with those of another library.

A command of Flight SQL travels inside a `google.protobuf.Any`, which names its message.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

_F = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
    "bool": _F.TYPE_BOOL,
    "int32": _F.TYPE_INT32,
    "uint32": _F.TYPE_UINT32,
    "int64": _F.TYPE_INT64,
    "uint64": _F.TYPE_UINT64,
}
_PACKAGE: Final = "spark_sink.flight"

_KEY_REFERENCE: Final = (
    "string pk_catalog = 1; string pk_db_schema = 2; string pk_table = 3; "
    "string fk_catalog = 4; string fk_db_schema = 5; string fk_table = 6"
)
_TABLE: Final = "string catalog = 1; string db_schema = 2; string table = 3"
_QUERY: Final = "string query = 1; bytes transaction_id = 2"
_HANDLE: Final = "bytes prepared_statement_handle = 1"
_FLIGHT: Final = {
    "Empty": "",
    "HandshakeRequest": "uint64 protocol_version = 1; bytes payload = 2",
    "HandshakeResponse": "uint64 protocol_version = 1; bytes payload = 2",
    "ActionType": "string type = 1; string description = 2",
    "Criteria": "bytes expression = 1",
    "Action": "string type = 1; bytes body = 2",
    "Result": "bytes body = 1",
    "SchemaResult": "bytes schema = 1",
    "FlightDescriptor": "int32 type = 1; bytes cmd = 2; repeated string path = 3",
    "Ticket": "bytes ticket = 1",
    "FlightEndpoint": "Ticket ticket = 1",
    "FlightInfo": "bytes schema = 1; FlightDescriptor flight_descriptor = 2; "
    "repeated FlightEndpoint endpoint = 3; int64 total_records = 4; int64 total_bytes = 5; "
    "bool ordered = 6",
    "FlightData": "FlightDescriptor flight_descriptor = 1; bytes data_header = 2; "
    "bytes app_metadata = 3; bytes data_body = 1000",
    "PutResult": "bytes app_metadata = 1",
    "Any": "string type_url = 1; bytes value = 2",
}
"""The messages of Flight: their fields as in the .proto file, without the punctuation of blocks."""
_SQL: Final = {
    "CommandGetCatalogs": "",
    "CommandGetDbSchemas": "string catalog = 1; string db_schema_filter_pattern = 2",
    "CommandGetTables": "string catalog = 1; string db_schema_filter_pattern = 2; "
    "string table_name_filter_pattern = 3; repeated string table_types = 4; "
    "bool include_schema = 5",
    "CommandGetTableTypes": "",
    "CommandGetSqlInfo": "repeated uint32 info = 1",
    "CommandGetXdbcTypeInfo": "int32 data_type = 1",
    "CommandGetPrimaryKeys": _TABLE,
    "CommandGetExportedKeys": _TABLE,
    "CommandGetImportedKeys": _TABLE,
    "CommandGetCrossReference": _KEY_REFERENCE,
    "CommandStatementQuery": _QUERY,
    "CommandStatementUpdate": _QUERY,
    "CommandPreparedStatementQuery": _HANDLE,
    "CommandPreparedStatementUpdate": _HANDLE,
    "TicketStatementQuery": "bytes statement_handle = 1",
    "ActionCreatePreparedStatementRequest": _QUERY,
    "ActionCreatePreparedStatementResult": _HANDLE
    + "; bytes dataset_schema = 2; bytes parameter_schema = 3",
    "ActionClosePreparedStatementRequest": _HANDLE,
    "DoPutPreparedStatementResult": _HANDLE,
}
"""The messages of Flight SQL, in the same way."""
_TYPE_URL: Final = "type.googleapis.com/arrow.flight.protocol.sql."

Message = Any
"""A message with fields that only its table knows."""


def _classes() -> dict[str, type[message.Message]]:
    # By this edition every field knows whether it was set, and text is UTF-8 or the message is
    # malformed; the bytes are those of proto3.
    file = descriptor_pb2.FileDescriptorProto(
        name="spark_sink/flight.proto",
        package=_PACKAGE,
        syntax="editions",
        edition=descriptor_pb2.EDITION_2023,
    )
    for name, fields in {**_FLIGHT, **_SQL}.items():
        described = file.message_type.add(name=name)
        for field in filter(None, fields.split("; ")):
            *repeated, kind, label, _, number = field.split()
            added = described.field.add(name=label, number=int(number))
            added.label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            added.type = _SCALARS.get(kind, _F.TYPE_MESSAGE)
            if kind not in _SCALARS:
                added.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in {**_FLIGHT, **_SQL}
    }


_CLASSES: Final = _classes()


class MalformedError(ValueError):
    """Bytes that are not the message that they should be."""


def new(name: str, **fields: Any) -> Message:
    """Make a message by its name."""
    return _CLASSES[name](**fields)


def parsed(name: str, data: bytes) -> Message:
    """Parse a message by its name.

    Raises:
        MalformedError: the bytes are not such a message.
    """
    result = _CLASSES[name]()
    try:
        result.ParseFromString(data)
    except message.DecodeError:
        raise MalformedError(f"the message is not a {name}") from None
    return result


def packed(command: Message) -> bytes:
    """Return a command of Flight SQL as a serialised `Any`."""
    url = _TYPE_URL + command.DESCRIPTOR.name
    data: bytes = new("Any", type_url=url, value=command.SerializeToString()).SerializeToString()
    return data


def unpacked(data: bytes) -> Message:
    """Return the command of Flight SQL in a serialised `Any`.

    Raises:
        MalformedError: it is not one, or not one that the server knows.
    """
    envelope = parsed("Any", data)
    _, separator, name = envelope.type_url.rpartition(_TYPE_URL.partition("/")[2])
    if not separator:
        raise MalformedError("the request is not a command of Flight SQL")
    if name not in _SQL:
        raise MalformedError(f"the command {name[:100]} is not supported")
    return parsed(name, envelope.value)


def name_of(command: Message) -> str:
    """Return the name of a message."""
    name: str = command.DESCRIPTOR.name
    return name
