"""Who may have signed an event."""

import base64
from typing import Any

import pytest
from ceramic_samples import (
    CONTROLLER,
    HEADER,
    INIT,
    KID,
    MODEL,
    OTHER_KEY,
    signed_car,
    unsigned_car,
)
from support import vectors
from support.time_events import time_event

from recon_node.ceramic import (
    CeramicError,
    InvalidSignatureError,
    UnsupportedSignatureError,
    parse_event,
    signer,
    verify_signature,
)
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import deterministic_init_event

PAYLOAD = {"data": {"title": "x"}, "header": HEADER}
OTHER = controller_of(OTHER_KEY)
ORDER = 2**252 + 27742317777372353535851937790883648493


def invalid(complaint: str, controller: str | None = CONTROLLER, **changes: Any) -> None:
    with pytest.raises(InvalidSignatureError, match=complaint):
        verify_signature(parse_event(signed_car(PAYLOAD, **changes)), controller)


def unsupported(complaint: str, **protected: Any) -> None:
    event = parse_event(signed_car(PAYLOAD, protected={"alg": "EdDSA", "kid": KID} | protected))
    for controller in (CONTROLLER, None):
        with pytest.raises(UnsupportedSignatureError, match=complaint):
            verify_signature(event, controller)


def test_signed_by_hand() -> None:
    """The signing input written out in the test, independent of the builder."""
    verify_signature(parse_event(signed_car(PAYLOAD)), CONTROLLER)
    spaced = b'{ "kid":"%s", "note":"\xc3\xa9", "alg":"EdDSA" }' % KID.encode()
    verify_signature(parse_event(signed_car(PAYLOAD, protected=spaced)), CONTROLLER)


def test_kid_may_leave_out_the_fragment() -> None:
    """As ceramic-one's own signer writes it."""
    event = parse_event(signed_car(PAYLOAD, protected={"alg": "EdDSA", "kid": CONTROLLER}))
    verify_signature(event, CONTROLLER)
    assert signer(event) == CONTROLLER


def test_wrong_signatures() -> None:
    for size in (0, 64, 65):
        invalid("is wrong", signature=bytes(size))
    invalid("is wrong", key=OTHER_KEY)
    invalid("is wrong", controller=None, key=OTHER_KEY)


def test_a_signature_has_one_form_only() -> None:
    """S + L would pass a careless check and make a second CID for the same event (RFC 8032)."""
    signature = INIT.envelope.signature
    s = int.from_bytes(signature[32:], "little")
    malleated = signature[:32] + (s + ORDER).to_bytes(32, "little")
    data = signed_car(INIT.payload, protected=INIT.envelope.protected, signature=malleated)
    with pytest.raises(InvalidSignatureError, match="is wrong"):
        verify_signature(parse_event(data), CONTROLLER)


def test_a_signature_belongs_to_its_payload_and_header() -> None:
    kept: dict[str, Any] = {
        "protected": INIT.envelope.protected,
        "signature": INIT.envelope.signature,
    }
    verify_signature(parse_event(signed_car(INIT.payload, **kept)), CONTROLLER)
    other_payload = INIT.payload | {"data": {"title": "forged"}}
    with pytest.raises(InvalidSignatureError, match="is wrong"):
        verify_signature(parse_event(signed_car(other_payload, **kept)), CONTROLLER)
    kept["protected"] = INIT.envelope.protected + b" "
    with pytest.raises(InvalidSignatureError, match="is wrong"):
        verify_signature(parse_event(signed_car(INIT.payload, **kept)), CONTROLLER)


def test_not_the_controllers() -> None:
    invalid(f"signed by {CONTROLLER}, but the stream's controller is {OTHER}", controller=OTHER)
    protected = {"alg": "EdDSA", "kid": OTHER}
    invalid("but the stream's controller is", protected=protected, key=OTHER_KEY)
    event = parse_event(signed_car(PAYLOAD, protected=protected, key=OTHER_KEY))
    verify_signature(event, OTHER)


@pytest.mark.parametrize("fragment", [OTHER.removeprefix("did:key:"), "key-1"])
def test_a_did_key_has_one_key_whatever_the_fragment_says(fragment: str) -> None:
    """As for js-did and ceramic-one: the key is that of the DID."""
    protected = {"alg": "EdDSA", "kid": f"{CONTROLLER}#{fragment}"}
    verify_signature(parse_event(signed_car(PAYLOAD, protected=protected)), CONTROLLER)
    invalid("signature", protected=protected, key=OTHER_KEY)


@pytest.mark.parametrize("cap", [None, ""])
def test_no_capability_may_be_written_out(cap: str | None) -> None:
    protected = {"alg": "EdDSA", "kid": KID, "cap": cap}
    event = parse_event(signed_car(PAYLOAD, protected=protected))
    assert event.capability is None
    verify_signature(event, CONTROLLER)


def test_kinds_that_cannot_be_checked_yet() -> None:
    unsupported("'did:pkh'", kid="did:pkh:eip155:1:0xabfe5c360d84609a109656d0980db7a064d97745")
    unsupported("'did:web'", kid="did:web:example.com#key-1")
    p384 = "did:key:z82Lm1MpAkeJcix9K8TMiLd5NMAhnwkjjCBeWHXyu3U4oT2MVJJKXkcVBgjGhnLBn2Kaau9"
    unsupported("P-384", kid=p384, alg="ES384")
    unsupported("crit", crit=["exp"])


def test_events_that_need_no_signature() -> None:
    deterministic = deterministic_init_event(CONTROLLER, MODEL, unique=b"x")
    anchored = time_event(INIT, INIT.cid)
    for event in (deterministic, anchored):
        assert signer(event) is None
        verify_signature(event, CONTROLLER)
        verify_signature(event, None)


@pytest.mark.parametrize("data", [{}, [], "", 0, False, {"title": "x"}])
def test_an_init_event_with_data_must_be_signed(data: Any) -> None:
    event = parse_event(unsigned_car({"data": data, "header": HEADER}))
    with pytest.raises(InvalidSignatureError, match="must be signed"):
        verify_signature(event, CONTROLLER)


VERDICTS = vectors.load("signature_verdicts")


def test_the_verdict_is_that_of_ceramic_one() -> None:
    """The file names what differs; docs/admission.md says why."""
    for name, protected, signature, controller, accepted, *differs in VERDICTS["events"]:
        payload = PAYLOAD | {"header": HEADER | {"controllers": [controller]}}
        header, signed = base64.b64decode(protected), base64.b64decode(signature)
        event = signed_car(payload, protected=header, signature=signed)
        try:
            verify_signature(parse_event(event), controller)
        except CeramicError:
            assert accepted == bool(differs), name
        else:
            assert accepted != bool(differs), name
