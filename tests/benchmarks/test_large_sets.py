"""The made-up keys of the benchmark of large sets are as good as those of a node."""

import random

from benchmarks import large_sets
from benchmarks.large_sets import WHOLE, MadeUpKeys
from recon_node.ceramic import EventId
from recon_node.recon import KeyStore
from recon_node.store.db import saved_keys


def test_made_up_keys_are_saved_and_loaded_as_a_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(large_sets, "_KEYS_PER_STEP", 100)
    monkeypatch.setattr(saved_keys, "FEWEST", 1)
    large_sets.make(tmp_path / "node", 1_050)
    store = large_sets.load(tmp_path / "node")
    keys = list(store)
    assert len(keys) == len(store) == 1_050
    assert keys == sorted(set(keys))
    assert all(WHOLE.covers(EventId(key)) for key in keys)
    assert store.summarize() == KeyStore(keys).summarize()
    added = MadeUpKeys(1_050).key(2**63, random.Random(1))
    assert WHOLE.covers(EventId(added))


def test_calls_sums_and_a_session_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_keys, "FEWEST", 1)
    data_dir = tmp_path / "node"
    large_sets.make(data_dir, 1_050)
    store = large_sets.load(data_dir)
    row = large_sets.measure_calls(store)
    assert len(store) == 1_050
    row |= large_sets.measure_sums_and_session(store, data_dir)
    assert len(store) == 1_051, "the session brought the one that the other store has more"
    assert row["rounds"] <= 3
    assert min(row.values()) >= 0
