"""Reading ahead on a connection.

The library reads a frame in four pieces: length and content of a Noise message, twice. Each piece
is a call of the operating system and a turn of the scheduler. Here, one call reads whatever has
arrived, and the pieces are cut from that.
"""

from __future__ import annotations

from typing import Final, cast

from libp2p.abc import IRawConnection
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.connection.raw_connection import RawConnection

READ_AT_ONCE: Final = 64 * 1024
"""Maximum bytes that are read ahead. A connection is charged for them from its beginning."""


class ReadAhead(ReadWriteCloser):
    """A connection that is read in large pieces, by one reader at a time.

    Args:
        stream: the connection below.
    """

    def __init__(self, stream: ReadWriteCloser) -> None:
        self._stream = stream
        self._ahead = b""
        self._at = 0

    async def read(self, n: int | None = None) -> bytes:
        """Return at most ``n`` bytes, and none only at the end."""
        if self._at == len(self._ahead):
            self._ahead, self._at = b"", 0
            if n is None or n >= READ_AT_ONCE:
                return await self._stream.read(n)
            if n == 0:
                return b""
            self._ahead = await self._stream.read(READ_AT_ONCE)
        end = len(self._ahead) if n is None else self._at + n
        part = self._ahead[self._at : end]
        self._at += len(part)
        return part

    async def write(self, data: bytes) -> None:
        """Send data."""
        await self._stream.write(data)

    async def close(self) -> None:
        """Close the connection below."""
        await self._stream.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return the address of the peer."""
        return self._stream.get_remote_address()


def read_ahead_on(raw: IRawConnection) -> None:
    """Read ahead on a connection on which nothing has been read yet."""
    connection = cast(RawConnection, raw)
    connection.stream = ReadAhead(connection.stream)
