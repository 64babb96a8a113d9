"""The bytes of an answer of HTTP/1.1 (RFC 9112): head, framing of the body, and what follows for
the connection.

h11 reads requests, from anybody, and is strict. Answers are this node's own, and to have h11 check
and copy them, too, took a sixth of a small request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

_REASONS: Final = {int(status): status.phrase.encode() for status in HTTPStatus}
_WITHOUT_BODY: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class AnswerWriter:
    """Writes the answer to one request.

    Args:
        is_head: whether the request was HEAD: the answer has the head of that to GET, and no body.
        is_old: whether it was of HTTP/1.0, which does not know chunks.
        keeps_alive: whether another request may follow.
    """

    def __init__(
        self, *, is_head: bool = False, is_old: bool = False, keeps_alive: bool = False
    ) -> None:
        self._is_head = is_head
        self._is_old = is_old
        self._has_body = True
        self._left: int | None = None
        """Bytes of the body that are missing; None: it has no declared length."""
        self.keeps_alive = keeps_alive and not is_old
        self.has_begun = False
        self.is_complete = False

    def head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the head of the answer. Names of headers are in lower case.

        Raises:
            ValueError: a header would end early, and its rest be taken for another one.
        """
        status_line = b"HTTP/1.1 %d %s" % (status, _REASONS.get(status, b""))
        lines = [status_line, b"date: " + _date(int(time.time()))]
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)
            elif name == b"connection":
                self.keeps_alive = self.keeps_alive and value != b"close"
                continue
            lines.append(name + b": " + value)
        self._has_body = not self._is_head and status not in _WITHOUT_BODY
        if self._left is None and status not in _WITHOUT_BODY:
            if self._is_old:
                self.keeps_alive = False
            else:
                lines.append(b"transfer-encoding: chunked")
        if not self.keeps_alive:
            lines.append(b"connection: close")
        ends = len(lines) + 1
        head = b"\r\n".join([*lines, b"", b""])
        if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head:
            raise ValueError("a header of an answer has a line break or a zero byte")
        self.has_begun = True
        return head

    def body(self, data: bytes, *, is_last: bool) -> bytes:
        """Return a part of the body as it is sent.

        Raises:
            ValueError: the body does not have the declared length.
        """
        framed = self._framed(data, is_last=is_last) if self._has_body else b""
        self.is_complete = is_last
        return framed

    def _framed(self, data: bytes, *, is_last: bool) -> bytes:
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (is_last and self._left):
                raise ValueError("the body of an answer does not have the length in its head")
            return data
        if self._is_old:
            return data
        chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        return chunk + b"0\r\n\r\n" if is_last else chunk


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
