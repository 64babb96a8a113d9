"""Ended before, in or after any commit, the tables come out the same, on a disk and in a store."""

from collections.abc import Callable
from typing import Any

import pytest
from spark_helpers import EPOCH, diagonal, feed_rows, filled
from spark_oracle import assert_tables
from spark_samples import DEFINITION, KEY, change, document, replace, scenario

from recon_node.ceramic.builder import model_event
from spark_sink.derive import derivation as derive
from spark_sink.run.pipeline import Sink
from spark_sink.tables.delta import FeedTable
from spark_sink.tables.directory import Tables
from spark_sink.tables.location import Location

TRAP = scenario()
ROWS = feed_rows(TRAP.events, TRAP.times)
# Several batches, so that there are rows to keep and rows to change.
CUTS = (12, 20, len(ROWS))


class KilledError(BaseException):
    """The process ends here."""


class Bomb:
    """Wraps a function that writes: its n-th call is the last thing to happen, or does not."""

    def __init__(self, real: Callable[..., Any], call: int, after: bool) -> None:
        self.real = real
        self.left = call
        self.after = after
        self.went_off = False

    def __call__(self, *args: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            if self.after:
                self.real(*args)
            self.went_off = True
            raise KilledError
        return self.real(*args)


def run(directory: Location) -> None:
    """One process's work: all batches, cut as they come."""
    filled(directory, ROWS, *CUTS)


@pytest.mark.parametrize(("after", "short"), diagonal([False, True], [0, 1000]))
def test_tables_after_a_crash_at_each_commit(
    place: Location, monkeypatch: pytest.MonkeyPatch, after: bool, short: int
) -> None:
    """One directory, in which each run gets one commit further than the one before."""
    monkeypatch.setattr(derive, "_SHORT_POSITIONS", short)
    crashes = 0
    for step in ("append", "put", "revise"):
        for call in range(1, 4):
            with monkeypatch.context() as patch:
                bomb = Bomb(getattr(FeedTable, step), call, after)
                patch.setattr(FeedTable, step, lambda *args, bomb=bomb: bomb(*args))
                try:
                    run(place)
                except KilledError:
                    crashes += 1
    run(place)
    assert crashes > 4
    assert_tables(place, ROWS.to_pylist())


def test_a_step_that_broke_off_is_done_again_as_it_was(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model arrives after its documents, the process dies while these follow; it changes."""
    monkeypatch.setattr("spark_sink.derive.derivation._DOCUMENTS_PER_COMMIT", 2)  # several commits
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
    monkeypatch.setattr(store, "revise", Bomb(store.revise, 2, False))
    with pytest.raises(KilledError):
        sink.catch_up()

    again = Sink(Tables(place, EPOCH))
    begun = again.tables.derived["event_states"]
    assert (begun.position, begun.under_way) == (before, before + 1)
    again.tables.append(rows)
    again.catch_up()
    assert_tables(place, rows.to_pylist())
