"""POST /ceramic/events and GET /ceramic/events/{cid}, over a real store."""

import json

import httpx
import trio
from api_samples import KEY, Api, Events, api_of, read

from recon_node.api.settings import Limits
from recon_node.ceramic import METAMODEL
from recon_node.ceramic.auth.did import controller_of
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor, multibase
from recon_node.store import Store


async def test_an_event_comes_back_as_it_was_sent_in_any_multibase(api, sample, store):
    """And sending it again changes nothing."""
    event = sample[0]
    car = multibase.decode(event["car"])
    for base in ("base64", "base64url", "base64pad", "base32", "base16"):
        body = {"data": multibase.encode(car, base), "id": "is not looked at"}
        answer = await api.post("/ceramic/events", json=body)
        assert (answer.status_code, answer.content) == (204, b"")
        assert store.head == len(store.keys) == 1
    [row] = await store.reader.feed(0, 1)
    other = multibase.encode(CID.parse(event["cid"]), "base58btc")
    for name in (event["cid"], other, multibase.encode(row.event_id, "base16")):
        assert await read(api, f"events/{name}") == {"id": event["cid"], "data": event["car"]}


async def test_many_clients_add_events_at_once_while_few_may_ask(sample, store):
    statuses: list[int] = []
    async with api_of(store, limits=Limits(requests=1)) as api:

        async def add(event: dict[str, str]) -> None:
            answer = await api.post("/ceramic/events", json={"data": event["car"]})
            statuses.append(answer.status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(add, sample[0])
    assert statuses == [204] * 300
    assert store.batch_durations["ok"].count < 50, "they share transactions"


async def test_the_car_may_be_in_a_car_of_version_2(api: Api, sample: Events, store: Store) -> None:
    inner = multibase.decode(sample[0]["car"])
    numbers = b"".join(number.to_bytes(8, "little") for number in (51, len(inner), 0))
    outer = bytes.fromhex("0aa16776657273696f6e02") + bytes(16) + numbers + inner
    for data, status in ((outer[:-1], 400), (outer[:40], 400), (outer + b"an index", 204)):
        answer = await api.post("/ceramic/events", json={"data": multibase.encode(data)})
        assert answer.status_code == status
        if status == 400:
            assert "CARv2" in answer.json()["message"]
    answer = await api.post("/ceramic/events", json={"data": multibase.encode(b"\x0a" + inner)})
    assert answer.status_code == 400
    assert (await read(api, f"events/{sample[0]['cid']}"))["data"] == sample[0]["car"]
    assert store.head == 1


async def post_lines(api: Api, *lines: str, kind: str = "application/x-ndjson") -> httpx.Response:
    body = "\n".join(lines)
    return await api.post("/ceramic/events", content=body, headers={"content-type": kind})


def line_of(event: dict[str, str]) -> str:
    return json.dumps({"data": event["car"]})


async def test_many_events_in_one_body(api: Api, sample: Events, store: Store) -> None:
    events = sample[:50]
    answer = await post_lines(api, *map(line_of, events), kind="application/X-NDJSON; v=1")
    assert answer.status_code == 200
    assert answer.json() == [{"id": event["cid"], "status": "new"} for event in events]
    assert [str(row.event_cid) for row in await store.reader.feed(0, 99)] == [
        event["cid"] for event in events
    ]
    answer = await post_lines(api, *map(line_of, sample[40:60]), "", " ")
    assert [verdict["status"] for verdict in answer.json()] == ["known"] * 10 + ["new"] * 10


async def test_each_of_many_is_refused_alone(api: Api, sample: Events, store: Store) -> None:
    orphan = next(event for event in reversed(sample) if "prev" in event)
    lines = ["{", "[1]", "{}", '{"data": "?"}', '{"data": "mAAAA"}', line_of(orphan)]
    answer = await post_lines(api, *lines, line_of(sample[0]))
    assert answer.status_code == 200
    *refused, good = answer.json()
    assert good == {"id": sample[0]["cid"], "status": "new"}
    assert [verdict["status"] for verdict in refused] == ["refused"] * 6
    words = ["is not JSON", "should be a JSON object", "'data' is missing", "multibase", "CAR"]
    for verdict, word in zip(refused, words, strict=False):
        assert word in verdict["reason"]
    assert "is missing" in refused[-1]["reason"]
    assert store.head == len(store.keys) == 1


async def test_a_line_builds_on_lines_before_it_only(api: Api, sample: Events) -> None:
    child = next(event for event in sample if "prev" in event)
    before = sample[: sample.index(child)]
    [prev] = [event for event in before if event["cid"] == child["prev"]]
    others = [event for event in before if event is not prev]
    answer = await post_lines(api, *map(line_of, [*others, child, prev, child]))
    assert [verdict["status"] for verdict in answer.json()][-3:] == ["refused", "new", "new"]


async def test_bounds_of_many_events(api: Api) -> None:
    assert (await post_lines(api)).json() == []
    answer = await post_lines(api, *["{}"] * 10_000)
    assert (answer.status_code, len(answer.json())) == (200, 10_000)
    answer = await post_lines(api, *["{}"] * 10_001)
    assert answer.status_code == 400
    assert answer.json() == {"message": "the body has more than 10000 lines"}


async def test_unknown_fields_are_refused_with_the_sentence_that_clients_look_for(api: Api) -> None:
    header = {"controllers": [controller_of(KEY)], "model": METAMODEL.to_bytes(), "unexpected": 1}
    block = dag_cbor.encode({"header": header, "data": None})
    cid = CID.of(DAG_CBOR, block)
    text = multibase.encode(car.encode([cid], {cid: block}))
    answer = await api.post("/ceramic/events", json={"data": text})
    assert answer.status_code == 400
    message = answer.json()["message"]
    assert "'unexpected'" in message
    assert "Event bytes do not round-trip. This most likely means the event contains" in message
