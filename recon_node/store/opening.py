"""How a store is opened and closed: the lock, the log, and what of it is kept in memory."""

import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import trio

from recon_node.base.errors import reason_of
from recon_node.base.files import private_directory
from recon_node.base.program import no_garbage_collection
from recon_node.ceramic import EventId, Network
from recon_node.recon import KeyStore
from recon_node.store.db.log import EventLog
from recon_node.store.db.log_schema import FILE_NAME
from recon_node.store.db.settling import lift_guard
from recon_node.store.db.sql import damaged
from recon_node.store.directory_lock import directory_lock
from recon_node.store.errors import StoreError
from recon_node.store.kept_interests import load_interests
from recon_node.store.policy import Policy
from recon_node.store.reading.log_reader import LogReader
from recon_node.store.store import Store
from recon_node.store.values import Interest, StoreSettings


@asynccontextmanager
async def open_store(
    data_dir: Path,
    network: Network,
    *,
    settings: StoreSettings | None = None,
    policy: Policy | None = None,
    guarded: bool | None = None,
) -> AsyncIterator[Store]:
    """Open the store of a data directory; both are created if they do not exist.

    Without a policy, all valid events are accepted. Maintenance, to which a node's policy does not
    apply, says by `guarded` whether it decides in whose name streams are: then unsigned events stay
    as they are. None: the policy here says so.

    Opening a log may take minutes. If it is cancelled, its thread is left to itself: it closes the
    log and releases the lock once it is done, if the process lives that long.

    On leaving, what was submitted is written (see `StoreSettings.drain_seconds`), the log is
    closed and the directory's lock released.

    Raises:
        StoreError: the directory is in use by another process, or its log is another network's,
            damaged, foreign, of a later version, or cannot be read. Nothing is changed then.
    """
    settings = settings or StoreSettings()
    with ExitStack() as stack:
        policy = policy or Policy()
        guarded = policy.decides_by_name if guarded is None else guarded
        opened = await _opened(stack, data_dir, network, settings, guarded)
        reader = LogReader(
            data_dir,
            network,
            opened[0].epoch,
            opened[0].marks.head,
            settings.readers,
            native=settings.native == "auto",
        )
        store = Store(*opened, reader, data_dir, policy)
        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            try:
                yield store
            except BaseException as error:  # raised below: the nursery would wrap it in a group
                failure = error
            finally:
                await store.close()
        if failure is not None:
            raise failure


_Opened = tuple[EventLog, KeyStore, list[EventId], list[EventId], list[Interest]]


async def _opened(
    stack: ExitStack, data_dir: Path, network: Network, settings: StoreSettings, guarded: bool
) -> _Opened:
    """Call `_open` in a thread, and take over the directory's lock."""
    is_abandoned = threading.Event()

    def work() -> tuple[_Opened, ExitStack] | None:
        with ExitStack() as held:
            opened = _open(held, data_dir, network, settings, guarded)
            if not is_abandoned.is_set():
                return opened, held.pop_all()
            opened[0].close()
        return None

    try:
        done = await trio.to_thread.run_sync(
            work,
            abandon_on_cancel=True,  # type: ignore[call-arg]  # stubs of trio 0.22
        )
    except BaseException:
        is_abandoned.set()
        raise
    assert done is not None, "it was not abandoned"
    opened, held = done
    stack.enter_context(held)
    return opened


def _open(
    stack: ExitStack, data_dir: Path, network: Network, settings: StoreSettings, guarded: bool
) -> _Opened:
    """Open the log, and read from it what the store keeps in memory."""
    try:
        private_directory(data_dir)
    except FileExistsError:
        raise StoreError(f"the data directory {data_dir} is not a directory, but a file") from None
    except OSError as error:
        reason = reason_of(error)
        raise StoreError(f"the data directory {data_dir} cannot be created: {reason}") from error
    stack.enter_context(directory_lock(data_dir))
    with _strange_values(data_dir):
        event_log = EventLog(data_dir, network, settings, guarded=guarded)
    try:
        if not guarded:
            lift_guard(event_log)
        with _strange_values(data_dir):
            with no_garbage_collection(for_good=True):
                keys = event_log.load_keys()
            refused, withheld = event_log.load_refused(), event_log.load_withheld()
            return event_log, keys, refused, withheld, load_interests(event_log)
    except BaseException:
        event_log.close()
        raise


@contextmanager
def _strange_values(data_dir: Path) -> Iterator[None]:
    """Report values that no log has, of any table, where the log is read and no more is done.

    Should it be a mistake of this program after all, the message says where it is.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        *_, at = traceback.extract_tb(error.__traceback__)
        detail = f"{error!r} in {at.name}, line {at.lineno} of {Path(at.filename).name}"
        raise damaged(data_dir / FILE_NAME, detail) from error
