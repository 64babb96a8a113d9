"""An update is not hidden by events that somebody has made so that the sums of hashes are equal.

To make them takes minutes, so the fingerprints are weakened: to those of the number of keys.
"""

from __future__ import annotations

import pytest
from nacl.signing import SigningKey
from p2p_support import eventually, node

from recon_node.ceramic import METAMODEL
from recon_node.ceramic.builder import data_event, init_event
from recon_node.recon import RECON_1_2
from recon_node.recon.coded import coded_reply, estimates, messages
from recon_node.recon.keys.sha256a import COUNT_SHIFT

QUICK = {"sync_interval": 0.1, "push_delay": 3600, "ceramic_one": False}


@pytest.mark.parametrize("common", [3, 60])
async def test_an_update_crosses_although_the_sums_are_equal(
    tmp_path, monkeypatch, sdk_cars, common
):
    for module in (coded_reply, estimates):
        monkeypatch.setattr(
            module,
            "fingerprint",
            lambda lanes: messages.fingerprint(lanes >> COUNT_SHIFT << COUNT_SHIFT),
        )
    key = SigningKey.generate()
    init = init_event(key, METAMODEL, {"n": 0})
    updates = [
        data_event(key, init, [init.cid], [{"op": "replace", "path": "/n", "value": n}])
        for n in (1, 2)
    ]
    cars = [*sdk_cars[:common], init.car]
    async with (
        node(tmp_path / "a", [*cars, updates[0].car], [RECON_1_2], **QUICK) as a,
        node(tmp_path / "b", [*cars, updates[1].car], [RECON_1_2], **QUICK) as b,
    ):
        await b.p2p.connect(a.address)
        everything = len(cars) + 2
        await eventually(lambda: a.holds_as_many_as(everything) and b.holds_as_many_as(everything))
        await eventually(a.outcomes)
        assert set(a.outcomes()) == {"agreed"}
