"""Prepared statements: what clients have asked the server to remember, within bounds.

A client may forget to close its statements, as the Ceramic SDK's does. So each client has only so
many: a new one takes the place of the one that was used the longest ago. All are forgotten when
they are not used for a while.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import pyarrow as pa

from recon_node.latest import Latest
from spark_sink.serve.errors import RequestError, invalid
from spark_sink.serve.worker import Plan

PER_CLIENT: Final = 64
IN_ALL: Final = 1024
#: Seconds that a statement is kept without being used.
KEPT: Final = 15 * 60.0


@dataclass(slots=True)
class Prepared:
    """A prepared statement of a client, and the values that were bound to it."""

    client: str
    sql: str
    plan: Plan
    values: dict[str, Any] = field(default_factory=dict)
    used: float = 0.0


class PreparedStatements:
    """The prepared statements of all clients, by their handles."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._statements = Latest[bytes, Prepared](IN_ALL)

    def add(self, client: str, sql: str, plan: Plan) -> bytes:
        """Remember a statement; return its handle."""
        handle = secrets.token_bytes(16)
        with self._lock:
            self._forget()
            own = [h for h, each in self._statements.items() if each.client == client]
            for old in own[: max(0, len(own) - PER_CLIENT + 1)]:
                del self._statements[old]
            self._statements[handle] = Prepared(client, sql, plan, used=self._clock())
        return handle

    def get(self, handle: bytes) -> Prepared:
        """Return a statement.

        Raises:
            RequestError: it is not known, or not any more.
        """
        with self._lock:
            self._forget()
            if (found := self._statements.use(handle)) is None:
                raise RequestError(
                    "NOT_FOUND",
                    "there is no such prepared statement: it was closed, not used for "
                    f"{KEPT / 60:.0f} minutes, or the server was restarted; prepare it again",
                )
            found.used = self._clock()
            return found

    def remove(self, handle: bytes) -> None:
        """Forget a statement, if it is known."""
        with self._lock:
            self._statements.pop(handle, None)

    def __len__(self) -> int:
        return len(self._statements)

    def _forget(self) -> None:
        oldest = self._clock() - KEPT
        while self._statements and next(iter(self._statements.values())).used < oldest:
            self._statements.popitem(last=False)


def values_of(parameters: pa.Schema, rows: pa.Table) -> dict[str, Any]:
    """Return the values that a client binds, by the names of the parameters.

    They are found by name, with or without the `$`, or else by order.

    Raises:
        RequestError: there is not one value for each parameter.
    """
    names = [_bare(name) for name in parameters.names]
    if rows.num_rows != 1:
        raise invalid(f"bind one row of values, not {rows.num_rows}")
    if rows.num_columns != len(names):
        raise invalid(
            f"the statement has {len(names)} parameters ({', '.join(parameters.names)}), and "
            f"{rows.num_columns} values are bound"
        )
    values = [column[0].as_py() for column in rows.columns]
    given = [_bare(name) for name in rows.column_names]
    return dict(zip(given if set(given) == set(names) else names, values, strict=True))


def check_bound(plan_parameters: pa.Schema, values: Mapping[str, Any]) -> None:
    """Raise an error if a parameter has no value."""
    missing = [name for name in plan_parameters.names if _bare(name) not in values]
    if missing:
        raise invalid(f"no value is bound to {', '.join(missing)}")


def _bare(name: str) -> str:
    return name.removeprefix("$")
