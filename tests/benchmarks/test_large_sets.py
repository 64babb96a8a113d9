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
