"""The messages of Arrow Flight and Flight SQL that the server reads and writes.

They are Protocol Buffers. The tables below have the names, numbers and types of their fields, as in
`Flight.proto` and `FlightSql.proto` (https://arrow.apache.org/docs/format/FlightSql.html), and the
classes are made from them: no maintained Python package has them, and generated code would be ten
times as long, with hundreds of messages and options that a read-only server never sees. They are in
a pool of their own, so that they cannot clash with those of another library.

A command of Flight SQL travels inside a `google.protobuf.Any`, which names its message.
"""

from __future__ import annotations

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
_REPEATED: Final = "repeated "
_PACKAGE: Final = "spark_sink.flight"

# By message: the fields, as "NAME = NUMBER": "[repeated] TYPE".
_Fields = dict[str, str]
_KEY_REFERENCE: Final[_Fields] = {
    "pk_catalog = 1": "string",
    "pk_db_schema = 2": "string",
    "pk_table = 3": "string",
    "fk_catalog = 4": "string",
    "fk_db_schema = 5": "string",
    "fk_table = 6": "string",
}
_TABLE: Final[_Fields] = {"catalog = 1": "string", "db_schema = 2": "string", "table = 3": "string"}
_QUERY: Final[_Fields] = {"query = 1": "string", "transaction_id = 2": "bytes"}
_HANDLE: Final[_Fields] = {"prepared_statement_handle = 1": "bytes"}

_FLIGHT: Final[dict[str, _Fields]] = {
    "Empty": {},
    "HandshakeRequest": {"protocol_version = 1": "uint64", "payload = 2": "bytes"},
    "HandshakeResponse": {"protocol_version = 1": "uint64", "payload = 2": "bytes"},
    "BasicAuth": {"username = 2": "string", "password = 3": "string"},
    "ActionType": {"type = 1": "string", "description = 2": "string"},
    "Criteria": {"expression = 1": "bytes"},
    "Action": {"type = 1": "string", "body = 2": "bytes"},
    "Result": {"body = 1": "bytes"},
    "SchemaResult": {"schema = 1": "bytes"},
    "FlightDescriptor": {"type = 1": "int32", "cmd = 2": "bytes", "path = 3": "repeated string"},
    "Ticket": {"ticket = 1": "bytes"},
    "FlightEndpoint": {"ticket = 1": "Ticket"},
    "FlightInfo": {
        "schema = 1": "bytes",
        "flight_descriptor = 2": "FlightDescriptor",
        "endpoint = 3": "repeated FlightEndpoint",
        "total_records = 4": "int64",
        "total_bytes = 5": "int64",
        "ordered = 6": "bool",
    },
    "FlightData": {
        "flight_descriptor = 1": "FlightDescriptor",
        "data_header = 2": "bytes",
        "app_metadata = 3": "bytes",
        "data_body = 1000": "bytes",
    },
    "PutResult": {"app_metadata = 1": "bytes"},
    "Any": {"type_url = 1": "string", "value = 2": "bytes"},
}
_SQL: Final[dict[str, _Fields]] = {
    "CommandGetCatalogs": {},
    "CommandGetDbSchemas": {"catalog = 1": "string", "db_schema_filter_pattern = 2": "string"},
    "CommandGetTables": {
        "catalog = 1": "string",
        "db_schema_filter_pattern = 2": "string",
        "table_name_filter_pattern = 3": "string",
        "table_types = 4": "repeated string",
        "include_schema = 5": "bool",
    },
    "CommandGetTableTypes": {},
    "CommandGetSqlInfo": {"info = 1": "repeated uint32"},
    "CommandGetXdbcTypeInfo": {"data_type = 1": "int32"},
    "CommandGetPrimaryKeys": _TABLE,
    "CommandGetExportedKeys": _TABLE,
    "CommandGetImportedKeys": _TABLE,
    "CommandGetCrossReference": _KEY_REFERENCE,
    "CommandStatementQuery": _QUERY,
    "CommandStatementUpdate": _QUERY,
    "CommandPreparedStatementQuery": _HANDLE,
    "CommandPreparedStatementUpdate": _HANDLE,
    "TicketStatementQuery": {"statement_handle = 1": "bytes"},
    "ActionCreatePreparedStatementRequest": _QUERY,
    "ActionCreatePreparedStatementResult": {
        **_HANDLE,
        "dataset_schema = 2": "bytes",
        "parameter_schema = 3": "bytes",
    },
    "ActionClosePreparedStatementRequest": _HANDLE,
    "DoPutPreparedStatementResult": _HANDLE,
}
_TYPE_URL: Final = "type.googleapis.com/arrow.flight.protocol.sql."

# A message with fields that only its table knows.
Message = Any


def _classes() -> dict[str, type[message.Message]]:
    # In the syntax of proto2 every field knows whether it was set; the bytes are the same.
    file = descriptor_pb2.FileDescriptorProto(
        name="spark_sink/flight.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, fields in {**_FLIGHT, **_SQL}.items():
        described = file.message_type.add(name=name)
        for field, kind in fields.items():
            label, number = field.split(" = ")
            base = kind.removeprefix(_REPEATED)
            added = described.field.add(name=label, number=int(number))
            added.label = _F.LABEL_REPEATED if kind != base else _F.LABEL_OPTIONAL
            added.type = _SCALARS.get(base, _F.TYPE_MESSAGE)
            if base not in _SCALARS:
                added.type_name = f".{_PACKAGE}.{base}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = {
        name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in {**_FLIGHT, **_SQL}
    }
    return {
        name: message_factory.GetMessageClass(descriptor)
        for name, descriptor in descriptors.items()
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
