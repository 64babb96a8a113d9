"""Who signed an event, and whether they were allowed to: signatures, and capabilities (CACAO).

An event is signed by the key of a did:key (Ed25519, secp256k1 or P-256). It must be the stream's
controller itself, or hold a capability of the controller that covers the stream: then the event's
signer is the capability's audience, and the controller its issuer. If an event names a capability,
the capability must hold even if the signer is the controller.

There are two halves. What the event says of itself (the signature is the signer's, the capability
its issuer's) needs only cryptography. Whether that is enough for the stream (`check_authority`)
needs the init event's header and no cryptography. `verify_signature` does both.

Two kinds of events are not signed: time events, which have a proof, and *deterministic* init
events. Their data is null, so everything about the stream follows from its header and it does not
matter who wrote it down. With data, an init event must be signed. (The rule of js-ceramic and of
the Ceramic SDK's `DeterministicInitEventPayload`.)

Whether a capability holds *now* is not asked here. The events in the set may not depend on when a
node looks at them, or two nodes would never agree. So a capability that has expired does not make a
signature wrong: the layers above judge by its `Validity`, a local write by the present (give or
take `CLOCK_SKEW`), an event of the network by the time of the earliest time event that covers it.

Everything else (other DID methods, contract accounts, chains other than Ethereum and Solana, a
capability that delegates another by `prf`) is refused as unsupported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from recon_node.ceramic.auth.capability import ALWAYS, Cacao, Validity, parse_cacao
from recon_node.ceramic.auth.did import (
    DID_KEY,
    DID_PKH,
    PublicKey,
    method,
    public_key,
    same_did,
)
from recon_node.ceramic.auth.envelope import Envelope
from recon_node.ceramic.auth.wallets import verify_ethereum, verify_solana, verify_webauthn
from recon_node.ceramic.errors import (
    DidError,
    InvalidSignatureError,
    UnsupportedSignatureError,
)
from recon_node.ceramic.event import Event, EventKind
from recon_node.ceramic.init_header import StreamId, stream_type_of
from recon_node.ipld import DagCborError, dag_cbor

MAX_CACHED_SIZE: Final = 4096
"""Bytes of a capability that is cached. Real ones have 500 to 3,000 bytes."""
CACHED_CAPABILITIES: Final = 256
"""Capabilities that are cached: strangers' as well, whose strings take up to 80 KB each."""
# By the kinds of the capability (`h.t`) and of its signature (`s.t`).
_VERIFIERS: Final[dict[tuple[str, str], Callable[[Cacao], None]]] = {
    ("eip4361", "eip191"): verify_ethereum,
    ("caip122", "eip191"): verify_ethereum,
    ("caip122", "solana:ed25519"): verify_solana,
    ("caip122", "webauthn:p256"): verify_webauthn,
}


def signer(event: Event) -> str | None:
    """Return the DID that the event says it is signed by (`kid`); None if it is unsigned."""
    return event.envelope.signer if event.envelope is not None else None


def authority(event: Event) -> str | None:
    """Return the DID on whose behalf the event is signed: its capability's issuer, or its signer.

    None for an unsigned event. Nothing is checked.

    Raises:
        InvalidSignatureError: the capability is not a CACAO.
        UnsupportedSignatureError: the capability delegates another.
    """
    if event.capability is None:
        return signer(event)
    return _unverified(event.capability).issuer


def validity_of(event: Event) -> Validity:
    """Return when the event's signature holds, by its capability. No signature is checked.

    Raises:
        InvalidSignatureError: the capability is not a CACAO.
        UnsupportedSignatureError: the capability delegates another.
    """
    return ALWAYS if event.capability is None else _unverified(event.capability).validity


