"""UCANs: tokens that others made, and tokens made here that break one rule each."""

import base64
import json
import math
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import coincurve
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from nacl.signing import SigningKey
from support import vectors

from recon_node.ceramic.auth.did import PrivateKey, controller_of, ed25519_did
from recon_node.dag.protocol.ucan import (
    FOREVER,
    MAX_NESTING,
    UcanCapability,
    UcanError,
    check_ucan,
    issue_ucan,
    parse_ucan,
)

# Nine UCAN 0.8.1 tokens made with the JavaScript library, named for what they should get.
VECTORS = vectors.load("ucan")
PUBLISH = UcanCapability(VECTORS["root"], "dag/PUBLISH")
MADE = 1795228200
"""When the vectors were judged: bad_expired had just expired."""


@pytest.mark.parametrize("name", [token for token in VECTORS["tokens"] if token.startswith("ok_")])
def test_good_tokens_of_others_pass(name: str) -> None:
    ucan = parse_ucan(VECTORS["tokens"][name])
    check_ucan(ucan, PUBLISH, MADE)
    assert ucan.audience == VECTORS["publisher"]


FAULTS = {
    "bad_no_proof": "shows no proof",
    "bad_wrong_mid": "the proof of .* is for ",
    "bad_expired": "expired at 1795228159",
    "bad_other_can": "does not grant dag/PUBLISH",
    "bad_exp_wider": "valid for longer than its proof",
    "bad_tampered": "signature of the UCAN of .* is wrong",
}


@pytest.mark.parametrize("name", [token for token in VECTORS["tokens"] if token.startswith("bad_")])
def test_bad_tokens_of_others_fail_by_their_own_rule(name: str) -> None:
    with pytest.raises(UcanError, match=FAULTS[name]):
        check_ucan(parse_ucan(VECTORS["tokens"][name]), PUBLISH, MADE)


DELEGATED = VECTORS["delegated"]


@pytest.mark.parametrize("name", [name for name in DELEGATED if name.startswith(("ok", "bad"))])
def test_tokens_that_pass_their_proofs_on(name: str) -> None:
    ucan, owned = parse_ucan(DELEGATED[name]), UcanCapability(DELEGATED["owner"], "dag/PUBLISH")
    with nullcontext() if name.startswith("ok") else pytest.raises(UcanError, match="not grant"):
        check_ucan(ucan, owned, DELEGATED["judged"])


def test_a_token_is_issued_within_the_times_of_its_proofs() -> None:
    proofs = [
        issue_ucan(ROOT, MIDDLE_DID, [OWN], 2000, not_before=100),
        issue_ucan(ROOT, MIDDLE_DID, [OWN], 3000, not_before=200),
        issue_ucan(ROOT, MIDDLE_DID, [OWN], None),
    ]
    for expires, not_before, expected in [
        (None, None, (2000, 200)),
        (5000, 150, (2000, 200)),
        (1500, 300, (1500, 300)),
    ]:
        token = issue_ucan(MIDDLE, LAST_DID, [OWN], expires, not_before=not_before, proofs=proofs)
        ucan = parse_ucan(token)
        assert (ucan.expires, ucan.not_before) == expected
        check_ucan(ucan, OWN, 1000)


def test_a_token_forever_has_a_time_as_the_specification_demands() -> None:
    token = issue_ucan(ROOT, MIDDLE_DID, [OWN], None)
    payload = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert payload["exp"] == FOREVER
    assert "nbf" not in payload
    assert datetime.fromtimestamp(FOREVER, UTC).year == 9999


def test_expiry_is_judged_only_when_asked_for() -> None:
    check_ucan(parse_ucan(VECTORS["tokens"]["bad_expired"]), PUBLISH)


ROOT, MIDDLE, LAST = (SigningKey(bytes([n]) * 32) for n in range(3))
ROOT_DID, MIDDLE_DID, LAST_DID = (ed25519_did(bytes(k.verify_key)) for k in (ROOT, MIDDLE, LAST))
OWN = UcanCapability(ROOT_DID, "dag/PUBLISH")
NARROWED = {"with": ROOT_DID, "can": "dag/PUBLISH", "nb": {"size": 1}}
DELEGATE_NARROWED = {"with": "prf:*", "can": "ucan/DELEGATE", "nb": {}}


def _token(
    key: SigningKey,
    audience: str,
    capabilities: list[UcanCapability | dict[str, Any]],
    **fields: Any,
) -> str:
    """A token that says whatever it should: `issue_ucan` keeps to the times of the proofs."""
    att = [
        granted if isinstance(granted, dict) else to_builtins(granted) for granted in capabilities
    ]
    payload = {"iss": controller_of(key), "aud": audience, "att": att, "prf": [], **fields}
    signing_input = _jwt(HEADER, {k: v for k, v in payload.items() if v is not None})[:-5]
    signature = key.sign(signing_input.encode()).signature
    return f"{signing_input}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def _chain(outer: dict[str, Any] | None = None, inner: dict[str, Any] | None = None) -> str:
    """ROOT grants to MIDDLE, who grants to LAST; either token with changes."""
    times = {"exp": 2000, "nbf": 100}
    proof = _token(ROOT, MIDDLE_DID, **{"capabilities": [OWN], **times, **(inner or {})})
    changed = {"capabilities": [OWN], **times, **(outer or {})}
    return _token(MIDDLE, LAST_DID, prf=[proof], **changed)


