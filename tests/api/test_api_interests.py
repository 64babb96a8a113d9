"""Interests: the same ranges of keys, however sort value and stream were written.

The sort value in base58 and base36 is the pair that ceramic-one's own tests use (rust-ceramic,
api/src/tests.rs, register_interest_sort_value_controller).
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from recon_node.ceramic import StreamId, controller_range, sort_value_range, stream_range
from recon_node.ipld import multibase
from recon_node.store import Store

BASE36 = "k2t6wz4ylx0qr6v7dvbczbxqy7pqjb0879qx930c1e27gacg3r8sllonqt4xx9"
BASE58 = "z3KWHw5Efh2qLou2FEdz3wB8ZvLgURJP94HeijLVurxtF1Ntv6fkg2G"
DID = "did:key:z6MknuhURV1TKy8SU1aDpHkVWDMS7GirNKfpWzZmCHWSvBAk"
STREAM = "k2t6wz4ylx0qs435j9oi1s6469uekyk6qkxfcb21ikm5ag2g1cook14ole90aw"


def ranges(store: Store) -> list[tuple[bytes, bytes]]:
    return [(key_range.lower, key_range.upper) for key_range in store.key_ranges()]


@pytest.mark.parametrize("sort_value", [BASE36, BASE58])
@pytest.mark.parametrize("by_path", [True, False])
async def test_a_sort_value_in_any_multibase(
    api: httpx.AsyncClient, store: Store, sort_value: str, by_path: bool
) -> None:
    if by_path:
        answer = await api.post(f"/ceramic/interests/model/{sort_value}")
    else:
        answer = await api.post("/ceramic/interests", json={"sep": "model", "sepValue": sort_value})
    assert (answer.status_code, answer.content) == (204, b"")
    assert ranges(store) == [sort_value_range(store.network, BASE36)]


@pytest.mark.parametrize("by_path", [True, False])
async def test_controller_and_stream(api: httpx.AsyncClient, store: Store, by_path: bool) -> None:
    stream = StreamId.parse(STREAM)
    more: dict[str, Any] = {
        "controller": DID,
        "streamId": multibase.encode(stream.to_bytes(), "base64url"),
    }
    if by_path:
        answer = await api.post(f"/ceramic/interests/model/{BASE36}", params=more)
    else:
        body = {"sep": "model", "sepValue": BASE36, **more}
        answer = await api.post("/ceramic/interests", json=body)
    assert answer.status_code == 204
    assert ranges(store) == [stream_range(store.network, BASE36, DID, stream.cid)]


async def test_controller_alone_and_nulls(api: httpx.AsyncClient, store: Store) -> None:
    body = {"sep": "model", "sepValue": BASE36, "controller": DID, "streamId": None}
    for _ in range(2):  # the second time, it is known already
        assert (await api.post("/ceramic/interests", json=body)).status_code == 204
    assert ranges(store) == [controller_range(store.network, BASE36, DID)]
    assert len(store.interests) == 1
