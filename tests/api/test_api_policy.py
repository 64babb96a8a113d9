"""How clients learn of a write policy."""

import json
from pathlib import Path

import pytest
from api_samples import api_of, read
from nacl.signing import SigningKey

from recon_node.ceramic import METAMODEL, Network
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.ipld import multibase
from recon_node.store import Policy, PolicySettings, open_store

NETWORK = Network.local(7)
ALICE, MALLORY = (SigningKey(bytes([n]) * 32) for n in (1, 2))
MODEL = model_event(ALICE, {"name": "Note"})
GOOD = init_event(ALICE, MODEL.stream_id(), None)
BAD = init_event(MALLORY, MODEL.stream_id(), None)
LISTS = Policy.of(PolicySettings(deny_controllers=(controller_of(MALLORY),)))


def body(car: bytes) -> dict[str, str]:
    return {"data": multibase.encode(car)}


async def test_what_the_policy_refuses_is_forbidden(tmp_path: Path) -> None:
    """Alone, as one of many, and in the status and the metrics."""
    change = data_event(MALLORY, BAD, [BAD.cid], {})
    async with open_store(tmp_path, NETWORK, policy=LISTS) as store, api_of(store) as api:
        answer = await api.post("/ceramic/events", json=body(BAD.car))
        assert answer.status_code == 403
        assert answer.json()["message"] == (
            "the write policy of this node refuses the stream: its controller "
            f"{controller_of(MALLORY)} is in deny_controllers"
        )
        assert (await read(api, "recon"))["write_policy"] == {
            "allow_models": [],
            "deny_models": [],
            "allow_controllers": [],
            "deny_controllers": [controller_of(MALLORY)],
            "refused": 1,
            "not_fetched": 0,
        }
        metrics = (await api.get("/metrics")).text
        assert 'recon_verdicts_total{status="refused_by_policy"} 1.0' in metrics
        lines = "\n".join(json.dumps(body(event.car)) for event in (BAD, GOOD, change, MODEL))
        headers = {"Content-Type": "application/x-ndjson"}
        answer = await api.post("/ceramic/events", content=lines, headers=headers)
        verdicts = answer.json()
        assert [verdict["status"] for verdict in verdicts] == ["refused", "new", "refused", "new"]
        assert all("is in deny_controllers" in verdicts[n]["reason"] for n in (0, 2))
        assert store.head == len(store.keys) == 2


@pytest.mark.parametrize("setting", ["allow_models", "deny_models"])
async def test_the_metamodel_can_be_listed(tmp_path: Path, setting: str) -> None:
    policy = Policy.of(PolicySettings(**{setting: (str(METAMODEL),)}))
    async with open_store(tmp_path, NETWORK, policy=policy) as store, api_of(store) as api:
        answers = [await api.post("/ceramic/events", json=body(e.car)) for e in (MODEL, GOOD)]
        statuses = [answer.status_code for answer in answers]
        assert statuses == ([204, 403] if setting == "allow_models" else [403, 204])
