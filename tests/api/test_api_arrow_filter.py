"""The feed as Arrow, filtered at the node, compared with a filter in Python over all of it."""

import itertools
import json
from random import Random

import pyarrow as pa
import pytest
from api_samples import api_of
from nacl.signing import SigningKey

from recon_node.api.routes import arrow
from recon_node.api.settings import Limits
from recon_node.ceramic import InitHeader, Network, Shard, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.store import FeedFilter, Store
from recon_node.store.db import log_schema
from recon_node.store.reading import columns

ARROW = "/ceramic/feed/arrow"
KEYS = [SigningKey(bytes([n]) * 32) for n in (1, 2)]
MODELS = [StreamId(StreamType.MODEL, CID.of(DAG_CBOR, name)) for name in (b"one", b"two")]
FILTERS = ("sortKey", "sortValue", "controller", "streamId", "controllers")
SHARDS = [Shard.of(number, 2) for number in (1, 2)]


@pytest.fixture
async def headers(store: Store, rng: Random) -> dict[bytes, tuple[InitHeader, str]]:
    """A store with eight streams in each other's midst; the header and StreamID of each."""
    cars, streams, tips = [], {}, {}
    for number, (key, model) in enumerate(itertools.product(KEYS, [*MODELS, None, MODELS[0]])):
        unique = bytes([number])
        init = init_event(key, model, {}, unique=unique) if model else model_event(key, {})
        streams[bytes(init.cid)] = (init.header, str(init.stream_id(init.header)))
        cars.append(init.car)
        tips[init.cid] = (key, init, init.cid)
    for number in range(60):
        key, init, tip = tips[rng.choice(list(tips))]
        event = data_event(key, init, [tip], [{"op": "add", "path": "/n", "value": number}])
        tips[init.cid] = (key, init, event.cid)
        cars.append(event.car)
    verdicts = await store.admit_local(cars)
    assert {verdict.status for verdict in verdicts} == {"new"}
    return streams


def values_of(header: InitHeader, stream_id: str) -> dict[str, str]:
    """What a filter has to say for a stream to fit."""
    [shard] = (shard for shard in SHARDS if shard.covers(header.controller))
    values = (header.sort_key, header.sort_value, header.controller, stream_id, str(shard))
    return dict(zip(FILTERS, values, strict=True))


async def test_any_filter_leaves_what_fits_at_its_positions(services, headers, rng):
    streams = {cid: values_of(*stream) for cid, stream in headers.items()}
    async with api_of(services, limits=Limits(arrow_rows=7)) as api:
        everything = pa.ipc.open_stream((await api.get(ARROW)).content).read_all().to_pylist()
        for size in range(1, 6):
            for names in itertools.combinations(FILTERS, size):
                values = rng.choice(list(streams.values()))
                wanted = {name: values[name] for name in names}
                after = rng.randint(0, 20)
                upto = rng.randint(50, len(everything))
                answer = await api.get(ARROW, params={**wanted, "after": after, "upto": upto})
                read = pa.ipc.open_stream(answer.content)
                described = json.dumps(wanted, sort_keys=True).encode()
                assert read.schema.metadata == {b"filter": described}
                assert read.read_all().to_pylist() == [
                    row
                    for row in everything[after:upto]
                    if wanted.items() <= streams[row["stream_cid"]].items()
                ]
                assert answer.content.endswith(arrow.END_OF_STREAM)


async def test_a_piece_without_a_row_is_an_empty_batch(api, headers, monkeypatch):
    monkeypatch.setattr(arrow, "_SEARCHED_AT_ONCE", 10)
    answer = await api.get(ARROW, params={"sortValue": "none has it", "upto": 35})
    assert [batch.num_rows for batch in pa.ipc.open_stream(answer.content)] == [0, 0, 0, 0]


async def test_a_stream_is_found_by_its_index_and_the_rest_without_cars(store, tmp_path):
    """What SQLite does first decides how much of the log a filter reads."""
    network = Network.local(7)
    connection = log_schema.open_reader(tmp_path / "node")

    def plan(wanted: FeedFilter) -> list[str]:
        terms, values = columns._where(wanted, network)
        sql = f"{columns.ROWS}WHERE position > 0 AND position <= 9 {terms}ORDER BY position"
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]

    stream = StreamId(StreamType.MODEL_INSTANCE, MODELS[0].cid)
    by_stream = plan(FeedFilter(stream_id=stream))
    assert by_stream[0].startswith("SEARCH events USING INDEX by_stream (stream=? AND pos")
    by_value = plan(FeedFilter(sort_key="model", sort_value=str(MODELS[0]), controller="did:x:y"))
    assert by_value[0].startswith("SEARCH events USING INDEX by_position")
    by_cid = f"EXPLAIN QUERY PLAN {columns._rows_of(2)}"
    steps = [row[3] for row in connection.execute(by_cid, (b"", b"", 9))]
    first, second = (step for step in steps if step == "SCAN wanted" or " events " in step)
    assert first == "SCAN wanted"  # so the rows come in the order of the CIDs
    assert second.startswith("SEARCH events USING INDEX by_cid")
    assert not any("TEMP B-TREE" in step for step in by_stream + by_value + steps)
    connection.close()
