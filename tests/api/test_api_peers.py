"""The API of two nodes with a real network side each, on the loopback."""

import re
import time
from pathlib import Path

import pytest
from api_samples import Events, read, running, until
from openapi_check import DOCUMENT

from recon_node.api.routes.node_info import did_of_peer
from recon_node.ceramic import Network
from recon_node.ipld import multibase
from recon_node.p2p.peers.schedule import sort_value_rendezvous_of
from recon_node.recon import VERSIONS

LISTING = "experimental/interests"


async def test_two_nodes_get_connected_and_say_so(tmp_path: Path, sample: Events) -> None:
    """And what a peer is worth: how near it is, how far it was behind, how likely it is drawn."""
    async with running(tmp_path / "a") as (api, _, store), running(tmp_path / "b") as (_, other, _):
        await store.admit_local([multibase.decode(event["car"]) for event in sample[:5]])
        dead = f"/ip4/127.0.0.1/tcp/1/p2p/{other.peer_id}"
        good = other.addresses[0]
        answer = await api.post("/ceramic/peers", params={"addresses": [dead, good]})
        assert (answer.status_code, answer.content) == (204, b"")

        [peer] = (await until(api, "peers", lambda answer: answer["peers"]))["peers"]
        speaks = ["recon/1.2.0", "recon/1.0.0", "recon/0.1.0"]
        assert peer["id"] == did_of_peer(other.peer_id)
        assert (peer["addresses"], peer["speaks"]) == ([good], speaks)
        recon = await until(api, "recon", lambda answer: answer["transfers"])
        # The other side's session may have ended before, without an event.
        moved = recon["transfers"][0]
        assert moved in recon["syncs"]
        assert (moved["peer"], moved["outcome"]) == (other.peer_id, "agreed")
        assert moved["events_sent"] == 5
        assert [peer["id"] for peer in recon["peers"] if peer["connected"]] == [other.peer_id]
        assert recon["peers"][0]["speaks"] == speaks
        for name, row in (("SyncReport", moved), ("PeerInfo", recon["peers"][0])):
            assert set(row) == set(DOCUMENT["components"]["schemas"][name]["properties"])

        recon = await until(
            api, "recon", lambda answer: all(e["behind"] and e["latency"] for e in answer["peers"])
        )
        [peer] = recon["peers"]
        assert 0 < peer["behind"] <= 1
        assert peer["score"] == 1
        assert 0 < peer["latency"] < 60
        metrics = (await api.get("/metrics")).text
        assert 'recon_peers{state="connected"} 1.0' in metrics
        assert re.search(r'recon_peers_by_latency\{latency="(under_\w+|slower)"\} 1.0', metrics)
        assert re.search(r'recon_peers_by_lag\{behind="(under_\w+|further)"\} 1.0', metrics)
        assert 'recon_peers_by_overlap{covers="everything"} 1.0' in metrics
        assert "recon_peer_largest_score_ratio 1.0" in metrics


async def test_where_a_node_is_announced_and_whom_it_found_there(tmp_path: Path) -> None:
    interest = {"sep": "family", "sepValue": "tea"}
    async with (
        running(tmp_path / "a", discovery=True) as (api, _, _),
        running(tmp_path / "b", discovery=True) as (other_api, other, _),
    ):
        await other_api.post("/ceramic/interests", json=interest)
        await api.post("/ceramic/peers", params={"addresses": other.addresses[0]})
        await api.post("/ceramic/interests", json=interest)
        recon = await until(
            api,
            "recon",
            lambda answer: [(e["told"], e["found"]) for e in answer["rendezvous"]] == [(1, 1)] * 2,
        )
        network, tea = recon["rendezvous"]
        assert (network["sort_value"], tea["sort_value"]) == (None, "tea")
        assert tea["key"] == sort_value_rendezvous_of(Network.local(7), "tea").key.hex()
        assert tea["announced_at"] <= time.time()
        assert 'recon_rendezvous{state="announced"} 2.0' in (await api.get("/metrics")).text


@pytest.mark.parametrize("versions", [VERSIONS, ()])
async def test_what_a_peer_is_interested_in(tmp_path, versions):
    """Of a node that speaks the rings alone, as a ceramic-one node does, the same is known."""
    interest = {"sep": "model", "sepValue": "kh4q0ozorrgaq2mezktnrmdwleo1d"}
    async with (
        running(tmp_path / "a") as (api, p2p, _),
        running(tmp_path / "b", versions) as (other_api, other, _),
    ):
        await other_api.post("/ceramic/interests", json=interest)
        [own] = (await read(other_api, LISTING))["interests"]
        await api.post("/ceramic/peers", params={"addresses": other.addresses})
        path = f"{LISTING}?peerId={other.peer_id}"
        [theirs] = (await until(api, path, lambda answer: answer["interests"]))["interests"]
        assert set(theirs) == {"data"}
        if not versions:
            assert theirs["data"] == own["data"]
        for path in (LISTING, f"{LISTING}?peerId={p2p.peer_id}"):
            assert await read(api, path) == {"interests": []}


async def test_which_interests_a_peer_shares(tmp_path: Path, sample: Events) -> None:
    """Of ours, and how many of our events that is: with all of them, with one, and with none."""
    tea, coffee = ({"sep": "family", "sepValue": value} for value in ("tea", "coffee"))
    async with (
        running(tmp_path / "a") as (api, _, store),
        running(tmp_path / "b") as (other_api, other, _),
    ):
        await store.admit_local([multibase.decode(event["car"]) for event in sample[:5]])
        await api.post("/ceramic/peers", params={"addresses": other.addresses})

        async def shares(expected: list[str], covers: float) -> None:
            right = [(expected, covers)]
            for path in ("peers", "recon"):
                await until(
                    api,
                    path,
                    lambda answer: [(e["shares"], e["covers"]) for e in answer["peers"]] == right,
                )

        await shares([], 1.0)
        await other_api.post("/ceramic/interests", json=tea)
        await shares([], 0.0)
        await api.post("/ceramic/interests", json=coffee)
        await shares([], 0.0)
        await api.post("/ceramic/interests", json=tea)
        await shares(["family=tea"], 1.0)
        await other_api.post("/ceramic/interests", json=coffee)
        await shares(["family=coffee", "family=tea"], 1.0)


async def test_a_peer_that_cannot_be_reached(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as (api, p2p, _):
        peer_id = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
        for address in (
            f"/ip4/127.0.0.1/tcp/1/p2p/{peer_id}",
            "/ip4/127.0.0.1/tcp/1",
            "/nonsense",
            p2p.addresses[0],
        ):
            answer = await api.post("/ceramic/peers", params={"addresses": address})
            assert answer.status_code == 400, address
            assert address in answer.json()["message"]
