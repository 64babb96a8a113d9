"""Tables and views in a PostgreSQL database.

Theory of operation. For each table there is one of the same name in a schema, and a row in
`spark_sink_positions` with the token up to which it has followed. A change takes one transaction:
it locks that row, writes the new and changed rows by their key, and writes the token. So readers
see the table as it was at one version or the next, and two programs that follow one table wait for
each other. Where all rows come again, those that differ are written, and others stay untouched.

CIDs and StreamIDs become text, and content and nested columns `jsonb`, as SQL there can read these.
Columns, indexes and privileges that others add are left alone.

What is in a row is strangers', and the database has limits of its own. A row that it refuses is set
aside: `spark_sink_refused` says which, and why, and the others go on. It is not in the table, also
as it was before, until the database takes a later version of it.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Final, LiteralString

import psycopg
import pyarrow as pa
from psycopg import Connection, Cursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Composed, Identifier

from recon_node.ipld import CID
from spark_sink.errors import SinkError, one_line
from spark_sink.export.following import Since, Taken, TargetUnreachableError
from spark_sink.query.changes import Token
from spark_sink.query.show import as_dicts, show, to_json
from spark_sink.schema import TableSpec

_POSITIONS: Final = "spark_sink_positions"
_REFUSED: Final = "spark_sink_refused"
_OWN_TABLES: Final = {
    _POSITIONS: "name text PRIMARY KEY, token text, position bigint, columns jsonb",
    _REFUSED: "name text, key text, reason text, PRIMARY KEY (name, key)",
}
_INCOMING: Final = "spark_sink_incoming"
_SEEN: Final = "spark_sink_seen"
_ROWS_AT_ONCE: Final = 5_000
_OF_A_ROW: Final = ("22", "23", "44", "54", "P0")
"""Classes of errors about what is in a row: data, integrity, check options, limits such as that of
nesting, and what triggers raise."""
_FOR_GOOD: Final = re.compile(
    "no password supplied|FATAL: .*(password authentication|pg_hba.conf|does not exist|"
    "not permitted|permission denied)"
)
"""Refusals to connect that stay until somebody changes something; they come as text alone."""
_LONGEST_REASON: Final = 500
_PATIENCE: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Settings of libpq, unless the address has others: seconds to connect, and until a network that
says nothing any more counts as lost; the last one is in milliseconds."""
# PostgreSQL cuts longer names, and has columns of its own in every table.
_LONGEST_NAME: Final = 63
_SYSTEM: Final = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
_BYTES: Final = ("event_id", "car")
"""Binary columns that are not CIDs."""
_DATA: Final = "data"
"""The binary column with JSON."""
_NUL: Final = "\\u0000"
_SCALARS: Final = {
    pa.string(): "text",
    pa.binary(): "text",
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float64(): "double precision",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamptz",
}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: `field` is its name in the table that is followed."""

    name: str
    field: str
    type: str
    convert: Callable[[Any], Any]


_Types = dict[str, str]
"""The types of columns, by name."""


class Postgres:
    """A database, as a target to be brought up to date.

    Args:
        address: a URL or a connection string of libpq, which has the rest in the environment.
        schema: in which the tables are; created if it does not exist.

    Raises:
        SinkError: the address is not one, or the schema cannot be called so.
    """

    def __init__(self, address: str, schema: str) -> None:
        try:
            self._address = make_conninfo(**(_PATIENCE | conninfo_to_dict(address)))
        except psycopg.ProgrammingError as error:
            raise SinkError(f"that is not the address of a database: {one_line(error)}") from None
        if not 0 < len(schema.encode()) <= _LONGEST_NAME or "\0" in schema:
            raise SinkError(f"the name of a schema has 1 to {_LONGEST_NAME} bytes, not {schema!r}")
        self._schema = schema
        self._connection: Connection[Any] | None = None
        self._tokens: dict[str, Token] = {}

    def take(self, name: str, since: Since) -> Taken | None:
        """Take in what has changed in a table, in one transaction."""
        last = self._tokens.get(name)
        if last is not None and since(last).token == last:
            return None
        with self._connected() as connection:
            self._prepare(connection)  # somebody may have dropped the schema since the last time
            with connection.transaction():
                taken, self._tokens[name] = self._take(connection.cursor(), name, since)
        return taken

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def _connected(self) -> Iterator[Connection[Any]]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    self._address,
                    application_name="spark-sink",
                    client_encoding="UTF8",  # else that of the database, which may not be text
                    autocommit=True,  # transactions are blocks
                )
            yield self._connection
        except psycopg.Error as error:
            is_passing = isinstance(error, psycopg.OperationalError)
            if is_passing and not _FOR_GOOD.search(str(error)):
                reason = f"cannot use the database: {one_line(error)}"
                raise TargetUnreachableError(reason) from error
            raise SinkError(f"the database refuses: {one_line(error)}") from error

    def _prepare(self, connection: Connection[Any]) -> None:
        with connection.transaction(), connection.cursor() as cursor:
            # Of two programs, both would find that there is no schema, and one would fail.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('spark-sink'))")
            cursor.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self._schema])
            if cursor.fetchone() is None:  # to create it if it exists takes a privilege, too
                cursor.execute(SQL("CREATE SCHEMA {}").format(Identifier(self._schema)))
            for table, columns in _OWN_TABLES.items():
                if not self._exists(cursor, table):
                    command = SQL("CREATE TABLE {} ({})")
                    cursor.execute(command.format(self._table(table), SQL(columns)))

    def _table(self, name: str) -> Identifier:
        return Identifier(self._schema, name)

    def _exists(self, cursor: Cursor[Any], name: str) -> bool:
        cursor.execute("SELECT to_regclass(%s)", [self._table(name).as_string(cursor)])
        return cursor.fetchone() != (None,)

    def _take(self, cursor: Cursor[Any], name: str, since: Since) -> tuple[Taken | None, Token]:
        positions = self._table(_POSITIONS)
        for command in (
            "INSERT INTO {} (name) VALUES (%s) ON CONFLICT DO NOTHING",
            "SELECT token, columns FROM {} WHERE name = %s FOR UPDATE",
        ):
            cursor.execute(SQL(command).format(positions), [name])
        text, known = cursor.fetchone() or (None, None)
        if not self._exists(cursor, name):  # or not any more
            text = known = None
        token = None if text is None else Token.parse(text)
        changes = since(token)
        if changes.token == token:
            return None, changes.token
        wanted = {column.name: column.type for column in _columns(changes.spec)}
        if wanted != known:
            self._alter(cursor, changes.spec, wanted, known)
        any_row = SQL("SELECT FROM {} LIMIT 1").format(self._table(name))
        if wanted != known or not cursor.execute(any_row).rowcount:  # somebody may have emptied it
            changes, token = since(None), None
        refused = _Refused(cursor, self._table(_REFUSED), name)
        is_whole = token is None
        copy = _Copy(cursor, self._table(name), changes.spec, refused, whole=is_whole)
        for kind, rows in changes.rows():
            if kind == "reset":
                copy.begin_anew()
            for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
                copy.write(as_dicts(rows.slice(start, _ROWS_AT_ONCE)))
        copy.end()
        now = changes.token
        update = SQL("UPDATE {} SET token = %s, position = %s, columns = %s WHERE name = %s")
        values = [str(now), now.position, json.dumps(wanted), name]
        cursor.execute(update.format(positions), values)
        return Taken(copy.rows, now.position, refused.count), now

    def _alter(
        self, cursor: Cursor[Any], spec: TableSpec, wanted: _Types, known: _Types | None
    ) -> None:
        """Create a table, or give it the columns that it lacks."""
        table = self._table(spec.name)

        def defined(name: str) -> Composed:
            kind = wanted[name] + (" PRIMARY KEY" if name == spec.key else "")
            return SQL("{} {}").format(Identifier(name), SQL(kind))

        if known is None:
            columns = SQL(", ").join(map(defined, wanted))
            cursor.execute(SQL("CREATE TABLE {} ({})").format(table, columns))
            if "stream_id" in wanted:  # what relations name
                cursor.execute(SQL("CREATE INDEX ON {} (stream_id)").format(table))
            return
        changed = {name for name, kind in wanted.items() if known.get(name) != kind}
        parts = [
            SQL("DROP COLUMN {}").format(Identifier(name))
            for name in known
            if name in changed or name not in wanted
        ]
        parts += [SQL("ADD COLUMN {}").format(defined(name)) for name in wanted if name in changed]
        try:
            cursor.execute(SQL("ALTER TABLE {} {}").format(table, SQL(", ").join(parts)))
        except psycopg.errors.TooManyColumns:
            raise SinkError(
                f"the table {spec.name} cannot get more columns, as the database counts those that "
                "were dropped: drop it to have it filled anew"
            ) from None


class _Refused:
    """The rows of a table that the database refuses, by their key."""

    def __init__(self, cursor: Cursor[Any], table: Identifier, name: str) -> None:
        self._cursor = cursor
        self._table = table
        self._name = name
        self.count = 0
        """Of this transaction."""

    def add(self, key: Any, error: Exception) -> None:
        """Say that a row is refused, and why."""
        self.count += 1
        reason = one_line(error)[:_LONGEST_REASON].replace("\0", "\ufffd")
        self._cursor.execute(
            SQL(
                "INSERT INTO {} (name, key, reason) VALUES (%s, %s, %s) "
                "ON CONFLICT (name, key) DO UPDATE SET reason = excluded.reason"
            ).format(self._table),
            [self._name, str(key), reason],
        )

    def forget(self, key: Identifier | None = None) -> None:
        """Forget those that are among the incoming rows, by the name of their key; None: all."""
        condition: Composed = SQL("").format()
        if key is not None:
            condition = SQL("AND key IN (SELECT {}::text FROM {})").format(
                key, Identifier(_INCOMING)
            )
        command = SQL("DELETE FROM {} WHERE name = %s {}").format(self._table, condition)
        self._cursor.execute(command, [self._name])


_COMMANDS: Final[dict[str, LiteralString]] = {
    "create incoming": "CREATE TEMP TABLE {incoming} ON COMMIT DROP AS SELECT {names} FROM {table} "
    "LIMIT 0",
    "create seen": "CREATE TEMP TABLE {seen} ON COMMIT DROP AS SELECT {key} FROM {table} LIMIT 0",
    "load": "COPY {incoming} ({names}) FROM STDIN",
    "upsert": "INSERT INTO {table} AS old ({names}) SELECT {names} FROM {incoming} "
    "ON CONFLICT ({key}) DO UPDATE SET ({names}) = ROW ({new}) "
    "WHERE ROW ({old}) IS DISTINCT FROM ROW ({new})",
    "remove": "DELETE FROM {table} WHERE {key} = %s",
    "note": "INSERT INTO {seen} SELECT {key} FROM {incoming}",
    "empty": "TRUNCATE {incoming}",
    "begin": "TRUNCATE {seen}",
    "clean": "DELETE FROM {table} WHERE NOT EXISTS "
    "(SELECT FROM {seen} WHERE {seen}.{key} = {table}.{key})",
}


class _Copy:
    """The rows of one transaction on their way into a table."""

    def __init__(
        self,
        cursor: Cursor[Any],
        table: Identifier,
        spec: TableSpec,
        refused: _Refused,
        *,
        whole: bool,
    ) -> None:
        self._cursor = cursor
        self._columns = columns = _columns(spec)
        self._key = key = spec.key
        self._refused = refused
        self._whole = whole
        if whole:
            refused.forget()
        self.rows = 0
        names = [Identifier(column.name) for column in columns]
        of = {
            "table": table,
            "incoming": Identifier(_INCOMING),
            "seen": Identifier(_SEEN),
            "key": Identifier(key),
            "names": SQL(", ").join(names),
            "new": SQL(", ").join(SQL("excluded.{}").format(name) for name in names),
            "old": SQL(", ").join(SQL("old.{}").format(name) for name in names),
        }
        self._sql = {name: SQL(command).format(**of) for name, command in _COMMANDS.items()}
        cursor.execute(self._sql["create incoming"])
        cursor.execute(self._sql["create seen"])

    def begin_anew(self) -> None:
        """All rows come from now on."""
        self._whole = True
        self._cursor.execute(self._sql["begin"])
        self._refused.forget()

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Write rows, but those that are refused; of those with the same key, the last counts."""
        self._write(list({row[self._key]: row for row in rows}.values()))

    def _write(self, rows: list[dict[str, Any]]) -> None:
        """Write rows; if one of them is refused, in two halves, so that the others are written."""
        try:
            with self._cursor.connection.transaction():
                self._write_all(rows)
        except Exception as error:
            if not _is_of_a_row(error):
                raise
            if len(rows) > 1:
                half = len(rows) // 2
                self._write(rows[:half])
                self._write(rows[half:])
                return
            key = next(column for column in self._columns if column.field == self._key)
            value = key.convert(rows[0][self._key])
            self._cursor.execute(self._sql["remove"], [value])
            self._refused.add(value, error)

    def _write_all(self, rows: list[dict[str, Any]]) -> None:
        with self._cursor.copy(self._sql["load"]) as copy:
            for row in rows:
                copy.write_row([column.convert(row[column.field]) for column in self._columns])
        self._cursor.execute(self._sql["upsert"])
        if self._whole:
            self._cursor.execute(self._sql["note"])
        else:
            self._refused.forget(Identifier(self._key))
        self._cursor.execute(self._sql["empty"])
        self.rows += len(rows)

    def end(self) -> None:
        """Delete the rows that are not there any more."""
        if self._whole:
            self._cursor.execute(self._sql["clean"])


