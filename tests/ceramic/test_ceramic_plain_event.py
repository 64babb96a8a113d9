"""Events that are read quickly are read as all others are."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from support import sdk_sample

from recon_node.ceramic import Event, InvalidEventError, event, parse_event
from recon_node.ceramic.auth.envelope import read_plain
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car, dag_cbor


@pytest.fixture(scope="module")
def cars() -> list[bytes]:
    return sdk_sample.cars()[::10]


@contextmanager
def slowly() -> Iterator[None]:
    with patch.object(event, "read_plain", lambda data: None):
        yield


def outcome(data: bytes) -> Event | str:
    try:
        return parse_event(data)
    except InvalidEventError as error:
        return str(error)


def agreed(data: bytes) -> str:
    """Which of the two ways was taken; both have the same outcome."""
    result = outcome(data)
    with slowly():
        assert outcome(data) == result
    if read_plain(data) is None:
        return "refused" if isinstance(result, str) else "read slowly"
    return "refused quickly" if isinstance(result, str) else "read quickly"


def signed(payload: bytes, envelope: dict[str, Any], *more: bytes) -> bytes:
    """The CAR of an event, whatever is in it."""
    payload_cid = CID.of(DAG_CBOR, payload)
    block = dag_cbor.encode({**envelope, "payload": bytes(payload_cid)})
    blocks = {payload_cid: payload, CID.of(DAG_JOSE, block): block}
    return car.encode([CID.of(DAG_JOSE, block)], blocks | {CID.of(DAG_CBOR, b): b for b in more})


def parts(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """The payload of a signed event, and its envelope."""
    read = parse_event(data)
    blocks = car.decode(data).blocks
    return blocks[read.envelope.payload], dag_cbor.decode(blocks[read.cid])


def test_events_of_the_sdk(cars: list[bytes]) -> None:
    assert set(map(agreed, cars)) == {"read quickly"}
    assert parse_event(bytearray(cars[0])) == parse_event(cars[0])  # in the other way


def test_changed_bytes(cars: list[bytes], rng: random.Random) -> None:
    data = next(car for car in cars if read_plain(car))
    for at in range(len(data)):
        changed = bytes([data[at] ^ 1 << rng.randrange(8)])
        assert agreed(data[:at] + changed + data[at + 1 :]) == "refused"
    for at in range(0, len(data), 7):
        assert agreed(data[:at]) == "refused"
        assert agreed(data + data[at:]) in ("refused", "read slowly")


def test_changed_blocks(cars: list[bytes], rng: random.Random) -> None:
    """With the CIDs that follow from them."""
    ways: Counter[str] = Counter()
    for data in filter(read_plain, cars):
        payload, envelope = parts(data)
        assert agreed(signed(payload, envelope)) == "read quickly"
        [signature] = envelope["signatures"]
        fields = dag_cbor.decode(payload)
        at = rng.randrange(len(payload))
        header = signature["protected"]
        place = rng.randrange(len(header))
        for variant in [
            signed(payload[:at] + bytes([rng.randrange(256)]) + payload[at + 1 :], envelope),
            signed(dag_cbor.encode({**fields, "more": 1}), envelope),
            signed(dag_cbor.encode({**fields, "proof": CID.of(DAG_CBOR, b"")}), envelope),
            signed(dag_cbor.encode([fields]), envelope),
            signed(payload, envelope, b"\xa0"),
            signed(payload, {**envelope, "link": None}),
            signed(payload, {"signatures": [signature, signature]}),
            *(
                signed(payload, {"signatures": [{**signature, **change}]})
                for change in (
                    {"signature": bytes(63)},
                    {"signature": bytes(65)},
                    {"signature": CID.of(DAG_CBOR, b"")},
                    {"protected": header[:place] + header[place + 1 :]},
                    {"protected": b""},
                    {"protected": header[:-1] + b" " * 2000 + header[-1:]},
                    {"protected": "text"},
                    {"protected": header.replace(b"{", b'{"cap":"ipfs://bafy",', 1)},
                    {"more": 1},
                )
            ),
        ]:
            ways[agreed(variant)] += 1
    assert ways.keys() == {"read quickly", "read slowly", "refused", "refused quickly"}


def test_lengths_that_are_not_the_shortest(cars: list[bytes]) -> None:
    data = next(car for car in cars if read_plain(car))
    short = signed(b"\xa0", parts(data)[1])
    assert agreed(short) == "refused quickly"
    for form, bytes_ in ((data, 2), (short, 1)):
        [first, *_] = car.decode(form).blocks
        at = form.index(first, 60) - bytes_
        longer = form[at : at + bytes_ - 1] + bytes([form[at + bytes_ - 1] | 128, 0])
        assert agreed(form[:at] + longer + form[at + bytes_ :]) == "refused"
