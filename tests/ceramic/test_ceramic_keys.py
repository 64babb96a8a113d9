"""The three kinds of keys that sign events, and the DIDs that name them."""

from typing import Any

import coincurve
import pytest
from ceramic_samples import CONTROLLER, MODEL, signed_car
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from support import vectors

from recon_node.ceramic import (
    DidError,
    InvalidSignatureError,
    Validity,
    parse_event,
    signer,
    verify_signature,
)
from recon_node.ceramic.auth.did import (
    ChainAccount,
    algorithm_of,
    chain_account,
    controller_of,
    did_spellings,
    has_low_s,
    is_did,
    p256_did,
    public_key,
    same_did,
    secp256k1_did,
    sign,
    with_low_s,
)
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import encode_varint, multibase

ORDERS = {
    "ES256K": 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141,
    "ES256": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
}
ED25519 = SigningKey(b"1" * 32)
SECP256K1 = coincurve.PrivateKey(b"1" * 32)
P256 = ec.derive_private_key(0x1111, ec.SECP256R1())
KEYS = [ED25519, SECP256K1, P256]

scalars = st.integers(1, 2**255)
keys = (
    scalars.map(lambda secret: SigningKey(secret.to_bytes(32)))
    | scalars.map(lambda secret: coincurve.PrivateKey(secret.to_bytes(32)))
    | scalars.map(lambda secret: ec.derive_private_key(secret, ec.SECP256R1()))
)
each_key = pytest.mark.parametrize("key", KEYS, ids=["Ed25519", "secp256k1", "P-256"])
ecdsa = pytest.mark.parametrize("key", KEYS[1:], ids=["secp256k1", "P-256"])


@given(keys, st.binary(max_size=40), keys)
def test_what_is_signed_is_verified(key: Any, message: bytes, other: Any) -> None:
    did = controller_of(key)
    assert is_did(did)
    assert public_key(did).alg == algorithm_of(key)
    signature = sign(key, message)
    assert len(signature) == 64
    assert public_key(did).verify(message, signature)
    assert not public_key(did).verify(message + b"x", signature)
    if controller_of(other) != did:
        assert not public_key(controller_of(other)).verify(message, signature)


@each_key
def test_events_by_every_kind_of_key(key: Any) -> None:
    init = init_event(key, MODEL, {"title": "x"})
    change = data_event(key, init, [init.cid], [])
    for event in (init, change):
        assert signer(event) == controller_of(key)
        assert verify_signature(event, controller_of(key)) == Validity()
        with pytest.raises(InvalidSignatureError, match="but the stream's controller is"):
            verify_signature(event, CONTROLLER)


