"""Tangles over Ceramic documents: what counts as a message, and one order for any arrival."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import deterministic_init_event, init_event, model_event
from recon_node.tangles.documents import (
    MAX_PREVIOUS,
    MAX_TANGLES,
    DocumentMessage,
    asserted_time,
    message_of,
    tangle_of_documents,
)
from recon_node.tangles.tangle import Backlinks, TangleError, TangleRule

KEYS = [SigningKey(bytes([n]) * 32) for n in (1, 2, 3, 4)]
MODEL = model_event(KEYS[0], {"name": "Message", "version": "1.0"}).stream_id()
ROOT: dict[str, Any] = {"root": None, "previous": None}


def message(author: int, tangles: Any, **content: Any) -> Event:
    data = {**content, "tangles": tangles}
    return init_event(KEYS[author], MODEL, data, unique=b"%d" % author)


def read(event: Event) -> DocumentMessage:
    message = message_of(event)
    assert message is not None
    return message


def thread(rng: random.Random, size: int) -> list[DocumentMessage]:
    """Messages by four authors, each of whom knows some of those before."""
    root = read(message(0, {"thread": ROOT}, text="root"))
    messages, known = [root], [str(root.id)]
    for number in range(size):
        previous = rng.sample(known, min(len(known), rng.randint(1, 3)))
        links = {"thread": {"root": str(root.id), "previous": previous}}
        event = init_event(
            KEYS[rng.randrange(4)],
            MODEL,
            {"n": number, "timestamp": rng.randrange(5), "tangles": links},
            unique=b"%d" % number,
        )
        messages.append(replace(read(event), received=rng.randrange(100)))
        known.append(str(messages[-1].id))
    return messages


@settings(max_examples=16)  # the messages are signed
@given(st.randoms(use_true_random=False), st.integers(0, 8))
def test_the_order_depends_on_the_messages_alone(rng: random.Random, size: int) -> None:
    messages = thread(rng, size)
    tangle = tangle_of_documents(messages, "thread", messages[0].id)
    elsewhere = [replace(message, received=rng.randrange(100)) for message in messages]
    rng.shuffle(elsewhere)
    assert tangle_of_documents(elsewhere, "thread", messages[0].id) == tangle
    places = {id_: place for place, id_ in enumerate(tangle.order)}
    assert len(places) == size + 1
    for id_, previous in tangle.previous.items():
        assert all(places[base] < places[id_] for base in previous)


def test_ties_by_receipt_take_the_earlier_time() -> None:
    root = read(message(0, {"thread": ROOT}))
    links = {"thread": {"root": str(root.id), "previous": [str(root.id)]}}
    late = replace(read(message(1, links, timestamp=100)), received=1)
    early = replace(read(message(2, links, timestamp=2)), received=3)
    messages = (root, late, early)

    def order(ties: Any) -> tuple[str, ...]:
        return tangle_of_documents(messages, "thread", root.id, ties).order[1:]

    assert order("asserted") == (str(early.id), str(late.id))
    assert order("received") == (str(late.id), str(early.id))


def test_what_a_model_rejects_is_excluded_with_all_that_builds_on_it() -> None:
    root = read(message(0, {"thread": ROOT}))
    links = {"thread": {"root": str(root.id), "previous": [str(root.id)]}}
    wrong = replace(read(message(1, links)), errors=("/n: is missing",))
    after = read(message(2, {"thread": {"root": str(root.id), "previous": [str(wrong.id)]}}))
    tangle = tangle_of_documents((root, wrong, after), "thread", root.id)
    assert tangle.order == (str(root.id),)
    rules = {id_: exclusion.rule for id_, exclusion in tangle.excluded.items()}
    assert rules == {str(wrong.id): TangleRule.REJECTED, str(after.id): TangleRule.PREVIOUS_OUTSIDE}
    with pytest.raises(TangleError, match="is rejected by its model: bad"):
        tangle_of_documents([replace(root, errors=("bad",))], "thread", root.id)


OTHER = str(StreamId(StreamType.MODEL_INSTANCE, MODEL.cid))


@pytest.mark.parametrize(
    "links",
    [
        [],
        {"root": 1, "previous": []},
        {"root": "no StreamID", "previous": []},
        {"root": OTHER, "previous": OTHER},
        {"root": OTHER, "previous": [1]},
        {"root": OTHER, "previous": ["no StreamID"]},
        {"root": OTHER, "previous": [OTHER] * (MAX_PREVIOUS + 1)},
    ],
)
def test_links_of_another_shape_are_not_links(links: Any) -> None:
    assert message_of(message(0, {"thread": links})) is None
    assert list(read(message(0, {"thread": links, "other": ROOT})).tangles) == ["other"]


def test_documents_without_tangles_are_not_messages() -> None:
    assert message_of(init_event(KEYS[0], MODEL, {"n": 1})) is None
    assert message_of(init_event(KEYS[0], MODEL, {"tangles": "none"})) is None
    assert message_of(deterministic_init_event(controller_of(KEYS[0]), MODEL)) is None
    many = {f"tangle {n}": ROOT for n in range(MAX_TANGLES + 1)}
    assert message_of(message(0, many)) is None
    assert message_of(message(0, {"": ROOT})) is None


TIMES = [math.nan, math.inf, -math.inf, 10**400, True, "1", None]


@pytest.mark.parametrize("time", TIMES, ids=lambda time: str(time)[:9])
def test_times_are_finite_numbers(time: Any) -> None:
    assert asserted_time({"timestamp": time}) is None
    assert asserted_time({"timestamp": 1.5}) == 1.5


def test_ids_are_compared_as_streams() -> None:
    links = {"thread": {"root": f"ceramic://{OTHER}", "previous": [OTHER]}}
    assert read(message(0, links)).tangles == {"thread": Backlinks(OTHER, (OTHER,))}
