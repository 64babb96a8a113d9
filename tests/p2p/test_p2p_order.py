"""Events of a sync come in an order in which none has to wait for what it builds on."""

from __future__ import annotations

import pytest
from p2p_support import eventually, node

from recon_node.recon import RECON_1_2


@pytest.mark.parametrize("starts", ["full", "empty"])
async def test_no_event_of_a_sync_waits_for_its_prev(tmp_path, sdk_cars, monkeypatch, starts):
    async with (
        node(tmp_path / "full", sdk_cars, [RECON_1_2], events_per_request=50) as full,
        node(tmp_path / "empty", (), [RECON_1_2], events_per_request=50) as empty,
    ):
        waiting: list[int] = []
        admit = empty.store.admit_remote

        async def admit_remote(events):
            verdicts = await admit(events)
            waiting.append(empty.store.waiting)
            return verdicts

        monkeypatch.setattr(empty.store, "admit_remote", admit_remote)
        first, other = (full, empty) if starts == "full" else (empty, full)
        await first.p2p.connect(other.address)
        await eventually(lambda: empty.holds_as_many_as(len(sdk_cars)))
        assert len(waiting) > 5
        assert not any(waiting)
