"""Keys that sign events, and capabilities: what an account lets a key do in its name (CACAO,
CAIP-74). Both are kept in files.

A key is Ed25519, secp256k1 or P-256. Two kinds of files are read: the PEM of a private key
(PKCS#8, as `openssl genpkey` writes it, or SEC 1), without a password; and 64 hexadecimal digits,
the seed of an Ed25519 key. `save` writes the latter for an Ed25519 key, which is also the form of
the node's file for `recon-node dag --key`, and PEM for the others.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, Self, TypeAlias

from nacl.signing import SigningKey

from recon_node.base.connection import ClientError, InvalidArgumentError
from recon_node.base.errors import reason_of
from recon_node.ceramic import CeramicError
from recon_node.ceramic.auth.capability import Cacao
from recon_node.ceramic.auth.did import PrivateKey, controller_of
from recon_node.ceramic.auth.signature import verified_capability
from recon_node.ipld import IpldError, multibase
from recon_node.ipld.errors import required_for

_PIPE_PATIENCE: Final = 10.0
"""Seconds to wait until somebody opens a pipe to write to it."""
_MAX_CAPABILITY: Final = 2 * 1024 * 1024
"""Bytes of a file with a capability that are read: it is a part of an event."""


class KeyFileError(ClientError):
    """A key file that is missing, or does not hold a key."""


class NoKeyError(ClientError):
    """Something has to be signed, and there is no key."""

    def __str__(self) -> str:
        return (
            "there is no key to sign with: give one to the client, `Ceramic(url, key=...)`, or to "
            "the call, `key=...`; `Key.generate()` makes one"
        )


class CapabilityExpiredError(ClientError):
    """The account of a key has to sign again. Nothing was sent."""

    def __init__(self, account: str, expired: datetime | None) -> None:
        super().__init__(account, expired)
        self.account = account
        self.expired = expired

    def __str__(self) -> str:
        return (
            f"the capability of {self.account} is not valid now (until {self.expired}): have the "
            "account sign again, `client.key = account.renew(client.key)`"
        )


@contextmanager
def checked_arguments() -> Generator[None]:
    """Turn what the layers below refuse into an `InvalidArgumentError`."""
    try:
        yield
    except CeramicError as error:
        raise InvalidArgumentError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Capability:
    """What an account has signed: that a key may write in its name. It is not a secret.

    Raises:
        InvalidArgumentError: the block is not a CACAO that its issuer has signed.
    """

    block: bytes = field(repr=False)
    cacao: Cacao = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read and verify the block."""
        with checked_arguments():
            object.__setattr__(self, "cacao", verified_capability(self.block))

    @property
    def issuer(self) -> str:
        """The DID of the account."""
        return self.cacao.issuer

    @property
    def audience(self) -> str:
        """The did:key of the key that may write."""
        return self.cacao.audience

    @property
    def resources(self) -> tuple[str, ...]:
        """What it may write: `ceramic://*`, `ceramic://*?model=<StreamID>`, or single streams."""
        return self.cacao.resources

    @property
    def expires(self) -> datetime | None:
        """Until when it may; None means forever."""
        seconds = self.cacao.validity.expires
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a capability from a file: multibase text of its block.

        Raises:
            KeyFileError: the file cannot be read, or does not hold a capability.
        """
        try:
            text = _read(path, _MAX_CAPABILITY).decode("ascii")  # what is longer is not one
            return cls(multibase.decode(text.strip()))
        except OSError as error:
            raise KeyFileError(f"the capability {path}: {reason_of(error)}") from None
        except (IpldError, ValueError) as error:
            raise KeyFileError(f"the capability {path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the capability to a file, over an earlier one.

        Raises:
            KeyFileError: the file cannot be written; an earlier one stays as it was.
        """
        content = multibase.encode(self.block).encode() + b"\n"
        target = Path(path)
        try:
            if target.exists() and not target.is_file():  # a pipe, or a device
                target.write_bytes(content)
                return
            target = Path(os.path.realpath(target))
            draft = target.with_name(f".{target.name}.part")
            draft.unlink(missing_ok=True)
            _write_new(draft, content, 0o666)
            if target.exists():
                shutil.copymode(target, draft)
            draft.replace(target)
        except OSError as error:
            raise KeyFileError(f"the capability {path}: {reason_of(error)}") from None


KeyKind: TypeAlias = Literal["ed25519", "secp256k1", "p256"]

_PEM: Final = b"-----BEGIN"
_SEED_SIZE: Final = 32
"""Bytes of an Ed25519 seed."""
_MAX_FILE: Final = 64 * 1024
"""Bytes of a key file that are read."""


