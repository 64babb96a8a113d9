"""A capability (CACAO): what it says, for how long, and which streams it covers.

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

Nothing is verified here: `wallets` checks signatures of capabilities.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from recon_node.ceramic.auth.did import is_did
from recon_node.ceramic.auth.envelope import fields_of, of_type, unix_seconds
from recon_node.ceramic.errors import (
    InvalidEventError,
    InvalidSignatureError,
    UnsupportedSignatureError,
)
from recon_node.ceramic.init_header import StreamId
from recon_node.ipld import CID

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