def _jwt(header: Any, payload: Any) -> str:
    parts = (
        json.dumps(part).encode() if not isinstance(part, bytes) else part
        for part in (header, payload)
    )
    return ".".join([*(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts), "AAAA"])


HEADER = {"alg": "EdDSA", "typ": "JWT", "ucv": "0.8.1"}


@pytest.mark.parametrize(
    "fields", [{"exp": 10**400}, {"nbf": -(10**400)}, {"exp": math.nan}, {"iss": "\ud800"}]
)
def test_numbers_and_texts_that_nothing_can_hold_are_refused(fields: dict[str, Any]) -> None:
    payload = {"iss": ROOT_DID, "aud": MIDDLE_DID, "att": [], "prf": [], "exp": 1, **fields}
    with pytest.raises(UcanError, match=r"finite|not JSON"):
        parse_ucan(_jwt(HEADER, payload))


GOOD_CHAINS = [
    _chain(),
    _chain({"exp": 1500, "nbf": 200}),
    _chain({"exp": 1999.5, "nbf": 100.5}),
    _chain({}, {"nbf": None}),
    _chain({"capabilities": [UcanCapability("prf:0", "ucan/DELEGATE")]}),
    _chain({"capabilities": [UcanCapability("prf:*", "UCAN/delegate")]}),
    _chain({}, {"capabilities": [UcanCapability(ROOT_DID, "*")]}),
    _chain({}, {"capabilities": [UcanCapability(ROOT_DID, "DAG/*")]}),
    _chain({}, {"capabilities": [UcanCapability("did:key:z6other", "x"), OWN]}),
    _chain({"capabilities": [NARROWED, OWN]}, {"capabilities": [OWN, NARROWED]}),
    _chain({"fct": [{"b": None}, {"a": 1}]}),
]


@pytest.mark.parametrize("token", GOOD_CHAINS, ids=lambda _: "")
def test_a_grant_can_be_granted_further(token: str) -> None:
    check_ucan(parse_ucan(token), OWN, 1000)


BAD_CHAINS = [
    (_chain({"exp": 2001}), "it expires at 2001, the proof at 2000"),
    (_chain({"nbf": 99}), "valid earlier than its proof .* not valid before 100"),
    (_chain({"nbf": None}), "valid earlier than its proof"),
    (_chain({"exp": 1000}), "expired at 1000; it is 1000"),
    (_chain({"nbf": 1001}), "not valid before 1001; it is 1000"),
    (_chain({"capabilities": [UcanCapability("prf:1", "ucan/DELEGATE")]}), "does not grant"),
    (_chain({"capabilities": [UcanCapability("prf:0", "dag/PUBLISH")]}), "does not grant"),
    (
        _token(ROOT, LAST_DID, [UcanCapability("prf:*", "ucan/DELEGATE")], exp=2000),
        "does not grant",
    ),
    (_chain({}, {"capabilities": []}), "does not grant dag/PUBLISH"),
    (_chain({}, {"capabilities": [UcanCapability(ROOT_DID, "dag/PUBLISHER")]}), "does not grant"),
    (_chain({}, {"capabilities": [UcanCapability(ROOT_DID, "d/*")]}), "does not grant"),
    (_chain({}, {"capabilities": [UcanCapability("*", "*")]}), "does not grant"),
    (_chain({}, {"capabilities": [NARROWED]}), "does not grant .* with 'nb' are not supported"),
    (_chain({"capabilities": [DELEGATE_NARROWED]}), "does not grant .* with 'nb' are not"),
    (issue_ucan(MIDDLE, LAST_DID, [OWN], 2000), "is not .* shows no proof"),
]


@pytest.mark.parametrize(("token", "complaint"), BAD_CHAINS, ids=lambda _: "")
def test_what_was_not_granted_cannot_be_granted_further(token: str, complaint: str) -> None:
    with pytest.raises(UcanError, match=complaint):
        check_ucan(parse_ucan(token), OWN, 1000)


OTHER_KEYS = [coincurve.PrivateKey(bytes([7]) * 32), ec.derive_private_key(7, ec.SECP256R1())]


@pytest.mark.parametrize("key", OTHER_KEYS, ids=["secp256k1", "P-256"])
def test_keys_of_other_kinds_can_grant_further(key: PrivateKey) -> None:
    """An application's passkey or wallet publishes under an Ed25519 key's identifier."""
    granted = issue_ucan(ROOT, controller_of(key), [OWN], None)
    token = issue_ucan(key, LAST_DID, [OWN], None, proofs=[granted])
    check_ucan(parse_ucan(token), OWN, 1000)
    header, payload, _ = token.split(".")
    forged = f"{header}.{payload}.{'A' * 86}"
    with pytest.raises(UcanError, match=r"signature of the UCAN of .* is wrong"):
        check_ucan(parse_ucan(forged), OWN, 1000)


