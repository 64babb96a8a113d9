"""The designs that the key store is measured against give the same answers as a sorted list."""

import random

import pytest

from benchmarks.key_store import DESIGNS
from benchmarks.key_store_designs import Design
from benchmarks.keys import event_ids
from recon_node.recon import KeyRange, Sha256a


@pytest.fixture(params=DESIGNS, ids=lambda design: design.system)
def design(request: pytest.FixtureRequest) -> Design:
    made: Design = request.param.make()
    return made


@pytest.mark.parametrize("loaded", [0, 300])
def test_every_design_answers_like_a_sorted_list(design: Design, loaded: int) -> None:
    keys = event_ids(loaded + 220, seed=1)
    design.load(keys[:loaded])
    rng = random.Random(2)
    for count in range(loaded, len(keys)):
        design.add(keys[count])
        if count % 20 == 19:
            ordered = sorted(keys[: count + 1])
            low, high = sorted(rng.sample(range(len(ordered) + 1), 2))
            bounds = [b"\x00", *ordered, b"\xff"]
            key_range = KeyRange(bounds[low], bounds[high + 1])
            inside = [key for key in ordered if key_range.covers(key)]
            assert design.hash(key_range) == Sha256a.of(*inside)
            assert design.split(key_range, 2) == [inside[len(inside) // 2]]
            if len(inside) >= 16:
                pivots = [inside[i * len(inside) // 16] for i in range(1, 16)]
                assert design.split(key_range, 16) == pivots
