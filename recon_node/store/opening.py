"""Opening the store of a data directory, and closing it again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import trio

from recon_node.ceramic import Network
from recon_node.store.db.log import EventLog
from recon_node.store.errors import StoreError
from recon_node.store.lock import directory_lock
from recon_node.store.store import Opened, Store
from recon_node.store.values import StoreSettings


@asynccontextmanager
async def open_store(
    data_dir: Path, network: Network, *, settings: StoreSettings | None = None
) -> AsyncIterator[Store]:
    """Open the store of a data directory; both are made when they are not there.

    On leaving, what was handed in is written (see `StoreSettings.drain_seconds`), the log is
    closed and the directory's lock released.

    Raises:
        StoreError: the directory is in use by another process, or its log is another network's,
            damaged, foreign, of a later version, or cannot be read. Nothing is changed then.
    """
    settings = settings or StoreSettings()
    with ExitStack() as stack:
        opened = await trio.to_thread.run_sync(_open, stack, data_dir, network, settings)
        store = Store(opened, data_dir, network, settings)
        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run_writer)
            try:
                yield store
            except BaseException as error:  # raised below: the nursery would wrap it in a group
                failure = error
            finally:
                await store.close()
        if failure is not None:
            raise failure


def _open(stack: ExitStack, data_dir: Path, network: Network, settings: StoreSettings) -> Opened:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the data directory {data_dir} cannot be made: {error}") from error
    stack.enter_context(directory_lock(data_dir))
    log = EventLog(data_dir, network, settings)
    try:
        return Opened(log, log.load_keys(), log.load_refused(), log.load_interests())
    except BaseException:
        log.close()
        raise
