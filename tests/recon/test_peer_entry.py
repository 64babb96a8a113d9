"""Peer entries: one recorded from a ceramic-one node, our own, and forged ones."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from support import vectors

from recon_node.recon.actions import Value
from recon_node.recon.ring.peer_ring import (
    MAX_EXPIRY,
    PeerEntryError,
    expiry_bound,
    is_bound,
    parse_entry,
    sign_entry,
    unexpired,
)
from recon_node.recon.ring.ring_codec import Decoder, KeyForm

RECORDED = vectors.load("recon_0_1_sessions")
KEY = SigningKey(bytes(range(32)))
ADDRESS = "/ip4/192.0.2.7/tcp/4101"


def recorded_entry() -> bytes:
    decoder = Decoder(KeyForm.TEXT, from_initiator=True)
    for recorded in RECORDED["responder-peer"]:
        if recorded["from"] == "initiator":
            for message in decoder.feed(bytes.fromhex(recorded["hex"])):
                if isinstance(message, Value):
                    return message.key
    raise AssertionError("the recorded session has no value")


def test_the_entry_of_a_ceramic_one_node_is_read():
    entry = parse_entry(recorded_entry())
    assert entry.peer_id == "12D3KooWDb6B8o58N1S5eo2B2EKE6ZnCKPxzQeoajwH5H2Z8GpNt"
    assert entry.expiry == 1795407241
    assert entry.addresses == (f"/ip4/127.0.0.1/tcp/4404/p2p/{entry.peer_id}",)


def test_the_header_is_written_as_a_ceramic_one_node_writes_it():
    ours = sign_entry(KEY, 1795407241, (ADDRESS,)).split(b".")
    theirs = recorded_entry().split(b".")
    for mine, other in zip(ours[1:3], theirs[1:3], strict=True):
        mine, other = (base64.urlsafe_b64decode(part + b"==") for part in (mine, other))
        assert list(json.loads(mine)) == list(json.loads(other))
        assert mine[:7] == other[:7]


@given(st.integers(0, MAX_EXPIRY), st.lists(st.text(max_size=60), max_size=5))
def test_an_own_entry_is_read_back(expiry, addresses):
    entry = parse_entry(sign_entry(KEY, expiry, tuple(addresses)))
    assert (entry.public_key, entry.expiry) == (bytes(KEY.verify_key), expiry)
    assert entry.addresses == tuple(addresses)


@given(st.data())
def test_a_changed_entry_is_refused(data):
    entry = bytearray(recorded_entry())
    at = data.draw(st.integers(0, len(entry) - 1))
    changed = data.draw(st.integers(0, 255).filter(lambda byte: byte != entry[at]))
    entry[at] = changed
    with pytest.raises(PeerEntryError):
        parse_entry(bytes(entry))


def forge(**changes: object) -> bytes:
    payload = {
        "id": {"public_ed25519_key_bytes": list(bytes(KEY.verify_key))},
        "expiration": 1795407241,
        "addresses": [ADDRESS],
        **changes,
    }
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "EdDSA", "kid": "z6Mk"}, payload)
    ]
    signed = b".".join(parts)
    signature = base64.urlsafe_b64encode(KEY.sign(signed).signature).rstrip(b"=")
    return b"01795407241." + signed + b"." + signature


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"expiration": 1795407242}, "expires at"),
        ({"expiration": "soon"}, "expiration"),
        ({"expiration": True}, "expiration"),
        ({"expiration": 10**11}, "expiration"),
        ({"addresses": ADDRESS}, "addresses"),
        ({"addresses": [1]}, "addresses"),
        ({"addresses": ["/ip4/192.0.2.7"] * 33}, "addresses"),
        ({"addresses": ["x" * 513]}, "addresses"),
        ({"id": {}}, "32 bytes"),
        ({"id": {"public_ed25519_key_bytes": [300] * 32}}, "32 bytes"),
        ({"id": {"public_ed25519_key_bytes": list(bytes(31))}}, "32 bytes"),
        (
            {"id": {"public_ed25519_key_bytes": list(SigningKey(bytes(32)).verify_key._key)}},
            "wrong",
        ),
        ({"filler": "x" * 5000}, "limit"),
    ],
)
def test_entries_that_are_wrong_inside_are_refused(changes, match):
    parse_entry(forge())
    with pytest.raises(PeerEntryError, match=match):
        parse_entry(forge(**changes))


@pytest.mark.parametrize(
    "entry", [b"", b"01795407241", b"01795407241.", b"1795407241.a.b.c", b"\xff" * 50]
)
def test_what_is_not_an_entry_is_refused(entry):
    with pytest.raises(PeerEntryError):
        parse_entry(entry)


@given(st.integers(0, MAX_EXPIRY - 1), st.integers(0, MAX_EXPIRY - 1))
def test_entries_sort_by_their_expiry(expiry, now):
    entry = sign_entry(KEY, expiry, ())
    assert unexpired(now).covers(entry) == (expiry >= now)
    assert is_bound(expiry_bound(now))
    assert not is_bound(entry)


def test_an_expiry_beyond_eleven_digits_is_refused():
    with pytest.raises(PeerEntryError, match="Unix seconds"):
        sign_entry(KEY, MAX_EXPIRY + 1, ())
