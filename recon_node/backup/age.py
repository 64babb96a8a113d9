"""Encrypt a stream with a passphrase, in the format of age (age-encryption.org/v1, by C2SP).

The program `age -d`, or any other that knows the format, decrypts it without this project. A key
that scrypt makes of the passphrase wraps a random file key; that encrypts the content in pieces of
64 KiB, each with its number and with a mark at the last one, so that nothing can be changed, moved
or cut off unnoticed.
"""

import hmac
import os
from base64 import b64decode, b64encode
from typing import BinaryIO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

MAGIC: Final = b"age-encryption.org/v1\n"
WORK: Final = 18
"""The binary logarithm of scrypt's cost: a second, and 256 MiB of memory."""
_MOST_WORK: Final = 20
"""What age accepts at most."""
_CHUNK_BYTES: Final = 64 * 1024
_TAG: Final = 16
_LAST: Final = b"\x01"
_NOT_LAST: Final = b"\x00"
_HEADER_LINES: Final = 3
_LONGEST_LINE: Final = 200
_DAMAGED: Final = "it is damaged, or was cut off"


class DecryptionError(Exception):
    """The passphrase is wrong, or the data was not encrypted with one, or is damaged."""


class Encryptor:
    """Encrypts what is written to it. The cost of scrypt is two to the power of `work`."""

    def __init__(self, target: BinaryIO, passphrase: str, work: int = WORK) -> None:
        file_key, salt, nonce = os.urandom(16), os.urandom(16), os.urandom(16)
        wrapped = ChaCha20Poly1305(_wrap_key(passphrase, salt, work)).encrypt(
            bytes(12), file_key, None
        )
        header = MAGIC + b"-> scrypt %s %d\n%s\n---" % (_base64(salt), work, _base64(wrapped))
        target.write(header + b" " + _base64(_header_mac(file_key, header)) + b"\n" + nonce)
        self._target = target
        self._cipher = ChaCha20Poly1305(_derived(file_key, nonce, b"payload"))
        self._pending = bytearray()
        self._count = 0

    def write(self, data: bytes) -> int:
        """Encrypt the next bytes."""
        self._pending += data
        while len(self._pending) > _CHUNK_BYTES:  # the last chunk is only known by `close`
            self._encrypt(_NOT_LAST)
        return len(data)

    def close(self) -> None:
        """Write the end. Without it, nobody can take what was written for the whole."""
        self._encrypt(_LAST)

    def _encrypt(self, mark: bytes) -> None:
        """Write a chunk."""
        piece = bytes(self._pending[:_CHUNK_BYTES])
        del self._pending[:_CHUNK_BYTES]
        self._target.write(self._cipher.encrypt(_nonce(self._count, mark), piece, None))
        self._count += 1


class Decryptor:
    """Reads what an `Encryptor`, or age with a passphrase, has written.

    Raises:
        DecryptionError: the passphrase is wrong, or the source has no such header.
    """

    def __init__(self, source: BinaryIO, passphrase: str) -> None:
        if source.readline(_LONGEST_LINE) != MAGIC:
            raise DecryptionError("it is not encrypted in the format of age")
        lines = [source.readline(_LONGEST_LINE) for _ in range(_HEADER_LINES)]
        file_key = _open_header(lines, passphrase)
        self._source = source
        self._cipher = ChaCha20Poly1305(_derived(file_key, source.read(16), b"payload"))
        self._next = source.read(_CHUNK_BYTES + _TAG)
        self._ready = b""
        self._count = 0
        self._is_done = False

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer than `size` only at the end.

        Raises:
            DecryptionError: the data was changed or cut off.
        """
        while len(self._ready) < size and not self._is_done:
            piece, self._next = self._next, self._source.read(_CHUNK_BYTES + _TAG)
            self._is_done = not self._next
            mark = _LAST if self._is_done else _NOT_LAST
            try:
                plain = self._cipher.decrypt(_nonce(self._count, mark), piece, None)
            except InvalidTag:
                raise DecryptionError(_DAMAGED) from None
            self._ready += plain
            self._count += 1
        taken, self._ready = self._ready[:size], self._ready[size:]
        return taken


def _open_header(lines: list[bytes], passphrase: str) -> bytes:
    """Return the file key."""
    try:
        arrow, kind, salt, work = lines[0].split()
        dashes, mac = lines[2].split()
        if (arrow, kind, dashes) != (b"->", b"scrypt", b"---"):
            raise DecryptionError(
                "it is encrypted for a key, not with a passphrase: use age itself"
            )
        if not 0 < int(work) <= _MOST_WORK:
            raise DecryptionError(_DAMAGED)
        wrap_key = _wrap_key(passphrase, _unbase64(salt), int(work))
        wrapped = _unbase64(lines[1].strip())
    except ValueError:
        raise DecryptionError(_DAMAGED) from None
    try:
        file_key = ChaCha20Poly1305(wrap_key).decrypt(bytes(12), wrapped, None)
    except (InvalidTag, ValueError):
        raise DecryptionError("the passphrase is wrong") from None
    header = MAGIC + lines[0] + lines[1] + b"---"
    if not hmac.compare_digest(_base64(_header_mac(file_key, header)), mac):
        raise DecryptionError(_DAMAGED)
    return file_key


def _wrap_key(passphrase: str, salt: bytes, work: int) -> bytes:
    salt = b"age-encryption.org/v1/scrypt" + salt
    return Scrypt(salt=salt, length=32, n=2**work, r=8, p=1).derive(passphrase.encode())


def _header_mac(file_key: bytes, header: bytes) -> bytes:
    return hmac.digest(_derived(file_key, b"", b"header"), header, "sha256")


def _derived(key: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(key)


def _nonce(count: int, mark: bytes) -> bytes:
    return count.to_bytes(11, "big") + mark


def _base64(data: bytes) -> bytes:
    return b64encode(data).rstrip(b"=")


def _unbase64(text: bytes) -> bytes:
    return b64decode(text + b"=" * (-len(text) % 4), validate=True)
