"""The gaps of a message of `/ceramic/recon/1.1.0`: what is said about each part of the range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, overload

END: Final = b""
"""Upper bound of a gap that reaches to the end of the session's range."""


class Say(IntEnum):
    """What a message says about a gap."""

    AGREED = 0
    """Nothing: the sides agree on it."""
    FINGERPRINT = 1
    """The fingerprint of the sender's keys in it."""
    KEYS = 2
    """All keys that the sender holds in it, perhaps none: tell me those that I lack."""
    MORE = 3
    """Keys in it that the receiver lacks: with these, the sides agree on it."""


# To get a member from its class takes as long as a call.
AGREED: Final = Say.AGREED
FINGERPRINT: Final = Say.FINGERPRINT
KEYS: Final = Say.KEYS


class Gap(NamedTuple):
    """What is said about the keys from the bound before (inclusive) to ``upper`` (exclusive)."""

    upper: bytes
    say: Say
    fingerprint: bytes = b""
    keys: tuple[bytes, ...] = ()


class Gaps(Sequence[Gap]):
    """The gaps of a message, as three lists side by side.

    A turn may have a hundred thousand gaps. As objects they would cost the garbage collector more
    time than they take to answer, for it goes through the whole key store whenever many are made.
    """

    __slots__ = ("bodies", "says", "uppers")

    def __init__(self, gaps: Iterable[Gap] = ()) -> None:
        self.uppers: list[bytes] = []
        self.says: list[Say] = []
        self.bodies: list[bytes | tuple[bytes, ...]] = []
        """A fingerprint, some keys, or the empty string, as ``says`` tells."""
        for upper, say, fingerprint, keys in gaps:
            self.append(upper, say, keys if say >= Say.KEYS else fingerprint)

    def append(self, upper: bytes, say: Say, body: bytes | tuple[bytes, ...] = b"") -> None:
        """Add a gap above the others."""
        self.uppers.append(upper)
        self.says.append(say)
        self.bodies.append(body)

    def columns(self) -> Iterator[tuple[bytes, Say, bytes | tuple[bytes, ...]]]:
        """Iterate over upper, say and body of the gaps: faster than over the gaps."""
        return zip(self.uppers, self.says, self.bodies, strict=True)

    def keys(self) -> list[bytes]:
        """Return the keys of all gaps."""
        return [key for body in self.bodies if isinstance(body, tuple) for key in body]

    def __len__(self) -> int:
        return len(self.uppers)

    @overload
    def __getitem__(self, index: int) -> Gap: ...

    @overload
    def __getitem__(self, index: slice) -> Gaps: ...

    def __getitem__(self, index: int | slice) -> Gap | Gaps:
        if isinstance(index, slice):
            return Gaps(self[at] for at in range(*index.indices(len(self))))
        body = self.bodies[index]
        if isinstance(body, tuple):
            return Gap(self.uppers[index], self.says[index], keys=body)
        return Gap(self.uppers[index], self.says[index], body)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Gaps):
            return NotImplemented
        return list(self.columns()) == list(other.columns())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Gaps({list(self)})"
