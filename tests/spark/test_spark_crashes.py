"""Ended before, in or after any commit, the tables come out the same, on a disk and in a store."""

from contextlib import suppress

import pytest
from spark_helpers import EPOCH, ROWS, Bomb, KilledError, feed_rows, filled, read_on
from spark_oracle import assert_tables
from spark_samples import DEFINITION, KEY, change, document, replace

from recon_node.ceramic.builder import model_event
from spark_sink.derive import derivation as derive
from spark_sink.run.pipeline import Sink
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.tables import Tables

# Several batches, so that there are rows to keep and rows to change.
CUTS = (12, 20, len(ROWS))


@pytest.mark.parametrize(("after", "short"), [(False, 0), (True, 1000)])
def test_tables_after_a_crash_at_each_commit(place, monkeypatch, after, short):
    """One directory, in which each run gets one commit further than the one before."""
    monkeypatch.setattr(derive, "_SHORT_POSITIONS", short)
    crashes = 0
    for step in ("append", "put", "revise"):
        for call in range(1, 4):
            with monkeypatch.context() as patch:
                bomb = Bomb(getattr(SinkTable, step), call, after)
                patch.setattr(SinkTable, step, lambda *args, bomb=bomb: bomb(*args))
                with suppress(KilledError):
                    filled(place, ROWS, *CUTS)
            crashes += bomb.went_off
    filled(place, ROWS, *CUTS)
    assert crashes > 4
    assert_tables(place, ROWS.to_pylist())


def test_a_step_that_broke_off_is_done_again_as_it_was(place, monkeypatch):
    """A model arrives after its documents, the process dies while these follow; it changes."""
    monkeypatch.setattr(derive, "_DOCUMENTS_PER_COMMIT", 2)  # several commits
    model = model_event(KEY, DEFINITION)
    events = []
    for n in range(5):
        init = document(model.stream_id(), {"n": n}, bytes([n]))
        events += [init, change(init, replace("/n", -n - 1))]
    before = len(events)
    loose = change(model, replace("/schema", {}), {"op": "add", "path": "/x", "value": 1})
    rows = feed_rows([*events, model, loose])
    sink = filled(place, rows.slice(0, before))
    sink.tables.append(rows.slice(0, before + 1))
    store = sink.tables.derived["event_states"]
    monkeypatch.setattr(store, "revise", Bomb(store.revise, 2))
    with pytest.raises(KilledError):
        sink.catch_up()

    again = Sink(Tables(place, EPOCH))
    begun = again.tables.derived["event_states"]
    assert (begun.position, begun.under_way) == (before, before + 1)
    read_on(again, rows)
    assert_tables(place, rows.to_pylist())
