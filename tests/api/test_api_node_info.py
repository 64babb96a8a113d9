"""What a node says of itself: version, network, Recon's state, metrics; and HTTP's small print."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from api_samples import Api, Events, api_of
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.rsa import create_new_key_pair as create_rsa_key_pair
from libp2p.peer.id import ID
from multiformats import multibase as oracle
from multiformats import multicodec
from prometheus_client.parser import text_string_to_metric_families
from support import vectors

from recon_node import __version__
from recon_node.api.endpoint import Services
from recon_node.api.metrics.catalogue import FAMILIES
from recon_node.api.routes.node_info import did_of_peer, with_peer_id
from recon_node.base.timing import Durations
from recon_node.p2p import PeerInfo
from recon_node.recon import Sha256a
from recon_node.store import Store


async def test_who_it_is(api: Api) -> None:
    live = await api.get("/ceramic/liveness")
    assert (live.status_code, live.content) == (200, b"")
    assert (await api.get("/ceramic/version")).json() == {"version": __version__}
    assert (await api.post("/ceramic/version")).json() == {"version": __version__}
    assert (await api.get("/ceramic/config/network")).json() == {"name": "local-7"}
    assert (await api.get("/ceramic/peers")).json() == {"peers": []}


async def test_recon_returns_the_hash_of_all_keys(api: Api, filled: Events, store: Store) -> None:
    state = (await api.get("/ceramic/recon")).json()
    assert state["sha256a"] == Sha256a.of(*store.keys).hex().upper()
    assert (state["network"], state["events"], state["waiting"]) == ("local-7", len(filled), 0)
    assert state["syncs"] == []


async def test_a_disk_that_takes_nothing_is_shown(api: Api, sample: Events, store: Store) -> None:
    assert (await api.get("/ceramic/recon")).json()["disk"]["failure"] == ""
    store._writer.log.connection.execute("PRAGMA query_only = ON")
    refused = await api.post("/ceramic/events", json={"data": sample[0]["car"]})
    state = (await api.get("/ceramic/recon")).json()
    assert state["disk"]["failure"] in refused.json()["message"]
    assert "check its permissions and the mount" in state["disk"]["failure"]


def test_a_peer_id_as_did_key() -> None:
    """As ceramic-one writes peers: the Ed25519 key behind the peer id, with its multicodec; a peer
    id that hides its key stays as it is."""
    pair = create_new_key_pair()
    wrapped = multicodec.wrap("ed25519-pub", pair.public_key.to_bytes())
    expected = "did:key:" + oracle.encode(wrapped, "base58btc")
    assert did_of_peer(str(ID.from_pubkey(pair.public_key))) == expected
    hidden = str(ID.from_pubkey(create_rsa_key_pair(bits=2048).public_key))
    assert did_of_peer(hidden) == hidden


def test_addresses_end_with_the_peer_id() -> None:
    assert with_peer_id(["/ip4/1.2.3.4/tcp/1", "/ip4/1.2.3.4/tcp/2/p2p/Qm"], "Qm") == [
        "/ip4/1.2.3.4/tcp/1/p2p/Qm",
        "/ip4/1.2.3.4/tcp/2/p2p/Qm",
    ]


async def test_metrics(api: Api, filled: Events, store: Store) -> None:
    await api.get("/ceramic/events/nonsense")
    await api.get("/nowhere")
    await api.delete("/ceramic/peers/nobody")
    await store.admit_local([b"nonsense"])
    answer = await api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert values["recon_events", ("state", "delivered")] == len(filled)
    assert values["recon_feed_head",] == len(filled)
    assert values["recon_verdicts_total", ("status", "new")] == len(filled)
    assert values["recon_verdicts_total", ("status", "refused")] == 1
    assert ("recon_events", ("state", "known")) not in values  # a total beside its parts
    assert values["recon_admission_batch_duration_seconds_count", ("outcome", "ok")] >= 1
    assert values["recon_admission_batch_duration_seconds_count", ("outcome", "failed")] == 0
    request = "recon_http_request_duration_seconds_count", ("method", "GET")
    assert values[*request, ("path", "/ceramic/events/{event_id}"), ("status", "400")] == 1
    assert values[*request, ("path", "other"), ("status", "404")] == 1
    assert (request[0], ("method", "DELETE")) in {key[:2] for key in values}
    assert values["process_open_fds",] > 0


def check_catalogue(text: str) -> None:
    """What a node with all its parts shows is what the catalogue says, no more and no less."""
    shown = {}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("process_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            shown[name] = (family.type, family.documentation, labels)
    assert shown == {
        family.name: (family.kind, family.help, set(family.labels)) for family in FAMILIES
    }


def peer_of(**worth: Any) -> PeerInfo:
    """A connected peer."""
    expected = {"failures": 0, **worth}
    return PeerInfo(id="", addresses=(), connected=True, last_sync=None, speaks=(), **expected)


async def test_metrics_of_the_network_side(services: Services, tmp_path: Path) -> None:
    from recon_node.anchoring.journal import RequestState
    from recon_node.chain import ChainReport
    from recon_node.p2p import Counters

    counters = Counters(recon_bytes_sent=700, events_refused=2)
    for seconds in (0.5, 2.0, 0.004):
        counters.durations["initiator", "agreed"].observe(seconds)
    peers = SimpleNamespace(
        peer_id="12D3KooWnode",
        peers=lambda: [
            peer_of(latency=0.03, behind=0.2, covers=0.25, score=0.75, failures=2),
            peer_of(latency=2.0, covers=0.0, score=0.25),
            peer_of(latency=None, covers=None, score=0.0),
            dataclasses.replace(peer_of(latency=0.01), connected=False),
        ],
        counters=counters,
        rendezvous=lambda: [
            SimpleNamespace(sort_value=None, told=2, found=5),
            SimpleNamespace(sort_value="tea", told=0, found=1),
            SimpleNamespace(sort_value="chess", told=3, found=2),
        ],
        provider_records=17,
    )
    counters.memory.by_kind["turns"] = 9
    counts = {RequestState.WAITING: 2, RequestState.IN_TREE: 1}
    account = SimpleNamespace(balance=10**18)
    anchoring = SimpleNamespace(counts=counts, trees=3, spent=5 * 10**17)
    whole = dataclasses.replace(
        services,
        peers=peers,
        anchors=[ChainReport("eip155:1")],
        anchoring=SimpleNamespace(known=anchoring, account=account, alarm="no money"),
        snapshots=SimpleNamespace(durations={("create", "ok"): Durations()}, created_at=7.0),
        data_dir=tmp_path,
    )
    async with api_of(whole) as api:
        await api.get("/metrics")
        text = (await api.get("/metrics")).text
    check_catalogue(text)
    assert set(vectors.load("metric_lines")) <= set(text.splitlines())


async def test_head_and_options(api: Api) -> None:
    head = await api.head("/ceramic/version")
    assert (head.status_code, head.content) == (200, b"")
    options = await api.options("/ceramic/events")
    assert (options.status_code, options.headers["allow"]) == (200, "POST, OPTIONS")
