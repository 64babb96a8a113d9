"""Two nodes, one of which refuses events of the other: both say so, and no score is kept."""

import pytest
from p2p_support import eventually, node

from recon_node.p2p.errors import MISBEHAVED
from recon_node.recon import VERSIONS, Version, id_of

QUIET = {"sync_interval": 3600, "push_delay": 3600}


@pytest.fixture(params=VERSIONS, ids=lambda version: version.id)
def version(request) -> Version:
    """The one version of recon that both sides speak."""
    return request.param


async def test_both_sides_report_keys_left_out(tmp_path, sdk_cars, sdk_events, version):
    refused = {key for key, _ in sdk_events[-3:]}
    quiet = {**QUIET, "versions": [version]}
    async with node(tmp_path / "a", sdk_cars, **quiet) as a, node(tmp_path / "b", **quiet) as b:
        b.store.is_refused = lambda key: key in refused
        b.store.find_refused = {id_of(key): key for key in refused}.get
        await b.p2p.connect(a.address)
        await eventually(lambda: a.outcomes() and b.outcomes())
        theirs, ours = (
            next(each for each in one.p2p.sync_reports if each.protocol == version.id)
            for one in (a, b)
        )
        assert (ours.outcome, ours.keys_left_out) == ("agreed but for 3 keys left out here", 3)
        assert theirs.outcome == "agreed but for 3 keys left out by the peer"
        assert theirs.keys_left_out_by_peer == 3
        assert len(a.store.keys) - len(b.store.keys) == 3
        for each, peer in ((a, b), (b, a)):
            assert each.p2p.counters.sessions_failed == 0
            assert each.failures(peer.p2p.peer_id) < MISBEHAVED
        assert a.failures(b.p2p.peer_id) == 0
