"""What a node lacks is fetched in the order of the keys, so that no event comes before its prev."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import FetchesById, Peer, reconcile

from recon_node.base.steps import run_steps
from recon_node.recon import KeyRange, KeyStore, id_of
from recon_node.recon.coded import coded_session
from recon_node.recon.keys.key_hashes import distinct
from recon_node.recon.keys.lookups import ids_not_held, in_key_order

ALL = KeyRange(b"", b"\xff" * 9)
KEYS = st.lists(st.binary(min_size=1, max_size=8), max_size=60)


def ids_of(keys: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(map(id_of, keys)), "<u8")


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9)))
def test_distinct_ids_keep_their_order(ids: list[int]) -> None:
    assert distinct(np.array(ids, np.uint64)).tolist() == list(dict.fromkeys(ids))


@given(KEYS, KEYS)
def test_what_is_not_held_keeps_its_order(held: list[bytes], listed: list[bytes]) -> None:
    lacking = [key for key in dict.fromkeys(listed) if key not in held]
    store = KeyStore(held)
    assert run_steps(ids_not_held(store, ALL, ids_of(listed))).tolist() == ids_of(lacking).tolist()


@given(KEYS, st.randoms(use_true_random=False))
def test_ids_are_put_in_the_order_of_their_keys(keys: list[bytes], random: object) -> None:
    store = KeyStore(keys)
    mixed = sorted(set(keys), key=id_of)
    assert (
        run_steps(in_key_order(store, ALL, ids_of(mixed))).tolist()
        == ids_of(sorted(mixed)).tolist()
    )


class Ordered(KeyStore):
    """A store that counts the keys which came before the one below them in their stream."""

    __slots__ = ("early",)

    def add(self, key: bytes) -> bool:
        stream, height = key[:-4], int.from_bytes(key[-4:])
        if height and stream + (height - 1).to_bytes(4) not in self:
            self.early = getattr(self, "early", 0) + 1
        return super().add(key)


def events(streams: int, length: int) -> list[bytes]:
    """Keys that end with the heights of events: each builds on the one before it."""
    return [
        stream.to_bytes(4) + height.to_bytes(4)
        for stream in range(streams)
        for height in range(length)
    ]


@pytest.mark.parametrize(
    ("streams", "length", "held"),
    [(40, 50, 0), (40, 50, 0.9), pytest.param(1_000, 1_000, 0, marks=pytest.mark.long)],
)
def test_no_event_of_a_sync_comes_before_its_prev(streams, length, held, monkeypatch):
    monkeypatch.setattr(coded_session, "_ASKED_AT_ONCE", 1)  # here nobody orders what is asked for
    every = events(streams, length)
    held_keys = [key for key in every if int.from_bytes(key[-4:]) < held * length]
    full, behind = Peer(every, session=FetchesById), Peer((), session=FetchesById)
    behind.store = Ordered(held_keys)
    reconcile(behind, full)
    assert behind.set == set(every)
    assert getattr(behind.store, "early", 0) == 0
