"""Two nodes, one of which refuses events of the other: both say so, and no score is kept."""

import pytest
from p2p_support import eventually, node

from recon_node.p2p.errors import MISBEHAVED
from recon_node.recon.protocols import PROTOCOLS, Protocol

QUIET = {"sync_interval": 3600, "push_delay": 3600}


@pytest.fixture(params=PROTOCOLS, ids=lambda version: version.id)
def version(request, monkeypatch) -> Protocol:
    """The one version of recon that both sides speak."""
    monkeypatch.setattr("recon_node.p2p.sync.sessions.VERSIONS", {request.param.id: request.param})
    return request.param


async def test_both_sides_report_keys_left_out(tmp_path, sdk_cars, sdk_events, version):
    refused = {key for key, _ in sdk_events[-3:]}
    async with node(tmp_path / "a", sdk_cars, **QUIET) as a, node(tmp_path / "b", **QUIET) as b:
        b.store.is_refused = lambda key: key in refused
        await b.p2p.connect(a.address)
        await eventually(lambda: a.p2p.sync_reports and b.p2p.sync_reports, 20)
        ours, theirs = b.p2p.sync_reports[0], a.p2p.sync_reports[0]
        assert (ours.outcome, ours.keys_left_out) == ("agreed but for 3 keys left out here", 3)
        assert theirs.outcome == "agreed but for 3 keys left out by the peer"
        assert theirs.keys_left_out_by_peer == 3
        assert len(a.store.keys) - len(b.store.keys) == 3
        for each, peer in ((a, b), (b, a)):
            assert each.p2p.counters.sessions_failed == 0
            assert each.failures(peer.p2p.peer_id) < MISBEHAVED
        assert a.failures(b.p2p.peer_id) == 0
