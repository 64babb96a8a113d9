"""Statements of interests as bytes: vectors, properties, and what is refused."""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from p2p_support import NETWORK
from support import vectors

from recon_node.ceramic import FIELDS_SIZE, EventId, Network, Shard, network_range, prefix_range
from recon_node.p2p.errors import PeerProtocolError
from recon_node.p2p.peers.interest_statement import (
    MAX_PREFIXES,
    MAX_STATEMENT,
    InterestStatement,
    decode,
    state,
)
from recon_node.recon import KeyRange, covers
from recon_node.store import Interest
from recon_node.store.kept_interests import key_ranges, parse_interest

VECTORS = vectors.load("interest_statements")
DIGEST = st.binary(min_size=8, max_size=8)
SOME_BYTES = st.integers(0, 2).map(lambda number: bytes([number]))
"""Few of them, so that prefixes often share bytes."""
PREFIX = st.lists(SOME_BYTES, max_size=FIELDS_SIZE).map(b"".join)


def apart(prefixes) -> list[bytes]:
    """The prefixes that start with no other one."""
    return sorted(
        prefix
        for prefix in set(prefixes)
        if not any(prefix != other and prefix.startswith(other) for other in prefixes)
    )


@pytest.mark.parametrize("row", VECTORS["statements"], ids=lambda row: row["name"])
def test_vectors(row):
    network = Network.parse(row["network"])
    ranges = key_ranges(network, map(parse_interest, row["interests"]))
    statement = state(network, ranges, bytes.fromhex(row["known"]))
    assert statement.encode().hex() == row["statement"]
    assert statement.digest.hex() == row["digest"]
    assert [prefix.hex() for prefix in statement.prefixes] == row["prefixes"]
    read = decode(bytes.fromhex(row["statement"]))
    assert read == statement
    assert read.network_id == row["network_id"] == network.id
    assert read.ranges(network) == ranges
    assert sha256(bytes.fromhex(row["statement"])[8:]).hexdigest()[:16] == row["digest"]


def test_the_statements_on_the_page_are_vectors():
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    text = page.split("## Interests: ")[1].split("\n## ")[0].split("that must be refused.")[1]
    shown = [block.replace(" ", "").replace("\n", "") for block in text.strip().split("\n\n")]
    assert shown == [VECTORS["statements"][1]["statement"], VECTORS["statements"][2]["statement"]]


@pytest.mark.parametrize("row", VECTORS["refused"], ids=lambda row: row["why"])
def test_what_is_refused(row):
    with pytest.raises(PeerProtocolError):
        decode(bytes.fromhex(row["bytes"]))


@given(st.lists(PREFIX, max_size=30), DIGEST)
def test_a_statement_says_exactly_what_the_interests_are(prefixes, known):
    ranges = [KeyRange(*prefix_range(NETWORK, prefix)) for prefix in prefixes]
    statement = state(NETWORK, ranges, known)
    assert list(statement.prefixes) == apart(prefixes)
    read = decode(statement.encode())
    assert (read, read.known, read.digest) == (statement, known, statement.digest)
    covered = read.ranges(NETWORK)
    for prefix in apart(prefixes):
        lower, upper = prefix_range(NETWORK, prefix)
        assert any(one <= lower and upper <= other for one, other in covered)
    size = sum(256 ** (FIELDS_SIZE - len(prefix)) for prefix in apart(prefixes))
    fields = slice(-FIELDS_SIZE, None)
    bounds = [(EventId(one).prefix[fields], EventId(two).prefix[fields]) for one, two in covered]
    assert size == sum(int.from_bytes(two) - int.from_bytes(one) + 1 for one, two in bounds)


@given(st.integers(1, 600), st.data())
def test_a_shard_is_sent_as_few_prefixes_and_read_as_one_range(count, data):
    shard = Shard.of(data.draw(st.integers(1, count)), count)
    other = Shard.of(data.draw(st.integers(1, count)), count)
    wanted = [Interest("family", "blog", None, None, part) for part in (shard, other)]
    for interests in (wanted[:1], wanted):
        ranges = key_ranges(NETWORK, interests)
        statement = decode(state(NETWORK, ranges).encode())
        assert len(statement.prefixes) <= 768 * len(interests)
        covered = statement.ranges(NETWORK)
        assert len(covered) <= len(ranges)
        assert all(any(a <= c and d <= b for a, b in covered) for c, d in ranges)
        assert covered[0].lower == ranges[0].lower
        assert covered[-1].upper == ranges[-1].upper


@given(st.lists(PREFIX, min_size=1, max_size=12), DIGEST, st.data())
def test_every_statement_can_be_written_in_only_one_way(prefixes, known, data):
    """Whatever is changed in its bytes: it is refused, or read as what is written so."""
    raw = bytearray(InterestStatement(7, tuple(apart(prefixes)), known).encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        statement = decode(bytes(raw))
    except PeerProtocolError:
        return
    assert statement.encode() == raw
    assert list(statement.prefixes) == apart(statement.prefixes)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(raw):
    with suppress(PeerProtocolError):
        assert decode(raw).encode() == raw


def test_no_interests_and_the_whole_network_are_distinguished():
    assert state(NETWORK, []).ranges(NETWORK) == []
    whole = KeyRange(*network_range(NETWORK))
    assert state(NETWORK, [whole]).prefixes == (b"",)
    assert decode(state(NETWORK, [whole]).encode()).ranges(NETWORK) == [whole]


def test_more_interests_than_fit_are_covered(rng):
    prefixes = [rng.randbytes(rng.choice((8, 16, 20))) for _ in range(3 * MAX_PREFIXES)]
    ranges = [KeyRange(*prefix_range(NETWORK, prefix)) for prefix in prefixes]
    raw = state(NETWORK, ranges).encode()
    assert len(raw) <= MAX_STATEMENT
    covered = decode(raw).ranges(NETWORK)
    assert 1 <= len(covered) <= MAX_PREFIXES
    for lower, _ in ranges:
        inside = EventId(lower[: -len(b"\0\x01\x55\0\0")] + b"\x01" + bytes.fromhex("01550000"))
        assert covers(covered, inside)


def test_a_full_statement_fits(rng):
    prefixes = sorted({rng.randbytes(FIELDS_SIZE) for _ in range(MAX_PREFIXES)})
    statement = InterestStatement(2**62, tuple(prefixes), bytes(8))
    assert decode(statement.encode()) == statement
    assert len(statement.encode()) <= MAX_STATEMENT


def test_many_interests_take_few_bytes(rng):
    """A model takes ten bytes; another stream of the same controller takes six."""
    models = [rng.randbytes(8) for _ in range(1000)]
    assert len(InterestStatement(0, tuple(sorted(models))).encode()) < 10 * 1000 + 16
    streams = {models[0] + models[1] + rng.randbytes(4) for _ in range(1000)}
    assert len(InterestStatement(0, tuple(sorted(streams))).encode()) < 6 * 1000 + 48