def verify_signature(
    event: Event, controller: str | None, model: StreamId | None = None
) -> Validity:
    """Check the event's signature, and that it is the controller's or on the controller's behalf.

    Args:
        event: to check.
        controller: as the header of the stream's init event names it. With None the event is only
            checked against itself: its signature by the key that it names, its capability by the
            issuer that this names.
        model: of the stream.

    Returns:
        When the signature holds. An expired capability is not refused here.

    Raises:
        InvalidSignatureError: a wrong or missing signature, or not the controller's.
        UnsupportedSignatureError: a kind that this node cannot check.
    """
    if event.envelope is None:
        if event.kind is EventKind.INIT and event.data is not None:
            raise InvalidSignatureError("an init event with data must be signed; this one is not")
        return ALWAYS
    key = _key(event.envelope)
    if controller is not None:
        check_authority(event, controller, model)
    if not key.verify(event.envelope.signing_input, event.envelope.signature):
        raise InvalidSignatureError(f"the signature of {event.envelope.signer} is wrong")
    if event.capability is None:
        return ALWAYS
    capability = _verified(event.capability)
    _check_audience(capability, event.envelope.signer)
    return capability.validity


def check_authority(event: Event, controller: str, model: StreamId | None = None) -> None:
    """Check that the signer named by the event may write to the stream. No signature is checked.

    For an event whose signature was verified before its stream was known.

    Raises:
        InvalidSignatureError: not the controller, and without a capability for the stream.
        UnsupportedSignatureError: a kind of controller or of capability that cannot be checked.
    """
    if event.envelope is None:
        return
    names = [event.envelope.signer]
    if event.capability is not None:
        capability = _unverified(event.capability)
        _check_audience(capability, event.envelope.signer)
        _check_resources(event, capability, model)
        names.append(capability.issuer)
    if not any(same_did(name, controller) for name in names):
        _refuse_stranger(names, controller)


def _check_audience(capability: Cacao, signer: str) -> None:
    if capability.audience != signer:
        raise InvalidSignatureError(
            f"signed by {signer}, but the capability is for {capability.audience}"
        )


def _check_resources(event: Event, capability: Cacao, model: StreamId | None) -> None:
    assert event.envelope is not None
    if model is None and event.header is not None:
        model = event.header.model
    stream = StreamId(stream_type_of(model), event.init)
    if not capability.covers(stream, model, event.envelope.payload):
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
    """The key that the signature's header names, which must fit its algorithm."""
    header = envelope.header
    if "crit" in header:
        raise UnsupportedSignatureError(
            "the signature requires extensions ('crit') that are unknown here"
        )
    try:
        key = public_key(envelope.signer)
    except DidError as error:
        raise UnsupportedSignatureError(str(error)) from None
    if header["alg"] != key.alg:
        raise InvalidSignatureError(
            f"the signature claims the algorithm {header['alg'][:50]!r}; "
            f"{key.kind} keys sign with {key.alg}"
        )
    return key


def verified_capability(block: bytes) -> Cacao:
    """Return the capability of that block, its signature checked.

    Raises:
        InvalidSignatureError: not a CACAO, or not signed by its issuer.
        UnsupportedSignatureError: a kind that this node cannot check.
    """
    capability = _read(block)
    verify = _VERIFIERS.get((capability.kind, capability.signature_kind))
    if verify is None:
        raise UnsupportedSignatureError(
            f"cannot check {capability.kind[:50]!r} capabilities with "
            f"{capability.signature_kind[:50]!r} signatures"
        )
    verify(capability)
    return capability


# A session signs all of its events with one capability. What these functions return depends on the
# block alone, so it can be cached.


def _verified(block: bytes) -> Cacao:
    """Return what is asked of a capability after its signature was checked."""
    return (_remembered_verified if len(block) <= MAX_CACHED_SIZE else verified_capability)(block)


def _unverified(block: bytes) -> Cacao:
    """Return what is asked of a capability whose signature is not checked here."""
    return (_remembered_unverified if len(block) <= MAX_CACHED_SIZE else _read)(block)


@lru_cache(maxsize=CACHED_CAPABILITIES)
def _remembered_verified(block: bytes) -> Cacao:
    return _without_maps(verified_capability(block))


@lru_cache(maxsize=CACHED_CAPABILITIES)
def _remembered_unverified(block: bytes) -> Cacao:
    return _without_maps(_read(block))


def _without_maps(capability: Cacao) -> Cacao:
    """Leave out what only the check of the signature needs: decoded, a block may take sixty times
    its bytes."""
    return replace(capability, metadata=None, header={}, payload={})


def _read(block: bytes) -> Cacao:
    try:
        return parse_cacao(dag_cbor.decode(block))
    except DagCborError as error:
        raise InvalidSignatureError(f"the capability is {error}") from None
