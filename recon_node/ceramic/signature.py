"""Who signed an event, and whether they were allowed to.

Checked here: did:key with Ed25519 (`alg` EdDSA). Every other kind - other keys, other DID
methods, signers that act for the controller by a CACAO - is refused as unsupported rather than
waved through.

Two kinds of events carry no signature. A time event is vouched for by its proof. An init event
may be unsigned when it is *deterministic*: its data is null, so that everything about the stream
follows from its header and it does not matter who wrote it down. With data, it must be signed.
(The rule of js-ceramic and of the Ceramic SDK's `DeterministicInitEventPayload`.)
"""

from nacl.exceptions import BadSignatureError

from recon_node.ceramic.did import DID_KEY, ed25519_key
from recon_node.ceramic.envelope import Envelope
from recon_node.ceramic.errors import (
    DidError,
    InvalidSignatureError,
    UnsupportedSignatureError,
)
from recon_node.ceramic.event import Event, EventKind


def signer(event: Event) -> str | None:
    """The DID that signed the event (of its `kid`), or None for an unsigned one. Not checked."""
    return event.envelope.signer if event.envelope is not None else None


def verify_signature(event: Event, controller: str | None) -> None:
    """Check the event's signature, and that it is the controller's.

    `controller` is the one that the header of the stream's init event names. With None the
    signature is only checked against the key that it names itself.

    Raises:
        InvalidSignatureError: wrong signature, not the controller's, or missing where one is due.
        UnsupportedSignatureError: a kind that this node cannot check.
    """
    if event.envelope is None:
        if event.kind is EventKind.INIT and event.data is not None:
            raise InvalidSignatureError("an init event with data must be signed; this one is not")
        return
    _verify_envelope(event.envelope, controller)


def _verify_envelope(envelope: Envelope, controller: str | None) -> None:
    header = envelope.header
    if "crit" in header:
        raise UnsupportedSignatureError("the signature asks for extensions ('crit') unknown here")
    if envelope.capability is not None:
        raise UnsupportedSignatureError(
            "the event is signed on another's behalf (by a CACAO), which cannot be checked yet"
        )
    _check_fragment(header["kid"])
    try:
        key = ed25519_key(envelope.signer)
    except DidError as error:
        raise UnsupportedSignatureError(str(error)) from None
    if header["alg"] != "EdDSA":
        raise InvalidSignatureError(
            f"the signature claims the algorithm {header['alg'][:50]!r}; "
            "an Ed25519 key signs by EdDSA"
        )
    if controller is not None and envelope.signer != controller:
        raise InvalidSignatureError(
            f"signed by {envelope.signer}, but the stream's controller is {controller}"
        )
    try:
        key.verify(envelope.signing_input, envelope.signature)
    except (BadSignatureError, ValueError):
        raise InvalidSignatureError(f"the signature of {envelope.signer} is wrong") from None


def _check_fragment(kid: str) -> None:
    """A did:key has one key: `kid` may name it again after the "#", but no other."""
    did, hash_sign, fragment = kid.partition("#")
    if did.startswith(DID_KEY) and hash_sign and fragment != did.removeprefix(DID_KEY):
        raise InvalidSignatureError(f"the key {kid[:200]!r} is not the one that its DID names")
