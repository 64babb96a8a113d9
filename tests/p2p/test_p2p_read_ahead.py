"""Reading ahead gives the same bytes, in fewer reads of the connection below."""

import trio
from hypothesis import given
from hypothesis import strategies as st

from recon_node.p2p.transport.guarded_yamux import READ_AT_ONCE, ReadAhead

sizes = st.one_of(st.integers(1, 100), st.sampled_from([READ_AT_ONCE - 1, READ_AT_ONCE, None]))


class Below:
    """A connection on which some pieces arrive, and then the end."""

    def __init__(self, pieces) -> None:
        self.pieces = [piece for piece in pieces if piece]
        self.reads = []

    async def read(self, n=None) -> bytes:
        self.reads.append(n)
        await trio.lowlevel.checkpoint()
        if not self.pieces:
            return b""
        piece = self.pieces.pop(0)
        if n is not None and len(piece) > n:
            self.pieces.insert(0, piece[n:])
        return piece[:n]


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(sizes, min_size=1, max_size=8))
def test_it_returns_what_arrives_and_then_the_end(pieces, asked):
    async def read_all() -> None:
        below, received = Below(pieces), b""
        stream = ReadAhead(below)
        at = 0
        while part := await stream.read(asked[at % len(asked)]):
            size = asked[at % len(asked)]
            assert size is None or len(part) <= size
            received += part
            at += 1
        assert received == b"".join(pieces)
        assert await stream.read(1) == b""

    trio.run(read_all)


async def test_pieces_of_what_has_arrived_take_one_read():
    below = Below([bytes(range(100))])
    stream = ReadAhead(below)
    assert b"".join([await stream.read(2) for _ in range(50)]) == bytes(range(100))
    assert below.reads == [READ_AT_ONCE]


async def test_nothing_is_read_for_nothing():
    below = Below([b"later"])
    assert await ReadAhead(below).read(0) == b""
    assert below.reads == []
