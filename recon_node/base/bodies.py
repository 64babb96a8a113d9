"""Reading answers of an HTTP server that may be anybody's."""

from typing import Final

import httpcore
import httpx
import trio

httpcore.AsyncHTTP11Connection.READ_NUM_BYTES = 8 * 1024
"""Bytes of an answer that are read before others get a turn. They may be 500 interim answers
(1xx), which httpcore drops all in one step; it reads 64 KiB, and has no setting for that."""

_SMALL_PIECES: Final = 1_000
_MEAN_PIECE: Final = 64
"""More pieces than the former have at least this many bytes on average: those of a network do, but
chunks of one byte each are work that only the reader has."""


async def read_body(answer: httpx.Response, most: int) -> bytes:
    """Return the body of an answer as it is sent; if it has more than `most` bytes, a part of it
    with a few more than that. Others get a turn after each piece, of which thousands may be here.

    Raises:
        httpx.HTTPError: the connection was lost, or the body comes in tiny chunks.
    """
    body = bytearray()
    pieces = 0
    async for piece in answer.aiter_raw():
        await trio.lowlevel.checkpoint()
        pieces += 1
        body += piece
        if len(body) > most:
            break
        if pieces > _SMALL_PIECES and len(body) < pieces * _MEAN_PIECE:
            raise httpx.RemoteProtocolError(
                f"chunks of fewer than {_MEAN_PIECE} bytes on average: no server sends such"
            )
    return bytes(body)
