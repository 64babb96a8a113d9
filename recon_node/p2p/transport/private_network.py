"""Private networks: connections for those who have the same key ("pnet" of libp2p).

Specification: libp2p/specs, pnet/Private-Networks-PSK-V1. The first thing that each side sends is a
random nonce of 24 bytes. All that it sends after that is encrypted with XSalsa20 under the key and
this nonce, beneath Noise and everything else. Nobody answers to a wrong key: what arrives is noise,
and the negotiation that follows fails on it. The same formats are those of go-libp2p and kubo.

Stock's own cannot be used: it has another cipher, and nonces of 8 bytes (docs/upstream, 0011).
"""

import base64
import binascii
import os
import struct
from hashlib import shake_128
from pathlib import Path
from typing import Any, Final

from Crypto.Cipher import Salsa20
from libp2p.abc import IRawConnection
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node.base.errors import reason_of
from recon_node.base.files import read_small
from recon_node.p2p.errors import P2PError

KEY_SIZE: Final = 32
NONCE_SIZE: Final = 24
_HEADER: Final = b"/key/swarm/psk/1.0.0/"
_SIGMA: Final = struct.unpack("<4I", b"expand 32-byte k")
_ROUNDS: Final = 10
_QUARTERS: Final = (
    *((4, 0, 12, 8), (9, 5, 1, 13), (14, 10, 6, 2), (3, 15, 11, 7)),
    *((1, 0, 3, 2), (6, 5, 4, 7), (11, 10, 9, 8), (12, 15, 14, 13)),
)
"""The words that each quarter of a double round changes: by columns, then by rows."""


def read_swarm_key(path: Path) -> bytes:
    """Return the key of a private network from a file as kubo has it (swarm.key). Blocks.

    Raises:
        P2PError: it cannot be read, or is not such a file.
    """
    try:
        return _parse(read_small(path.expanduser()))
    except OSError as error:
        reason = reason_of(error)
    except ValueError as error:
        reason = str(error)
    raise P2PError(f"cannot use the swarm key {path}: {reason}; check swarm_key_file") from None


def _parse(data: bytes) -> bytes:
    header, _, rest = data.partition(b"\n")
    encoding, _, body = rest.partition(b"\n")
    if header.strip() != _HEADER:
        raise ValueError(f"its first line is not {_HEADER.decode()}")
    match encoding.strip():
        case b"/base16/":
            key = _decoded(binascii.unhexlify, body.strip())
        case b"/base64/":
            key = _decoded(base64.standard_b64decode, body.strip())
        case b"/bin/":
            key = body[:KEY_SIZE]
        case other:
            raise ValueError(f"its second line is {other[:20]!r}, not /base16/, /base64/ or /bin/")
    if len(key) != KEY_SIZE:
        raise ValueError(f"the key has {len(key)} bytes, not {KEY_SIZE}")
    return key


def _decoded(decode: Any, text: bytes) -> bytes:
    try:
        decoded: bytes = decode(text)
    except binascii.Error as error:
        raise ValueError(f"its third line cannot be decoded: {error}") from None
    return decoded


def fingerprint(key: bytes) -> str:
    """Return what identifies a key without revealing it; kubo logs the same."""
    stream = Salsa20.new(key=key, nonce=b"finprint").encrypt(bytes(64))
    return shake_128(stream).hexdigest(16)


def xsalsa20(key: bytes, nonce: bytes) -> Salsa20.Salsa20Cipher:
    """Return the cipher XSalsa20 (D. J. Bernstein, "Extending the Salsa20 nonce") for one stream.

    The key has 32 bytes, the nonce 24.
    """
    return Salsa20.new(key=_hsalsa20(key, nonce[:16]), nonce=nonce[16:])


def _hsalsa20(key: bytes, nonce: bytes) -> bytes:
    low, high, words = struct.unpack("<4I", key[:16]), struct.unpack("<4I", key[16:]), [0] * 16
    words[0], words[5], words[10], words[15] = _SIGMA
    words[1:5], words[6:10], words[11:15] = low, struct.unpack("<4I", nonce), high
    for _ in range(_ROUNDS):
        for a, b, c, d in _QUARTERS:
            words[a] ^= _rotated(words[b] + words[c], 7)
            words[d] ^= _rotated(words[a] + words[b], 9)
            words[c] ^= _rotated(words[d] + words[a], 13)
            words[b] ^= _rotated(words[c] + words[d], 18)
    return struct.pack("<8I", *(words[at] for at in (0, 5, 10, 15, 6, 7, 8, 9)))


def _rotated(word: int, bits: int) -> int:
    word &= 0xFFFFFFFF
    return (word << bits | word >> (32 - bits)) & 0xFFFFFFFF


class PrivateStream(ReadWriteCloser):
    """A connection of a private network."""

    def __init__(self, stream: ReadWriteCloser, key: bytes) -> None:
        self._stream = stream
        self._key = key
        self._encrypt: Salsa20.Salsa20Cipher | None = None
        self._decrypt: Salsa20.Salsa20Cipher | None = None

    async def write(self, data: bytes) -> None:
        """Send data, the nonce before the first."""
        prefix = b""
        if self._encrypt is None:
            prefix = os.urandom(NONCE_SIZE)
            self._encrypt = xsalsa20(self._key, prefix)
        await self._stream.write(prefix + self._encrypt.encrypt(data))

    async def read(self, n: int | None = None) -> bytes:
        """Return at most `n` bytes, none at the end; the peer's nonce is read before the first.

        Raises:
            ConnectionClosedError: the connection ended within the nonce.
        """
        if self._decrypt is None:
            self._decrypt = xsalsa20(self._key, await self._read_nonce())
        return self._decrypt.decrypt(await self._stream.read(n))

    async def _read_nonce(self) -> bytes:
        nonce = b""
        while len(nonce) < NONCE_SIZE:
            part = await self._stream.read(NONCE_SIZE - len(nonce))
            if not part:
                raise ConnectionClosedError("the connection ended before the peer's nonce")
            nonce += part
        return nonce

    async def close(self) -> None:
        """Close the connection below."""
        await self._stream.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return the address of the peer."""
        return self._stream.get_remote_address()


class PrivateTCP(TCP):
    """TCP that dials peers of a private network."""

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self._key = key

    async def dial(self, maddr: Multiaddr) -> IRawConnection:
        """Dial an address."""
        raw = await super().dial(maddr)
        assert isinstance(raw, RawConnection)
        raw.stream = PrivateStream(raw.stream, self._key)
        return raw
