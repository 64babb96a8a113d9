"""Who signed an event, and whether they were allowed to.

An event is signed by the key of a did:key (Ed25519, secp256k1 or P-256). It must be the stream's
controller itself, or hold a capability of the controller's (a CACAO) that covers the stream: then
the event's signer is the capability's audience, and its issuer the controller. An event that names
a capability is held to it even where the signer is the controller.

There are two halves. What the event says of itself - the signature is the signer's, the capability
its issuer's - needs cryptography and nothing else. Whether that is enough for the stream
(`check_authority`) needs the init event's header and no cryptography. `verify_signature` does both.
Neither looks at a clock: `Validity` says when the signature holds (`auth.validity`).

Two kinds of events carry no signature. A time event is vouched for by its proof. An init event
may be unsigned when it is *deterministic*: its data is null, so that everything about the stream
follows from its header and it does not matter who wrote it down. With data, it must be signed.
(The rule of js-ceramic and of the Ceramic SDK's `DeterministicInitEventPayload`.)

Every other kind - other DID methods, contract accounts, chains other than Ethereum and Solana - is
refused as unsupported rather than waved through.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from recon_node.ceramic.auth.cacao import Cacao, parse_cacao
from recon_node.ceramic.auth.did import DID_KEY, DID_PKH, method, public_key, same_did
from recon_node.ceramic.auth.envelope import Envelope
from recon_node.ceramic.auth.ethereum import verify_ethereum
from recon_node.ceramic.auth.keys import PublicKey
from recon_node.ceramic.auth.solana import verify_solana
from recon_node.ceramic.auth.validity import ALWAYS, Validity
from recon_node.ceramic.auth.webauthn import verify_webauthn
from recon_node.ceramic.errors import (
    DidError,
    InvalidSignatureError,
    UnsupportedSignatureError,
)
from recon_node.ceramic.event import Event, EventKind
from recon_node.ceramic.stream_id import StreamId
from recon_node.ipld import DagCborError, dag_cbor

# Real capabilities have 500 to 3,000 bytes. Larger ones are read anew each time: what is remembered
# of strangers stays bounded.
MAX_REMEMBERED: Final = 4096

# By the kinds of the capability (`h.t`) and of its signature (`s.t`).
_VERIFIERS: Final[dict[tuple[str, str], Callable[[Cacao], None]]] = {
    ("eip4361", "eip191"): verify_ethereum,
    ("caip122", "eip191"): verify_ethereum,
    ("caip122", "solana:ed25519"): verify_solana,
    ("caip122", "webauthn:p256"): verify_webauthn,
}


def signer(event: Event) -> str | None:
    """The DID that signed the event (of its `kid`), or None for an unsigned one. Not checked."""
    return event.envelope.signer if event.envelope is not None else None


def authority(event: Event) -> str | None:
    """The DID on whose behalf the event is signed: its capability's issuer, else its signer.

    None for an unsigned event. Not checked.

    Raises:
        InvalidSignatureError: the capability is no CACAO.
        UnsupportedSignatureError: the capability hands on another one.
    """
    if event.capability is None:
        return signer(event)
    return _read_capability(event.capability).issuer


def validity_of(event: Event) -> Validity:
    """When the event's signature holds, by its capability. No signature is checked.

    Raises:
        InvalidSignatureError: the capability is no CACAO.
        UnsupportedSignatureError: the capability hands on another one.
    """
    return ALWAYS if event.capability is None else _read_capability(event.capability).validity


def verify_signature(
    event: Event, controller: str | None, model: StreamId | None = None
) -> Validity:
    """Check the event's signature, and that it is the controller's or on the controller's behalf.

    `controller` is the one that the header of the stream's init event names, `model` the stream's
    model. With None for the controller the event is only checked against itself: its signature by
    the key that it names, its capability by the issuer that this names.

    Returns when the signature holds; a capability that has run out is no reason to refuse here.

    Raises:
        InvalidSignatureError: wrong signature, not the controller's, or missing where one is due.
        UnsupportedSignatureError: a kind that this node cannot check.
    """
    if event.envelope is None:
        _check_unsigned(event)
        return ALWAYS
    key = _key(event.envelope)
    if controller is not None:
        check_authority(event, controller, model)
    if not key.verify(event.envelope.signing_input, event.envelope.signature):
        raise InvalidSignatureError(f"the signature of {event.envelope.signer} is wrong")
    if event.capability is None:
        return ALWAYS
    capability = _verified_capability(event.capability)
    _check_audience(capability, event.envelope.signer)
    return capability.validity


def check_authority(event: Event, controller: str, model: StreamId | None = None) -> None:
    """Check that whom the event says it is by may write to the stream. No signature is checked.

    For an event whose signature has been verified before its stream was known.

    Raises:
        InvalidSignatureError: neither the controller nor with a capability for the stream.
        UnsupportedSignatureError: a kind of controller or of capability that cannot be checked.
    """
    if event.envelope is None:
        return
    names = [event.envelope.signer]
    if event.capability is not None:
        capability = _read_capability(event.capability)
        _check_audience(capability, event.envelope.signer)
        _check_resources(event, capability, model)
        names.append(capability.issuer)
    if not any(same_did(name, controller) for name in names):
        _refuse_stranger(names, controller)


def _check_unsigned(event: Event) -> None:
    if event.kind is EventKind.INIT and event.data is not None:
        raise InvalidSignatureError("an init event with data must be signed; this one is not")


def _check_audience(capability: Cacao, signer: str) -> None:
    if capability.audience != signer:
        raise InvalidSignatureError(
            f"signed by {signer}, but the capability is for {capability.audience}"
        )


def _check_resources(event: Event, capability: Cacao, model: StreamId | None) -> None:
    assert event.envelope is not None
    if model is None and event.header is not None:
        model = event.header.model
    if not capability.covers(event.init, model, event.envelope.payload):
        listed = ", ".join(capability.resources)[:300] or "nothing"
        raise InvalidSignatureError(f"the capability covers {listed}, which is not this stream")


def _refuse_stranger(names: list[str], controller: str) -> None:
    if not controller.startswith((DID_KEY, DID_PKH)):
        raise UnsupportedSignatureError(
            f"cannot find out whose keys sign for {method(controller)!r}, the method of the "
            f"stream's controller; signed by {' for '.join(names)}"
        )
    raise InvalidSignatureError(
        f"signed by {' for '.join(names)}, but the stream's controller is {controller}"
    )


def _key(envelope: Envelope) -> PublicKey:
    """The key that the signature's header names, which must go with its algorithm."""
    header = envelope.header
    if "crit" in header:
        raise UnsupportedSignatureError("the signature asks for extensions ('crit') unknown here")
    _check_fragment(header["kid"])
    try:
        key = public_key(envelope.signer)
    except DidError as error:
        raise UnsupportedSignatureError(str(error)) from None
    if header["alg"] != key.alg:
        raise InvalidSignatureError(
            f"the signature claims the algorithm {header['alg'][:50]!r}; "
            f"a key of the kind {key.kind} signs by {key.alg}"
        )
    return key