def test_one_good_proof_among_bad_ones_is_enough() -> None:
    good = issue_ucan(ROOT, MIDDLE_DID, [OWN], None)
    bad = issue_ucan(LAST, MIDDLE_DID, [OWN], None)
    check_ucan(parse_ucan(issue_ucan(MIDDLE, LAST_DID, [OWN], 5, proofs=[bad, good, bad])), OWN)


@pytest.mark.parametrize("token", [pytest.param(t, id=i) for i, t in VECTORS["beside"]["tokens"]])
def test_a_proof_that_cannot_be_read_spoils_no_other_one(token: str) -> None:
    check_ucan(parse_ucan(token), UcanCapability(VECTORS["beside"]["owner"], "dag/publish"), MADE)


@given(st.data())
def test_no_character_of_a_token_can_be_changed(data: st.DataObject) -> None:
    token = data.draw(st.sampled_from([_chain(), issue_ucan(ROOT, LAST_DID, [OWN], None)]))
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("ABCabc019-_.="))
    changed = token[:at] + other + token[at + 1 :]
    if changed == token:
        return
    with pytest.raises(UcanError):
        check_ucan(parse_ucan(changed), OWN, 1000)


PAYLOAD = {"iss": "a", "aud": "did:x:b", "exp": 1, "att": [], "prf": []}
MALFORMED = [
    ("", "three parts"),
    ("a.b", "three parts"),
    ("%.%.%", "the header of the UCAN is not base64url"),
    ("AB.AB.AB", "not base64url"),
    (_jwt(b"\xff", PAYLOAD), "not JSON"),
    (_jwt(b"[" * 40000, PAYLOAD), "not JSON|characters"),
    (_jwt([], PAYLOAD), "not a map"),
    (_jwt({**HEADER, "ucv": "0.9.1"}, PAYLOAD), "not a UCAN 0.8.1"),
    (_jwt({**HEADER, "alg": "none"}, PAYLOAD), "supported are EdDSA, ES256K, ES256"),
    (_jwt(HEADER, {**PAYLOAD, "exp": "1"}), r"at `\$.exp`"),
    (_jwt(HEADER, {**PAYLOAD, "exp": True}), r"at `\$.exp`"),
    (_jwt(HEADER, {**PAYLOAD, "exp": None}), r"at `\$.exp`"),
    (_jwt(HEADER, {**PAYLOAD, "exp": math.inf}), "finite"),
    (_jwt(HEADER, {**PAYLOAD, "nbf": None}), r"at `\$.nbf`"),
    (_jwt(HEADER, {**PAYLOAD, "nbf": math.nan}), "finite"),
    (_jwt(HEADER, {**PAYLOAD, "nnc": None}), r"at `\$.nnc`"),
    (_jwt(HEADER, {**PAYLOAD, "fct": ["x"]}), r"at `\$.fct\[0\]`"),
    (_jwt(HEADER, {**PAYLOAD, "aud": "b"}), "the audience of the UCAN is not a DID: 'b'"),
    (_jwt(HEADER, {k: v for k, v in PAYLOAD.items() if k != "exp"}), "required field `exp`"),
    (_jwt(HEADER, {**PAYLOAD, "prf": [1]}), r"at `\$.prf\[0\]`"),
    (_jwt(HEADER, {**PAYLOAD, "att": ["x"]}), r"at `\$.att\[0\]`"),
    (_jwt(HEADER, {**PAYLOAD, "att": [{"with": "x", "can": 1}]}), r"at `\$.att\[0\].can`"),
    ("x" * 70_000, "characters; the limit"),
]


@pytest.mark.parametrize(
    ("header", "issuer", "complaint"),
    [
        ({"alg": "ES256"}, "", "is signed with ES256, but its key signs with EdDSA"),
        ({}, "did:web:example.com", "the issuer of the UCAN"),
    ],
)
def test_a_key_signs_by_its_own_algorithm_only(header, issuer, complaint):
    token = _jwt({**HEADER, **header}, {**PAYLOAD, "iss": issuer or ROOT_DID})
    with pytest.raises(UcanError, match=complaint):
        check_ucan(parse_ucan(token), OWN)


@pytest.mark.parametrize(("token", "complaint"), MALFORMED, ids=lambda _: "")
def test_invalid_ucans_are_refused(token: str, complaint: str) -> None:
    with pytest.raises(UcanError, match=complaint):
        parse_ucan(token)


def test_the_depth_of_proofs_is_limited() -> None:
    token = issue_ucan(ROOT, MIDDLE_DID, [OWN], None)
    for _ in range(MAX_NESTING - 1):
        token = issue_ucan(MIDDLE, MIDDLE_DID, [OWN], None, proofs=[token])
    check_ucan(parse_ucan(token), OWN)
    deeper = parse_ucan(issue_ucan(MIDDLE, MIDDLE_DID, [OWN], None, proofs=[token]))
    with pytest.raises(UcanError, match="nested deeper"):
        check_ucan(deeper, OWN)
