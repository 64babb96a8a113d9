"""DuckDB in its own thread, so that Ctrl-C ends it at once.

Python handles signals only in its main thread, and only when DuckDB returns to Python, which can
take half a minute. So DuckDB runs in another thread, while the main thread waits and can interrupt
it: DuckDB checks for that every few thousand rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final, TypeVar

import duckdb
from duckdb import DuckDBPyConnection

# Seconds to wait for an interrupted query. DuckDB cannot interrupt an operation on one value,
# such as sorting a list.
_CLOSE_PATIENCE: Final = 1.0

T = TypeVar("T")


class Duck:
    """An in-memory DuckDB and its thread."""

    def __init__(self) -> None:
        # By default, DuckDB looks up unknown table names among this program's variables.
        config: dict[str, str | bool | int | float | list[str]] = {
            "python_enable_replacements": False
        }
        self.connection: DuckDBPyConnection = duckdb.connect(config=config)
        self._pool = ThreadPoolExecutor(1, "duckdb")

    def do(self, work: Callable[[], T]) -> T:
        """Call a function in DuckDB's thread.

        Raises:
            KeyboardInterrupt: the main thread was interrupted, and DuckDB with it.
        """
        try:
            return self._pool.submit(work).result()
        except KeyboardInterrupt:
            self.connection.interrupt()
            raise

    def close(self) -> None:
        """Interrupt the query, and close. Waits a moment for DuckDB's threads.

        A process that has to end while DuckDB is still busy must use `os._exit`.
        """
        self.connection.interrupt()
        wait([self._pool.submit(self.connection.close)], _CLOSE_PATIENCE)
        self._pool.shutdown(wait=False)


@contextmanager
def opened() -> Iterator[Duck]:
    """Provide a DuckDB for the block."""
    duck = Duck()
    try:
        yield duck
    finally:
        duck.close()