def _check_fragment(kid: str) -> None:
    """A did:key has one key: `kid` may name it again after the "#", but no other."""
    did, hash_sign, fragment = kid.partition("#")
    if did.startswith(DID_KEY) and hash_sign and fragment != did.removeprefix(DID_KEY):
        raise InvalidSignatureError(f"the key {kid[:200]!r} is not the one that its DID names")


# A session signs all of its events with one capability. What these functions answer follows from
# the block alone, so that remembering it changes nothing but the cost.


def _verified_capability(block: bytes) -> Cacao:
    """The capability of that block, which its issuer has signed."""
    return (_remembered if len(block) <= MAX_REMEMBERED else _verify_capability)(block)


def _verify_capability(block: bytes) -> Cacao:
    capability = _read_capability(block)
    verify = _VERIFIERS.get((capability.kind, capability.signature_kind))
    if verify is None:
        raise UnsupportedSignatureError(
            f"cannot check capabilities of the kind {capability.kind[:50]!r} with signatures of "
            f"the kind {capability.signature_kind[:50]!r}"
        )
    verify(capability)
    return capability


def _read_capability(block: bytes) -> Cacao:
    return (_remembered_reading if len(block) <= MAX_REMEMBERED else _read)(block)


def _read(block: bytes) -> Cacao:
    try:
        return parse_cacao(dag_cbor.decode(block))
    except DagCborError as error:
        raise InvalidSignatureError(f"the capability is {error}") from None


_remembered = lru_cache(maxsize=4096)(_verify_capability)
_remembered_reading = lru_cache(maxsize=4096)(_read)