@each_key
@given(bit=st.integers(0, 511))
def test_every_bit_of_a_signature_counts(key: Any, bit: int) -> None:
    signature = bytearray(sign(key, b"message"))
    signature[bit // 8] ^= 1 << bit % 8
    assert not public_key(controller_of(key)).verify(b"message", bytes(signature))


@each_key
@given(signature=st.binary(max_size=80))
def test_bytes_that_are_not_a_signature(key: Any, signature: bytes) -> None:
    assert not public_key(controller_of(key)).verify(b"message", signature)


@ecdsa
def test_signatures_are_not_der(key: Any) -> None:
    """RFC 7518, section 3.4: two numbers of 32 bytes."""
    by_curve = isinstance(key, coincurve.PrivateKey)
    der = key.sign(b"message") if by_curve else key.sign(b"message", ec.ECDSA(hashes.SHA256()))
    assert not public_key(controller_of(key)).verify(b"message", der)


def other_form(key: Any, signature: bytes) -> bytes:
    s = ORDERS[algorithm_of(key)] - int.from_bytes(signature[32:])
    return signature[:32] + s.to_bytes(32)


@ecdsa
def test_both_forms_of_a_signature_count_and_the_lower_one_is_made(key: Any) -> None:
    alg = algorithm_of(key)
    for message in (b"a", b"b", b"c", b"d"):
        signature = sign(key, message)
        other = other_form(key, signature)
        assert public_key(controller_of(key)).verify(message, other)
        assert has_low_s(alg, signature)
        assert not has_low_s(alg, other)
        assert with_low_s(alg, other) == with_low_s(alg, signature) == signature
    for number in (0, ORDERS[alg], ORDERS[alg] + 1, 2**256 - 1):
        wrong = number.to_bytes(32)
        assert not public_key(controller_of(key)).verify(message, signature[:32] + wrong)
        assert not public_key(controller_of(key)).verify(message, wrong + signature[32:])


@each_key
@pytest.mark.parametrize("alg", ["EdDSA", "ES256K", "ES256", "ES256K-R", "none"])
def test_the_algorithm_must_be_the_keys(key: Any, alg: str) -> None:
    did = controller_of(key)
    init = init_event(key, MODEL, {})
    protected = {"alg": alg, "kid": did}
    event = parse_event(signed_car(init.payload, protected=protected, signature=bytes(64)))
    right = alg == algorithm_of(key)
    complaint = (
        "is wrong" if right else f"{public_key(did).kind} keys sign with {algorithm_of(key)}"
    )
    with pytest.raises(InvalidSignatureError, match=complaint):
        verify_signature(event, did)


@pytest.mark.parametrize(
    ("did", "kind"),
    [
        ("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp", "Ed25519"),
        ("did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169", "P-256"),
        ("did:key:zDnaerx9CtbPJ1q36T5Ln5wYt3MQYeGRG5ehnPAmxcf5mDZpv", "P-256"),
    ],
)
def test_dids_of_the_specifications(did: str, kind: str) -> None:
    assert public_key(did).kind == kind


@pytest.mark.parametrize("codec", [0xE7, 0x1200])
@pytest.mark.parametrize(
    "point",
    [b"", b"\x02", bytes(33), b"\x02" + b"\xff" * 32, b"\x04" + bytes(64), b"\x05" + bytes(32)],
    ids=["none", "short", "zero", "off the curve", "uncompressed", "other"],
)
def test_points_that_are_none(codec: int, point: bytes) -> None:
    did = "did:key:" + multibase.encode(encode_varint(codec) + point, "base58btc")
    with pytest.raises(DidError, match="broken DID"):
        public_key(did)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("z6Mk", "'z6Mk' is not a DID"),
        ("did:web:example.com", "signatures of 'did:web', only of did:key"),
    ],
)
def test_names_that_are_not_a_did_key(text: str, fault: str) -> None:
    with pytest.raises(DidError, match=fault):
        public_key(text)


def test_uncompressed_points_are_another_spelling_that_is_refused() -> None:
    point = SECP256K1.public_key.format(compressed=False)
    for did_of in (secp256k1_did, p256_did):
        with pytest.raises(DidError, match="compressed point of 33 bytes"):
            public_key(did_of(point))


def test_accounts() -> None:
    address = "0xabfe5c360d84609a109656d0980db7a064d97745"
    assert chain_account(f"did:pkh:eip155:1:{address}") == ChainAccount("eip155", "1", address)
    for text in (CONTROLLER, "did:pkh:eip155:1", "did:pkh:a:1:x", "did:pkh:eip155:1:x:y", ""):
        with pytest.raises(DidError, match="is not a did:pkh"):
            chain_account(text)


def test_one_subject_under_two_names() -> None:
    assert same_did("did:pkh:eip155:1:0xAB", "did:pkh:eip155:1:0xab")
    assert not same_did("did:pkh:eip155:1:0xab", "did:pkh:eip155:5:0xab")
    assert not same_did("did:pkh:solana:x:AB", "did:pkh:solana:x:ab")
    assert not same_did("did:key:zAB", "did:key:zab")


def test_the_spellings_of_an_account() -> None:
    """The addresses are the first two of https://eips.ethereum.org/EIPS/eip-55."""
    for address in (
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    ):
        checksummed = f"did:pkh:eip155:100:{address}"
        assert did_spellings(checksummed) == (checksummed, checksummed.lower())
        assert did_spellings(checksummed.lower()) == (checksummed.lower(), checksummed)
        assert len(did_spellings(f"did:pkh:eip155:100:0x{address[2:].upper()}")) == 3
    for did in ("did:key:zAB", "did:pkh:solana:x:AB", "did:pkh:eip155:1:0xAB", "x"):
        assert did_spellings(did) == (did,)


VECTORS = vectors.load("es256k_events")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_events_as_the_published_secp256k1_provider_signs_them(vector: dict[str, Any]) -> None:
    """Model events by key-did-provider-secp256k1 1.0.1 with did-jwt 6.11.6: half have a high s."""
    event = parse_event(multibase.decode(vector["car"]))
    verify_signature(event, event.header.controller, event.header.model)
