"""The classic feed: two published messages, feeds signed here, and each rule broken on purpose."""

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors
from support.tangle_samples import AUTHOR, feed_message

from recon_node.tangles.classic_feed import (
    FeedRule,
    classic_feed,
    message_id,
    parse_network_key,
    signing_input,
)

# The messages of the protocol's guide, and others with the verdicts of the reference.
SSB = vectors.load("ssb")
GUIDE = SSB["guide"]
POST = {"type": "post"}


def _feed(length: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for sequence in range(1, length + 1):
        previous = message_id(messages[-1]) if messages else None
        messages.append(feed_message(sequence, previous, {"type": "post", "text": f"№ {sequence}"}))
    return messages


def test_the_messages_of_the_protocol_guide() -> None:
    feed = classic_feed(reversed(GUIDE), GUIDE[0]["author"])
    assert feed.order == (GUIDE[1]["previous"], message_id(GUIDE[1]))
    assert feed.tip == "%R7lJEkz27lNijPhYNDzYoPjM0Fp+bFWzwX0SmNJB/ZE=.sha256"
    assert not feed.excluded


@pytest.mark.parametrize("facts", SSB["messages"], ids=lambda facts: facts["what"])
def test_the_verdicts_and_ids_of_the_reference(facts: dict[str, Any]) -> None:
    message = json.loads(facts["text"])
    assert message_id(message) == facts["id"]
    key = None if facts["hmac"] is None else parse_network_key(facts["hmac"])
    assert bool(classic_feed([message], SSB["author"], key).order) == facts["valid"]


@pytest.mark.parametrize("facts", SSB["feeds"], ids=lambda facts: facts["what"])
def test_only_the_time_of_the_first_message_matters_as_for_the_reference(facts) -> None:
    messages = list(map(json.loads, facts["texts"]))
    assert len(classic_feed(messages, facts["author"]).order) == facts["valid"]


def test_what_json_has_no_number_for_is_null() -> None:
    content = {**POST, "numbers": [-0.0, math.nan, math.inf, -math.inf, 10**400, -(10**400)]}
    text = "0" + ",\n      null" * 5
    assert f'"numbers": [\n      {text}\n' in signing_input({"content": content}).decode()
    [message] = [feed_message(1, None, content)]
    assert classic_feed([message], AUTHOR).tip == message_id(message)


def test_many_keys_that_look_like_indexes_take_no_longer_than_others() -> None:
    """They once took a minute for 20,000, and four times as long for twice as many."""
    ordered = {str(number): number for number in range(50_000)}
    assert message_id(dict(reversed(ordered.items()))) == message_id(ordered)


@pytest.mark.parametrize("text", ["", "AAAA", "A" * 43, "A" * 43 + "?", "A" * 42 + "B="])
def test_other_keys_of_networks_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - in whatever words
        parse_network_key(text)


@given(st.integers(1, 8), st.randoms())
def test_a_feed_is_found_among_all_messages_in_any_order(length: int, rng: random.Random) -> None:
    messages = [*_feed(length), *GUIDE]
    rng.shuffle(messages)
    expected = tuple(map(message_id, _feed(length)))
    assert classic_feed(messages, AUTHOR).order == expected


def test_it_ends_before_a_gap() -> None:
    first, second, third, fourth = _feed(4)
    feed = classic_feed([first, second, fourth], AUTHOR)
    assert feed.order == (message_id(first), message_id(second))
    assert feed.excluded == {message_id(fourth): FeedRule.GAP}
    assert classic_feed([first, second, third, fourth], AUTHOR).tip == message_id(fourth)


def test_it_ends_where_its_author_forked_it() -> None:
    first, second, third = _feed(3)
    rival = feed_message(2, message_id(first), "c2VjcmV0.box")
    feed = classic_feed([first, second, rival, third], AUTHOR)
    assert feed.order == (message_id(first),)
    assert feed.excluded == {
        message_id(second): FeedRule.FORK,
        message_id(rival): FeedRule.FORK,
        message_id(third): FeedRule.GAP,
    }


DEEP: Any = {}
for _ in range(3000):
    DEEP = {"": DEEP}
BROKEN = [
    (FeedRule.PREVIOUS, feed_message(2, message_id(GUIDE[0]), POST)),
    (FeedRule.SIGNATURE, {**feed_message(2, None, POST), "timestamp": 1}),
    (FeedRule.SIGNATURE, {**feed_message(2, None, POST), "signature": "=?.sig.ed25519"}),
    (FeedRule.FIELDS, feed_message(True, None, POST)),
    (FeedRule.FIELDS, feed_message(2**31, None, POST)),
    (FeedRule.CONTENT, feed_message(2, None, 5)),
    (FeedRule.SIZE, feed_message(2, None, {**POST, "text": "x" * 8192})),
    (FeedRule.SIZE, feed_message(2, None, {**POST, "deep": DEEP})),
    (FeedRule.GAP, feed_message(-1, None, POST)),
]


@pytest.mark.parametrize(("rule", "message"), BROKEN, ids=lambda value: getattr(value, "name", ""))
def test_a_message_that_breaks_a_rule_is_left_out(rule: FeedRule, message: dict[str, Any]) -> None:
    [first] = _feed(1)
    feed = classic_feed([first, message], AUTHOR)
    assert feed.order == (message_id(first),)
    assert feed.excluded[message_id(message)] is rule


@pytest.mark.parametrize("author", ["", "@AAAA.ed25519", "@" + "A" * 43 + "=.sha256", "did:key:z"])
def test_invalid_authors_are_refused(author: str) -> None:
    with pytest.raises(ValueError, match="is not an SSB identity"):
        classic_feed([], author)
