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

A CACAO says: "whoever holds the key `aud` may act for me, `iss`, on these resources". A wallet does
not sign every event. It signs one CACAO for a session's key, which signs the events and names the
CACAO in each of them. As a DAG-CBOR block: `{h: {t}, p: payload, s: {t, s, m?}}`. The resources are
those of js-ceramic and ceramic-one:

    ceramic://*                                everything
    ceramic://*?model=<StreamID>               all streams of that model
    ceramic://<StreamID>                       one stream
    ceramic://<StreamID>?payload=<CID>         one event of it, by the CID of its payload

They are compared as text, as these two do: a StreamID in another base, or one whose type is not
that of the stream, names no stream. Source: CAIP-74.

Whether a capability holds *now* is not asked here. The events in the set may not depend on when a
node looks at them, or two nodes would never agree. So a capability that has expired does not make a
signature wrong: the layers above judge by its `Validity`, a local write by the present (give or
take `CLOCK_SKEW`), an event of the network by the time of the earliest time event that covers it.

Everything else (other DID methods, contract accounts, chains other than Ethereum and Solana, a
capability that delegates another by `prf`) is refused as unsupported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from recon_node.ceramic.auth.did import (
    DID_KEY,
    DID_PKH,
    PublicKey,
    is_did,
    method,
    public_key,
    same_did,
)
from recon_node.ceramic.auth.envelope import Envelope, fields_of, of_type, unix_seconds
from recon_node.ceramic.auth.wallets import verify_ethereum, verify_solana, verify_webauthn
from recon_node.ceramic.errors import (
    DidError,
    InvalidEventError,
    InvalidSignatureError,
    UnsupportedSignatureError,
)
from recon_node.ceramic.event import Event, EventKind
from recon_node.ceramic.init_header import StreamId, stream_type_of
from recon_node.ipld import CID, DagCborError, dag_cbor

MAX_CACHED_SIZE: Final = 4096
"""Bytes of a capability that is cached. Real ones have 500 to 3,000 bytes."""
CACHED_CAPABILITIES: Final = 256
"""Capabilities that are cached: strangers' as well, whose strings take up to 80 KB each."""
MAX_RESOURCES: Final = 1000
"""Resources of a capability."""

_CACAO: Final = frozenset({"h", "p", "s"})
_HEADER: Final = frozenset({"t"})
_PAYLOAD: Final = frozenset({"iss", "aud", "domain", "version", "nonce", "iat"})
_PAYLOAD_OPTIONAL: Final = frozenset({"nbf", "exp", "statement", "requestId", "resources"})
_SIGNATURE: Final = frozenset({"t", "s"})
_SIGNATURE_OPTIONAL: Final = frozenset({"m"})
# Whatever some reader takes for the end of a line: control characters and Unicode's separators.
_LINE_BREAK: Final = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_SCHEME: Final = "ceramic://"
ANY_STREAM: Final = "ceramic://*"

CLOCK_SKEW: Final = 300
"""Seconds by which the clocks of a signer and a node may differ, as in @didtools/cacao and
ceramic-one."""


@dataclass(frozen=True, slots=True)
class Validity:
    """When a signature holds: from and until, in Unix seconds, inclusive; None means unbounded."""

    not_before: int | None = None
    expires: int | None = None

    def covers(self, time: int, tolerance: int = 0) -> bool:
        """Whether the signature holds at that time, in Unix seconds, give or take a tolerance."""
        if self.not_before is not None and time < self.not_before - tolerance:
            return False
        return self.expires is None or time <= self.expires + tolerance


ALWAYS: Final = Validity()
"""Of a signature without a capability."""


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


@dataclass(frozen=True, slots=True)
class Cacao:
    """The well-formed fields of a capability, whose signature is not checked yet.

    Times are kept as written, since that is what is signed; `validity` says what they mean.
    `header` and `payload` are the decoded maps; the encoding of `signature` depends on its kind.
    """

    kind: str
    issuer: str
    audience: str
    domain: str
    version: str
    nonce: str
    issued_at: str
    not_before: str | None
    expiration: str | None
    statement: str | None
    request_id: str | None
    resources: tuple[str, ...]
    signature_kind: str
    signature: str
    metadata: Any
    header: dict[str, Any]
    payload: dict[str, Any]
    validity: Validity

    def covers(self, stream: StreamId, model: StreamId | None, payload: CID) -> bool:
        """Whether the resources cover that stream, which is of that model, or its payload."""
        if ANY_STREAM in self.resources:
            return True
        if model is not None and _model_resource(model) in self.resources:
            return True
        name = f"{_SCHEME}{stream}"
        return name in self.resources or f"{name}?payload={payload}" in self.resources


