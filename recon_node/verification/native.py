"""The same findings by a native core, `recon-node-native` (native/), where that is installed.

It checks many events at once, without the interpreter's lock, and says yes or nothing: what it does
not accept is looked at by `check_event`, which has all the rules and says what is wrong. So an
event is accepted by one exactly if it is by the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from recon_node.ceramic import ALWAYS, CeramicError, EventKind, InitHeader
from recon_node.ceramic.auth.did import Ed25519Key, public_key, same_did
from recon_node.ceramic.auth.envelope import parse_protected
from recon_node.ipld import CID, DagCborError, dag_cbor
from recon_node.verification.facts import Facts, Names

try:
    import recon_node_native as core
except ImportError:
    core = None

VERSION: Final[str | None] = core and core.__VERSION__
"""Of the native core; None if it is not installed."""

_new_cid: Final[Callable[[type[CID], bytes], CID]] = bytes.__new__
"""Makes a CID of bytes that were checked."""


def check_events(cars: Sequence[bytes]) -> list[Facts | None]:
    """Return the facts of events that have nothing uncommon about them; None for all others."""
    found = core.check([car if type(car) is bytes else b"" for car in cars], _signer)
    return [each and _facts(car, *each) for each, car in zip(found, cars, strict=True)]


def _facts(
    car: bytes,
    raw_cid: bytes,
    payload: bytes,
    signer: str,
    raw_init: bytes | None,
    links: tuple[bytes, ...],
    encoded_header: bytes | None,
) -> Facts | None:
    cid, names = _new_cid(CID, raw_cid), Names(_new_cid(CID, payload), None)
    kind, init, header = EventKind.DATA, cid, None
    if raw_init is not None:
        init = _new_cid(CID, raw_init)
    elif encoded_header is not None:
        kind, header = EventKind.INIT, _header(encoded_header, signer)
        if header is None:
            return None
    prevs = tuple([_new_cid(CID, link) for link in links])
    return Facts(cid, kind, init, prevs, header, names, None, None, signer, ALWAYS, None, car)


def _header(encoded: bytes, signer: str) -> InitHeader | None:
    """Return the header of an init event if it is right, and its controller has signed."""
    try:
        header = InitHeader.from_fields(dag_cbor.decode(encoded))
    except (CeramicError, DagCborError):
        return None
    return header if same_did(signer, header.controller) else None


@lru_cache(maxsize=1024)
def _signer(protected: bytes) -> tuple[bytes, str] | None:
    """Return the Ed25519 key and the DID that sign without a capability; None if others do."""
    try:
        header = parse_protected(protected)
        did = header["kid"].partition("#")[0]
        key = public_key(did)
    except CeramicError:
        return None
    if not isinstance(key, Ed25519Key) or header["alg"] != key.alg:
        return None
    return None if "crit" in header or "cap" in header else (bytes(key.verify_key), did)
