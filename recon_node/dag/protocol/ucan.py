"""UCAN 0.8.1: JWTs that delegate a capability from key to key.

Sources: the UCAN specification, version 0.8.1 (github.com/ucan-wg/spec), and the "DAG Replication &
Publishing Protocol", section "Publishing Protocol".

Theory of operation. With a token, its issuer grants its audience some capabilities: pairs of a
resource (`with`) and an ability (`can`). An issuer may grant what it owns (a DID owns the resource
of the same name) and what was granted to it, by the tokens in `prf`: naming it again, or with the
ability `ucan/DELEGATE` on `prf:0` (everything that the first of them grants) or `prf:*` (any of
them). A token is checked from the outside in:

- it is signed by the key of its issuer, with the algorithm of that key;
- what it grants is owned by its issuer, or granted by one of its proofs to this very issuer, for at
  least the same time. A proof that cannot be read, as one of another version, grants nothing.

A token always expires; one that is to hold forever expires in the year 9999. The time is an
argument. Expiry says nothing about what was done before: `now` is given when an operation is first
accepted, and left out when it is replayed.

Keys are did:keys: Ed25519 (EdDSA), secp256k1 (ES256K) and P-256 (ES256). Abilities are compared
case-insensitively; `*` is every ability, `dag/*` every ability below `dag/`. The resources `my:*`
and `as:...` of the specification, for everything that a key owns, are not supported: they match
nothing.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType, ValidationError, convert, field

from recon_node.ceramic.auth.did import (
    PrivateKey,
    algorithm_of,
    controller_of,
    is_did,
    public_key,
    sign,
)
from recon_node.ceramic.errors import DidError
from recon_node.ipld import MultibaseError, multibase

VERSION: Final = "0.8.1"
MAX_TOKEN_SIZE: Final = 64 * 1024
"""Characters of a token with all its proofs; each level of nesting makes them a third longer."""
MAX_NESTING: Final = 10
"""Tokens within each other."""

_JWT_PARTS: Final = 3
"""Of a JWT: header, payload, signature."""

FOREVER: Final = 253_402_300_799
"""Unix seconds: the end of the year 9999."""

_CAPABILITY_FIELDS: Final = {"with", "can"}
_MAX_QUOTED: Final = 200
"""Characters of names in a token that a message quotes."""
_DELEGATE: Final = "ucan/delegate"
_PROOF: Final = "prf:"
_ALGORITHMS: Final = ("EdDSA", "ES256K", "ES256")


class UcanError(ValueError):
    """A token that does not permit what it should; the message says which rule it breaks."""


class UcanCapability(Struct, frozen=True):
    """An ability on a resource: `with` and `can`."""

    resource: str = field(name="with")
    ability: str = field(name="can")

    def covers(self, other: UcanCapability) -> bool:
        """Whether `other` is this capability or a part of it."""
        mine, theirs = self.ability.lower(), other.ability.lower()
        return self.resource == other.resource and (
            mine in ("*", theirs) or (mine.endswith("/*") and theirs.startswith(mine[:-1]))
        )


class _Payload(Struct):
    iss: str
    aud: str
    exp: int | float
    att: tuple[UcanCapability, ...]
    prf: list[str]
    nbf: int | float | UnsetType = UNSET
    nnc: str | UnsetType = UNSET
    fct: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Ucan:
    """A token, read but not checked. Times are Unix seconds; `not_before` may be absent."""

    issuer: str
    audience: str
    capabilities: tuple[UcanCapability, ...]
    """Without those that a further field, such as `nb`, narrows: in ways that are not supported."""
    unsupported: frozenset[str]
    """The further fields."""
    expires: float
    not_before: float | None
    facts: tuple[Any, ...]
    proofs: tuple[Ucan | UcanError, ...]
    """Of one that cannot be read, why: another one may suffice."""
    algorithm: str
    signing_input: bytes
    signature: bytes

    @property
    def passed_on(self) -> tuple[Ucan | UcanError, ...]:
        """The proofs of which the token grants everything that they grant."""
        named = [
            capability.resource.removeprefix(_PROOF)
            for capability in self.capabilities
            if capability.resource.startswith(_PROOF) and capability.ability.lower() == _DELEGATE
        ]
        return tuple(
            proof for at, proof in enumerate(self.proofs) if str(at) in named or "*" in named
        )


def parse_ucan(token: str) -> Ucan:
    """Read a token and its proofs; only their form is checked.

    Raises:
        UcanError: not a UCAN 0.8.1, or too large.
    """
    if len(token) > MAX_TOKEN_SIZE:
        raise UcanError(f"the UCAN has {len(token)} characters; the limit is {MAX_TOKEN_SIZE}")
    return _parse(token, MAX_NESTING)


def check_ucan(ucan: Ucan, capability: UcanCapability, now: int | None = None) -> None:
    """Check that a token grants a capability on behalf of the resource's owner.

    The resource is a did:key, which owns it. `now` is in Unix seconds; None does not check whether
    the token has expired.

    Raises:
        UcanError: it does not; says why.
    """
    if now is not None:
        _check_time(ucan, now)
    _check_signature(ucan)
    is_named = any(granted.covers(capability) for granted in ucan.capabilities)
    proofs = ucan.proofs if is_named else ucan.passed_on
    if not is_named and not proofs:
        narrowed = ", ".join(map(repr, sorted(ucan.unsupported)))[:_MAX_QUOTED]
        raise UcanError(
            f"the UCAN of {ucan.issuer} does not grant {capability.ability} on "
            f"{capability.resource}"
            + (f" (capabilities with {narrowed} are not supported)" if narrowed else "")
        )
    if is_named and ucan.issuer == capability.resource:
        return
    faults = [_fault_of_proof(proof, ucan, capability, now) for proof in proofs]
    if None in faults:
        return
    raise UcanError(
        next((fault for fault in faults if fault), "")
        or f"{ucan.issuer} is not {capability.resource} and shows no proof from it"
    )


def issue_ucan(
    key: PrivateKey,
    audience: str,
    capabilities: Iterable[UcanCapability],
    expires: float | None,
    *,
    not_before: float | None = None,
    facts: Sequence[Any] = (),
    proofs: Sequence[str] = (),
) -> str:
    """Issue and sign a token, valid at most as long as each of its proofs.

    Args:
        key: of the issuer.
        audience: a did:key.
        capabilities: to grant.
        expires: Unix seconds; None: as late as the proofs allow.
        not_before: Unix seconds; None: as early as the proofs allow.
        facts: JSON values.
        proofs: tokens that grant these capabilities to `key`, if it does not own the resources.

    Raises:
        UcanError: a proof cannot be read.
    """
    grants = [parse_ucan(proof) for proof in proofs]
    ends = [FOREVER if expires is None else expires, *(ucan.expires for ucan in grants)]
    starts = [not_before, *(ucan.not_before for ucan in grants)]
    start = max((start for start in starts if start is not None), default=None)
    payload = {
        "iss": controller_of(key),
        "aud": audience,
        "att": [{"with": granted.resource, "can": granted.ability} for granted in capabilities],
        "exp": min(ends),
        **({} if start is None else {"nbf": start}),
        **({"fct": list(facts)} if facts else {}),
        "prf": list(proofs),
    }
    header = {"alg": algorithm_of(key), "typ": "JWT", "ucv": VERSION}
    texts = (json.dumps(part, separators=(",", ":")) for part in (header, payload))
    signing_input = ".".join(_to_base64(text.encode()) for text in texts)
    return f"{signing_input}.{_to_base64(sign(key, signing_input.encode()))}"


def _fault_of_proof(
    proof: Ucan | UcanError, outer: Ucan, capability: UcanCapability, now: int | None
) -> str | None:
    """Why a proof does not permit what the token around it grants."""
    if isinstance(proof, UcanError):
        return str(proof)
    if proof.audience != outer.issuer:
        return f"the proof of {proof.issuer} is for {proof.audience}, not for {outer.issuer}"
    if outer.expires > proof.expires:
        return (
            f"the UCAN of {outer.issuer} is valid for longer than its proof of {proof.issuer}: it "
            f"expires at {outer.expires}, the proof at {proof.expires} (Unix seconds)"
        )
    start = -math.inf if outer.not_before is None else outer.not_before
    if proof.not_before is not None and start < proof.not_before:
        return (
            f"the UCAN of {outer.issuer} is valid earlier than its proof of {proof.issuer}, which "
            f"is not valid before {proof.not_before} (Unix seconds)"
        )
    try:
        check_ucan(proof, capability, now)
    except UcanError as error:
        return str(error)
    return None


def _check_time(ucan: Ucan, now: int) -> None:
    if ucan.not_before is not None and now < ucan.not_before:
        why = f"is not valid before {ucan.not_before}"
    elif now >= ucan.expires:
        why = f"expired at {ucan.expires}"
    else:
        return
    raise UcanError(f"the UCAN of {ucan.issuer} {why}; it is {now} (Unix seconds)")


def _check_signature(ucan: Ucan) -> None:
    try:
        key = public_key(ucan.issuer)
    except DidError as error:
        raise UcanError(f"the issuer of the UCAN: {error}") from None
    if ucan.algorithm != key.alg:
        algorithms = f"signed with {ucan.algorithm}, but its key signs with {key.alg}"
        raise UcanError(f"the UCAN of {ucan.issuer} is {algorithms}")
    if not key.verify(ucan.signing_input, ucan.signature):
        raise UcanError(f"the signature of the UCAN of {ucan.issuer} is wrong")


def _parse(token: str, depth: int) -> Ucan:
    if depth == 0:
        raise UcanError(f"the proofs of the UCAN are nested deeper than {MAX_NESTING}")
    parts = token.split(".")
    if len(parts) != _JWT_PARTS:
        raise UcanError("a UCAN is a JWT: three parts in base64url with dots between them")
    header = _read_map(parts[0], "header")
    if header.get("ucv") != VERSION or header.get("typ") != "JWT":
        raise UcanError(f"not a UCAN {VERSION}: its header says {str(header)[:200]}")
    if header.get("alg") not in _ALGORITHMS:
        algorithm, supported = str(header.get("alg"))[:50], ", ".join(_ALGORITHMS)
        raise UcanError(f"the UCAN is signed by {algorithm!r}; supported are {supported}")
    fields = _read_map(parts[1], "payload")
    try:
        payload = convert(fields, _Payload)
    except ValidationError as error:
        raise UcanError(f"the payload of the UCAN: {error}") from None
    further = [entry.keys() - _CAPABILITY_FIELDS for entry in fields["att"]]
    start = None if payload.nbf is UNSET else payload.nbf
    if not all(abs(time) <= sys.float_info.max for time in (payload.exp, start or 0)):
        raise UcanError("the times of a UCAN are finite numbers")
    if not is_did(payload.aud):
        raise UcanError(f"the audience of the UCAN is not a DID: {payload.aud[:100]!r}")
    return Ucan(
        issuer=payload.iss,
        audience=payload.aud,
        capabilities=tuple(compress(payload.att, map(not_, further))),
        unsupported=frozenset().union(*further),
        expires=payload.exp,
        not_before=start,
        facts=payload.fct,
        proofs=tuple(_proof(proof, depth - 1) for proof in payload.prf),
        algorithm=header["alg"],
        signing_input=f"{parts[0]}.{parts[1]}".encode(),
        signature=_from_base64(parts[2], "signature"),
    )


def _proof(token: str, depth: int) -> Ucan | UcanError:
    try:
        return _parse(token, depth)
    except UcanError as error:
        return error


def _read_map(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(_from_base64(text, what))
        json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise UcanError(f"the {what} of the UCAN is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UcanError(f"the {what} of the UCAN is not a map")
    return value


def _from_base64(text: str, what: str) -> bytes:
    try:
        return multibase.decode(f"u{text}")  # in its canonical form alone
    except MultibaseError:
        raise UcanError(f"the {what} of the UCAN is not base64url") from None


def _to_base64(raw: bytes) -> str:
    return multibase.encode(raw, "base64url")[1:]