@dataclass(frozen=True, slots=True)
class Key:
    """A private key. Its `did` is the controller of the streams that it starts.

    With a capability, it writes in the name of the account that has signed it.
    """

    private: PrivateKey = field(repr=False)
    capability: Capability | None = None

    @classmethod
    def generate(cls, kind: KeyKind = "ed25519") -> Self:
        """Make a new key.

        Raises:
            InvalidArgumentError: an unknown kind.
        """
        if kind == "ed25519":
            return cls(SigningKey.generate())
        if kind in ("secp256k1", "p256"):
            from recon_node.ceramic.auth import ecdsa

            return cls(ecdsa.generate(kind))
        raise InvalidArgumentError(f"a key is ed25519, secp256k1 or p256, not {kind!r}")

    @classmethod
    def from_seed(cls, seed: bytes) -> Self:
        """Make the Ed25519 key of a seed of 32 bytes.

        Raises:
            InvalidArgumentError: another number of bytes.
        """
        if len(seed) != _SEED_SIZE:
            raise InvalidArgumentError(f"the seed of an Ed25519 key has 32 bytes, not {len(seed)}")
        return cls(SigningKey(seed))

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the content of a key file.

        Raises:
            KeyFileError: it does not hold a private key of a kind that Ceramic knows.
        """
        if data.lstrip().startswith(_PEM):
            return cls(_read_pem(data))
        try:
            return cls.from_seed(bytes.fromhex(data.decode("ascii").strip()))
        except ValueError:
            raise KeyFileError(
                "it holds no key, which is a private key as PEM, or the 64 hexadecimal digits of "
                "the seed of an Ed25519 key"
            ) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a key from a file.

        Raises:
            KeyFileError: the file cannot be read, or as `parse`.
        """
        try:
            return cls.parse(_read(path, _MAX_FILE))  # what is longer is not a key
        except OSError as error:
            raise KeyFileError(f"the key {path}: {reason_of(error)}") from None
        except KeyFileError as error:
            raise KeyFileError(f"the key {path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner can read.

        Raises:
            KeyFileError: the file exists already, or cannot be written.
        """
        try:
            _write_new(Path(path), self.to_bytes(), 0o600)
        except FileExistsError:
            raise KeyFileError(f"{path} already exists; not overwriting it") from None
        except OSError as error:
            raise KeyFileError(f"the key {path}: {reason_of(error)}") from None

    def to_bytes(self) -> bytes:
        """Return the content of a key file."""
        if isinstance(self.private, SigningKey):
            return bytes(self.private).hex().encode() + b"\n"
        from recon_node.ceramic.auth import ecdsa

        return ecdsa.to_pem(self.private)

    @property
    def did(self) -> str:
        """The DID that it writes for: its own did:key, or the account of its capability."""
        return self.signer if self.capability is None else self.capability.issuer

    @property
    def signer(self) -> str:
        """Its own did:key."""
        return controller_of(self.private)

    def acting_for(self, capability: Capability) -> Self:
        """Return the key as it writes in the name of an account.

        Raises:
            InvalidArgumentError: the capability is for another key.
        """
        if capability.audience != self.signer:
            raise InvalidArgumentError(
                f"the capability is for the key {capability.audience}, not for {self.signer}"
            )
        return replace(self, capability=capability)

    @property
    def capability_block(self) -> bytes | None:
        """The block that events name, if the key writes for an account."""
        return None if self.capability is None else self.capability.block


def _read_pem(data: bytes) -> PrivateKey:
    with required_for("keys in PEM files"):
        import coincurve
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError:
        raise KeyFileError(
            "it has a password, which is not supported: store it without one"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"it is not a private key as PEM ({error})") from None
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return SigningKey(key.private_bytes_raw())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        if isinstance(key.curve, ec.SECP256R1):
            return key
        if isinstance(key.curve, ec.SECP256K1):
            return coincurve.PrivateKey.from_int(key.private_numbers().private_value)
        raise KeyFileError(
            f"it is on the curve {key.curve.name}; Ceramic supports secp256k1 and P-256"
        )
    raise KeyFileError("Ceramic does not support its kind of key: use Ed25519, secp256k1 or P-256")


def _read(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the beginning of a file.

    Somebody must open a pipe within `_PIPE_PATIENCE`; its content may come later, as when a
    passphrase has to be typed.
    """
    not_yet = getattr(os, "O_NONBLOCK", 0)  # else a pipe is opened when somebody writes to it
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | not_yet)) as file:
        is_silent = False
        if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            ready = select.poll()
            ready.register(file, select.POLLIN)
            is_silent = not ready.poll(_PIPE_PATIENCE * 1000)
        if not_yet:
            os.set_blocking(file.fileno(), True)  # a terminal, too
        content = file.read(most)  # at once without a writer
        if is_silent and not content:
            raise TimeoutError(errno.ETIMEDOUT, "nothing comes from it")
        return content


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that must not exist; there is none if that fails. (`files` has locks, which the
    client does without.)"""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
