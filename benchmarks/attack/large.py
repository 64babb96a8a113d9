"""Attacks by content that unfolds: little on the wire, much in memory, wherever it is decoded."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
from nacl.signing import SigningKey

from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import OWNER, Field, document_id, make_model
from recon_node.ceramic import Event
from recon_node.ceramic.builder import init_event

_LISTS = 24
_AT_ONCE = 10


@attack()
def crowds_in_a_thread(here: Field) -> None:
    """Large documents of a stranger that name an honest thread are decoded by whoever reads it."""
    key = SigningKey.generate()
    properties = {"a": {"type": "string"}, "n": {}, "tangles": {"type": "object"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    model, model_id = make_model(key, schema=schema)
    start = {"t": {"root": None, "previous": None}}
    root = init_event(OWNER, model_id, {"a": "r", "tangles": start}, unique=b"root")
    name = document_id(root)
    link = {"t": {"root": name, "previous": [name]}}
    crowd = [
        init_event(
            key, model_id, {"a": "x", "tangles": link, "n": [[]] * 900_000}, unique=bytes([number])
        )
        for number in range(_LISTS)
    ]
    _bring(here, [model, root, *crowd])
    while here.get("/ceramic/tangles").status_code == 503:  # the index follows the feed
        time.sleep(1)
    with here.attacked():
        answers = [here.get(path) for path in (f"/ceramic/tangles/t/{name}", "/ceramic/tangles")]
    here.expect("answers", [200, 200], [answer.status_code for answer in answers])
    thread = answers[0].json()
    here.expect("the answer says that it is cut", True, thread["truncated"])
    shown = [message["id"] for message in thread["messages"]]
    here.expect("the thread begins with its root", name, shown[0])


@attack()
def two_that_unfold(here: Field) -> None:
    """Two documents of a million lists each, and as many in bodies of requests, are asked for at
    once, by whatever decodes them."""
    key = SigningKey.generate()
    schema = {"type": "object", "properties": {"n": {}}, "additionalProperties": False}
    model, model_id = make_model(key, schema=schema)
    deep: list[object] = []
    for _ in range(60):
        deep = [deep]
    wide = [init_event(key, model_id, {"n": [[]] * 900_000}, unique=b"w")]
    wide.append(init_event(key, model_id, {"n": [deep] * 15_000}, unique=b"d"))
    _bring(here, [model, *wide])
    ends = ("", "/events", "/picture", "/merge", "/preview", "/state")
    paths = [
        f"/ceramic/streams/{document_id(wide_event)}{end}" for end in ends for wide_event in wide
    ]
    paths += [f"/api/v0/dag/get?arg={wide_event.cid}" for wide_event in wide]
    body = b'{"data": [' + b"[]," * 330_000 + b"[]]}"
    post = partial(httpx.post, content=body, timeout=120)
    asked: list[Callable[[], httpx.Response]] = [
        *(partial(here.get, path, 120) for path in paths),
        *(partial(post, here.url + path) for path in ("/ceramic/events", "/ceramic/interests")),
    ]
    with here.attacked(), ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda ask: ask().status_code, asked))
    here.expect("answers without an error of the node", True, 500 not in answers)


def _bring(here: Field, events: list[Event]) -> None:
    for start in range(0, len(events), _AT_ONCE):
        here.add(events[start : start + _AT_ONCE])
    here.await_event(events[-1], 120)
