"""DuckDB in a thread of its own, so that Ctrl-C ends it at once.

Python hears of signals in its main thread only, and DuckDB goes back to Python between its tasks,
of which one can take half a minute. So it works elsewhere, while the main thread waits and can tell
it to stop: DuckDB looks at that after each few thousand rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final, TypeVar

import duckdb
from duckdb import DuckDBPyConnection

# Seconds for what was broken off. What DuckDB does to one value, sort a list say, it does to the
# end.
_PATIENCE: Final = 1.0

T = TypeVar("T")


class Duck:
    """A DuckDB in memory, and the thread that it works in."""

    def __init__(self) -> None:
        # Without it a name that is no table is looked for among this program's variables.
        config: dict[str, str | bool | int | float | list[str]] = {
            "python_enable_replacements": False
        }
        self.connection: DuckDBPyConnection = duckdb.connect(config=config)
        self._pool = ThreadPoolExecutor(1, "duckdb")

    def do(self, work: Callable[[], T]) -> T:
        """Do something with the connection.

        Raises:
            KeyboardInterrupt: the main thread, if this is it, was told so; DuckDB was as well.
        """
        try:
            return self._pool.submit(work).result()
        except KeyboardInterrupt:
            self.connection.interrupt()
            raise

    def close(self) -> None:
        """End what it does. Its threads go on with a query that was broken off, and closing waits
        for them: not for ever. A process that ends with DuckDB at work does so by `os._exit`."""
        self.connection.interrupt()
        wait([self._pool.submit(self.connection.close)], _PATIENCE)
        self._pool.shutdown(wait=False)


@contextmanager
def opened() -> Iterator[Duck]:
    """A DuckDB for the block."""
    duck = Duck()
    try:
        yield duck
    finally:
        duck.close()
