"""The node's identity on the network: an Ed25519 key pair that outlives restarts.

The private key is in ``identity.key`` in the data directory, in libp2p's protobuf (36 bytes for
Ed25519), readable by its owner only. The peer id is derived from it.
"""

from __future__ import annotations

from pathlib import Path

from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair, KeyType
from libp2p.identity_utils import load_identity, save_identity
from libp2p.peer.id import ID
from nacl.signing import SigningKey

from recon_node.files import draft_of, move_into_place
from recon_node.p2p.errors import P2PError

IDENTITY_FILE = "identity.key"
_SEED_SIZE = 32


def open_identity(data_dir: Path) -> KeyPair:
    """Return the identity of a data directory; the first call creates it. Blocks on the disk.

    Raises:
        P2PError: it cannot be read or written, or it is not an Ed25519 key.
    """
    path = data_dir / IDENTITY_FILE
    try:
        return _load(path) if path.exists() else _create(path)
    except OSError as error:
        raise P2PError(
            f"cannot use the node's identity {path}: {error.strerror or error}; "
            "check that the directory exists and belongs to this user"
        ) from error


def peer_id_of(identity: KeyPair) -> str:
    """Return the peer id, in base58, that belongs to a key pair."""
    return str(ID.from_pubkey(identity.public_key))


def signing_key_of(identity: KeyPair) -> SigningKey:
    """Return the private key as one that signs JWS; its did:key names the node."""
    return SigningKey(identity.private_key.to_bytes()[:_SEED_SIZE])


def _load(path: Path) -> KeyPair:
    try:
        identity = load_identity(path)
    except OSError:
        raise
    except Exception as error:  # the library's parser raises many kinds
        raise _broken(path, "is not a libp2p private key") from error
    if identity.private_key.get_type() != KeyType.Ed25519:
        raise _broken(path, f"holds a {identity.private_key.get_type().name} key, not Ed25519")
    path.chmod(0o600)
    return identity


def _broken(path: Path, what: str) -> P2PError:
    return P2PError(
        f"the node's identity {path} {what}; restore it from a backup, or move it away to start "
        "with a new identity (other nodes will then know this one by another peer id)"
    )


def _create(path: Path) -> KeyPair:
    identity = create_new_key_pair()
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_of(path, mode=0o600) as draft:
        save_identity(identity, draft)
        move_into_place(draft, path)
    return identity
