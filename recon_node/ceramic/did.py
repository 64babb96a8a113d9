"""DIDs: their syntax, and the one kind whose key can be used here, did:key with Ed25519.

Sources: https://www.w3.org/TR/did-core/#did-syntax and
https://w3c-ccg.github.io/did-key-spec/: a did:key is `did:key:z` and, in base58, the varint 0xed
and the 32 bytes of the public key.
"""

import re
from functools import lru_cache
from typing import Final

from nacl.signing import VerifyKey

from recon_node.ceramic.errors import DidError
from recon_node.ipld import IpldError, multibase, varint

DID_KEY: Final = "did:key:"
# A did:pkh or did:key is under 200 characters; this leaves room for other methods.
MAX_DID_LENGTH: Final = 1000

_SYNTAX: Final = re.compile(r"did:[a-z0-9]+:[A-Za-z0-9._:%-]+")
_ED25519_CODEC: Final = 0xED
_KEY_KINDS: Final = {
    0xE7: "secp256k1",
    0x1200: "P-256",
    0x1201: "P-384",
    0x1202: "P-521",
    0xEC: "X25519",
    0x1205: "RSA",
}


def is_did(text: str) -> bool:
    """Does `text` follow the syntax of DIDs, without a path, query or fragment?"""
    return len(text) <= MAX_DID_LENGTH and _SYNTAX.fullmatch(text) is not None


def ed25519_did(public_key: bytes) -> str:
    """The did:key of an Ed25519 public key of 32 bytes."""
    return DID_KEY + multibase.encode(varint.encode(_ED25519_CODEC) + public_key, "base58btc")


@lru_cache(maxsize=4096)
def ed25519_key(did: str) -> VerifyKey:
    """The public key that a did:key names.

    Raises:
        DidError: another DID method, another kind of key, or broken.
    """
    if not did.startswith(DID_KEY):
        method = ":".join(did.split(":")[:2])[:100]
        raise DidError(f"cannot check signatures of {method!r} yet, only of did:key")
    text = did.removeprefix(DID_KEY)
    if not text.startswith("z"):
        raise DidError(f"broken DID {did[:100]!r}: a did:key is written in base58, 'did:key:z...'")
    try:
        raw = multibase.decode(text)
        codec, offset = varint.decode(raw)
    except IpldError as error:
        raise DidError(f"broken DID {did[:100]!r}: {error}") from None
    if codec != _ED25519_CODEC:
        kind = _KEY_KINDS.get(codec, f"code {codec:#x}")
        raise DidError(f"cannot check signatures by keys of the kind {kind} yet, only Ed25519")
    if len(raw) != offset + 32:
        raise DidError(f"broken DID {did[:100]!r}: an Ed25519 key has 32 bytes")
    return VerifyKey(raw[offset:])
