"""StreamIDs: the names of streams, `varint(0xce) varint(type) CID of the init event`.

Source: CIP-59; the stream types are those of the CIPs' streamtypes table. As text a StreamID is
multibase base36, "k...".
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from recon_node.ceramic.errors import StreamIdError
from recon_node.ipld import CID, IpldError, multibase, read_cid, varint

STREAM_ID_CODEC: Final = 0xCE


class StreamType(IntEnum):
    """The registered kinds of streams. A StreamId may also carry an unregistered number."""

    TILE = 0
    CAIP10_LINK = 1
    MODEL = 2
    MODEL_INSTANCE = 3
    UNLOADABLE = 4


@dataclass(frozen=True, slots=True)
class StreamId:
    """The name of a stream: its type and the CID of its init event."""

    type: int
    cid: CID

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a StreamID in any multibase, commonly "k..." (base36).

        Raises:
            StreamIdError: not a StreamID.
        """
        try:
            return cls.from_bytes(multibase.decode(text))
        except (IpldError, StreamIdError) as error:
            raise StreamIdError(f"{text[:100]!r} is not a StreamID: {error}") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a binary StreamID, as in event headers.

        Raises:
            StreamIdError: not a StreamID, or bytes are left over.
        """
        try:
            codec, offset = varint.decode(data)
            if codec != STREAM_ID_CODEC:
                raise StreamIdError(
                    f"a StreamID starts with the codec 0xce, not {codec:#x} (is it complete?)"
                )
            stream_type, offset = varint.decode(data, offset)
            cid, offset = read_cid(data, offset)
        except IpldError as error:
            raise StreamIdError(f"broken StreamID: {error}") from None
        if offset != len(data):
            raise StreamIdError(
                f"{len(data) - offset} extra bytes: a CommitID or something else, not a StreamID"
            )
        return cls(stream_type, cid)

    def to_bytes(self) -> bytes:
        """The binary form."""
        return varint.encode(STREAM_ID_CODEC) + varint.encode(self.type) + self.cid

    def __str__(self) -> str:
        return multibase.encode(self.to_bytes(), "base36")


METAMODEL: Final = StreamId.parse("kh4q0ozorrgaq2mezktnrmdwleo1d")
"""What every model's header names as its model: the stream "model-v1", which cannot be loaded."""