def parse_cacao(block: Any) -> Cacao:
    """Read the decoded block of a capability.

    Raises:
        InvalidSignatureError: not a CACAO, or it expires before it becomes valid.
        UnsupportedSignatureError: it delegates another capability.
    """
    try:
        return _parse(block)
    except (InvalidSignatureError, UnsupportedSignatureError):
        raise
    except InvalidEventError as error:
        raise InvalidSignatureError(str(error)) from None


def _parse(block: Any) -> Cacao:
    parts = fields_of(block, "the capability", _CACAO)
    header = fields_of(parts["h"], "the capability's header", _HEADER)
    if type(parts["p"]) is dict and "prf" in parts["p"]:
        raise UnsupportedSignatureError(
            "the capability delegates another ('prf'); chains of capabilities are not supported"
        )
    payload = fields_of(parts["p"], "the capability's payload", _PAYLOAD, _PAYLOAD_OPTIONAL)
    signature = fields_of(parts["s"], "the capability's signature", _SIGNATURE, _SIGNATURE_OPTIONAL)
    for name in ("iss", "aud"):
        if not is_did(_text(payload, name)):
            raise InvalidSignatureError(f"the capability's {name!r} is not a DID")
    return Cacao(
        kind=_text(header, "t"),
        issuer=payload["iss"],
        audience=payload["aud"],
        domain=_text(payload, "domain"),
        version=_text(payload, "version"),
        nonce=_text(payload, "nonce"),
        issued_at=_text(payload, "iat"),
        not_before=_optional_text(payload, "nbf"),
        expiration=_optional_text(payload, "exp"),
        statement=_optional_text(payload, "statement"),
        request_id=_optional_text(payload, "requestId"),
        resources=_resources(payload),
        signature_kind=_text(signature, "t"),
        signature=_text(signature, "s"),
        metadata=signature.get("m"),
        header=header,
        payload=payload,
        validity=_validity(payload),
    )


def _text(fields: dict[str, Any], name: str) -> str:
    text = of_type(fields[name], str, f"the capability's {name!r}")
    if _LINE_BREAK.search(text):
        raise InvalidSignatureError(f"the capability's {name!r} holds a line break")
    return text


def _optional_text(fields: dict[str, Any], name: str) -> str | None:
    """Return a text that need not be there; null says that it is not."""
    return None if fields.get(name) is None else _text(fields, name)


def _resources(payload: dict[str, Any]) -> tuple[str, ...]:
    if "resources" not in payload:
        return ()
    resources = of_type(payload["resources"], list, "the capability's 'resources'")
    if len(resources) > MAX_RESOURCES:
        raise InvalidSignatureError(
            f"the capability lists {len(resources)} resources; the limit is {MAX_RESOURCES}"
        )
    for resource in resources:
        _text({"resources": resource}, "resources")
    return tuple(resources)


def _validity(payload: dict[str, Any]) -> Validity:
    """The validity: from `iat` or `nbf`, whichever is later, until `exp`."""
    issued = _time(payload, "iat")
    starts = issued if payload.get("nbf") is None else max(issued, _time(payload, "nbf"))
    expires = None if payload.get("exp") is None else _time(payload, "exp")
    if expires is not None and expires < starts:
        raise InvalidSignatureError(
            f"the capability expires ({payload['exp']}) before it becomes valid "
            f"({payload.get('nbf') or payload['iat']})"
        )
    return Validity(starts, expires)


def _time(payload: dict[str, Any], name: str) -> int:
    try:
        return unix_seconds(payload[name])
    except ValueError as error:
        raise InvalidSignatureError(f"the capability's {name!r}: {error}") from None


@lru_cache(maxsize=1024)
def _model_resource(model: StreamId) -> str:
    return f"{ANY_STREAM}?model={model}"
