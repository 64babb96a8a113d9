"""The keys of the model ring, as the log has them at one moment."""

import sqlite3

import structlog

from recon_node.base.program import no_garbage_collection
from recon_node.ceramic import StreamId, StreamIdError
from recon_node.ceramic.event_id import DEFAULT_SORT_KEY
from recon_node.store.admission.records import State
from recon_node.store.db.doubts import doubted_events
from recon_node.store.db.saved_keys import RING_KEYS, load_keys
from recon_node.store.db.sql import short_of
from recon_node.store.reading import Reader
from recon_node.store.ring_keys import RingKeys

logger = structlog.get_logger(__name__)


def read_ring_keys(reader: Reader) -> RingKeys:
    """Return the keys of the model ring: those saved, or made from all EventIds of the log."""
    connection = reader.connection
    connection.execute("BEGIN")  # what follows is about one state of the log
    with no_garbage_collection(for_good=True):
        saved = load_keys(reader.data_dir, connection, RING_KEYS)
        ring_keys = RingKeys(reader.network, _models(connection), saved)
        if saved is None:
            rows = connection.execute("SELECT event_id FROM events")
            ring_keys.fill((event_id for (event_id,) in rows), _outside_ring(connection))
        ring_keys.doubt(doubted_events(connection))
    connection.execute("COMMIT")
    return ring_keys


def _models(connection: sqlite3.Connection) -> list[StreamId]:
    rows = connection.execute(
        "SELECT DISTINCT sep_value FROM streams WHERE sep_key = ?", (DEFAULT_SORT_KEY,)
    )
    models: list[StreamId] = []
    for (text,) in rows:
        try:
            models.append(StreamId.parse(text))
        except (StreamIdError, TypeError) as error:  # `recon-node store check` finds it, too
            logger.warning("A model in the event log is not a StreamID", reason=str(error))
    return models


def _outside_ring(connection: sqlite3.Connection) -> set[bytes]:
    """Return the EventIds that wait or are badly signed, and those whose separator is like a
    model's by chance."""
    rows = connection.execute(
        f"WITH others AS (SELECT init_cid, {short_of('init_cid')} AS short FROM streams "
        "WHERE sep_key != ?2 AND sep_value IN "
        "(SELECT sep_value FROM streams WHERE sep_key = ?2)) "
        "SELECT event_id FROM events WHERE position IS NULL AND state < ?1 "
        "UNION ALL SELECT event_id FROM faults JOIN events USING (id) "
        "UNION ALL SELECT event.event_id FROM others "
        "CROSS JOIN events AS init ON init.short_cid = short AND init.cid = others.init_cid "
        "CROSS JOIN events AS event ON event.stream = init.id "
        "WHERE event.position IS NOT NULL "
        "UNION ALL SELECT event_id FROM others CROSS JOIN events "
        "ON short_init = short AND events.init_cid = others.init_cid WHERE position IS NULL",
        (State.PENDING, DEFAULT_SORT_KEY),
    )
    return {event_id for (event_id,) in rows}
