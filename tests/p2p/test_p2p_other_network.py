"""A peer of another Ceramic network, as one that was named by hand may be, is told of."""

from dataclasses import replace

import pytest
from p2p_support import LOOPBACK, NETWORK, Node, eventually, node
from structlog.testing import capture_logs

from recon_node.ceramic import EventId, Network, controller_range, network_id_of, network_range
from recon_node.p2p import AGREED, ANOTHER_NETWORK, open_p2p
from recon_node.store import open_store

OTHER = Network.local(8)


async def test_a_peer_of_another_network_is_no_success(tmp_path):
    """The one that was dialled tells the other at once, before its own time for a sync has come."""
    settings = replace(LOOPBACK, discovery=False)
    with capture_logs() as logs:
        async with (
            node(tmp_path / "here") as here,
            open_store(tmp_path / "there", OTHER) as store,
            open_p2p(settings, store, tmp_path / "there") as p2p,
        ):
            there = Node(store, p2p)
            await here.p2p.connect(there.address)
            for each, network in ((here, OTHER), (there, NETWORK)):
                expected = f"{ANOTHER_NETWORK} ({network.name}): nothing in common"
                await eventually(lambda each=each, text=expected: text in each.outcomes())
    warnings = [line for line in logs if "another Ceramic network" in line["event"]]
    told = {(line["peer"], line["its_network"]) for line in warnings}
    assert told == {(there.p2p.peer_id, OTHER.name), (here.p2p.peer_id, NETWORK.name)}
    assert len(warnings) == 2


async def test_a_peer_of_the_same_network_with_other_interests_is_fine(tmp_path):
    async with node(tmp_path / "a") as a, node(tmp_path / "b") as b:
        await a.p2p.connect(b.address)
        await eventually(lambda: a.outcomes() and b.outcomes())
        assert {*a.outcomes(), *b.outcomes()} == {AGREED}


@pytest.mark.parametrize("network", [NETWORK, OTHER, Network.parse("mainnet")])
def test_the_network_of_a_bound(network):
    lower, upper = network_range(network)
    part, _ = controller_range(network, "kx", "did:key:z")
    for bound in (lower, upper, part, lower[:-20]):
        assert network_id_of(bound) == network.id
    assert isinstance(lower, EventId)


@pytest.mark.parametrize(
    "bound", [b"", b"\xce", b"\xce\x01\x05\x07", b"\xce\x01\x05", b"\xff" * 40]
)
def test_what_has_no_network(bound):
    found = network_id_of(bound)
    assert found is None or bound == b"\xce\x01\x05\x07"