def _is_of_a_row(error: Exception) -> bool:
    if isinstance(error, psycopg.Error):
        code = error.sqlstate or ""
        return isinstance(error, psycopg.DataError) or code[:2] in _OF_A_ROW
    return isinstance(error, ValueError | ArithmeticError | RecursionError)


def _columns(spec: TableSpec) -> list[_Column]:
    used: set[str] = set(_SYSTEM)
    columns = []
    for field in spec.schema:
        short = field.name[: _LONGEST_NAME - 3]
        numbered = (f"{short[: _LONGEST_NAME - 5]}_{number}" for number in count())
        names = chain((short + "_" * number for number in range(4)), numbered)
        name = next(name for name in names if name not in used)
        used.add(name)
        columns.append(_Column(name, field.name, *_kind(field)))
    return columns


def _kind(field: pa.Field) -> tuple[str, Callable[[Any], Any]]:
    """Return the type of a column in PostgreSQL, and what converts its values."""
    if field.name == _DATA and pa.types.is_binary(field.type):  # in a view, it may be a field
        return "jsonb", _optional(lambda data: _without_nul(data.decode()))
    if pa.types.is_binary(field.type) and field.name in _BYTES:
        return "bytea", lambda value: value
    if field.type in _SCALARS:
        return _SCALARS[field.type], _optional(_scalar)
    if pa.types.is_list(field.type) and field.type.value_type in _SCALARS:
        item = _optional(_scalar)
        kind = f"{_SCALARS[field.type.value_type]}[]"
        return kind, _optional(lambda values: [item(value) for value in values])
    return "jsonb", _optional(lambda value: _without_nul(to_json(show(value))))


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, bytes):
        return str(CID(value))
    if isinstance(value, str) and "\0" in value:
        return value.replace("\0", "\ufffd")
    return value


def _without_nul(text: str) -> str:
    """Return JSON without the character that PostgreSQL's text cannot have."""
    return to_json(_replaced(json.loads(text))) if _NUL in text else text


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_replaced(item) for item in value]
    if isinstance(value, dict):
        return {_replaced(name): _replaced(member) for name, member in value.items()}
    return value
