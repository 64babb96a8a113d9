"""Gaps of `/ceramic/recon/1.2.0`, drawn at random, and a slow, plain codec for them."""

from itertools import takewhile

from hypothesis import strategies as st

from recon_node.ceramic import IN_MEMORY, MAINNET, EventId
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, decode_varint, encode_varint
from recon_node.recon.coded.messages import END, FINGERPRINT_SIZE, MAX_BOUND, Body, Mode

Column = tuple[bytes, Mode, Body]


def mixed_key(number: int) -> EventId:
    """Return one of many keys: networks, codecs and heights of different lengths, few streams."""
    network = (IN_MEMORY, MAINNET)[number % 2]
    codec = (DAG_CBOR, DAG_JOSE)[number // 2 % 2]
    height = (0, 1, 23, 24, 300, 70_000)[number // 4 % 6]
    init = CID.of(DAG_CBOR, b"%d" % (number % 3))
    return EventId.build(
        network, "sort value", "did:key:a", init, height, CID.of(codec, b"%d" % number)
    )


KEYS = sorted(mixed_key(number) for number in range(120))
BOUNDS = (
    st.sampled_from(KEYS).flatmap(lambda key: st.integers(1, len(key)).map(lambda n: key[:n]))
    | st.binary(min_size=1, max_size=3)
    | st.tuples(st.sampled_from([30, 31, 32, 126, 127, 128, 250]), st.binary(max_size=6)).map(
        lambda drawn: b"\x80" * drawn[0] + drawn[1]
    )
)


@st.composite
def columns(draw: st.DrawFn, before: bytes = b"") -> list[Column]:
    """Draw gaps with keys and bounds of all lengths, some of them prefixes of others."""
    drawn: list[Column] = []
    uppers = [upper for upper in draw(st.sets(BOUNDS, max_size=8)) if upper > before]
    for upper in [*sorted(uppers), END]:
        inside = [key for key in KEYS if before <= key and (upper == END or key < upper)]
        mode = draw(st.sampled_from(Mode))
        body: Body = b""
        if mode is Mode.FINGERPRINT:
            body = draw(st.binary(min_size=FINGERPRINT_SIZE, max_size=FINGERPRINT_SIZE))
        elif mode is not Mode.SKIP:
            chosen = draw(st.sets(st.sampled_from(inside), max_size=12)) if inside else set()
            body = tuple(sorted(chosen))
        drawn.append((upper, mode, body))
        before = upper
    return drawn[: draw(st.integers(0, len(drawn)))]


def common(a: bytes, b: bytes) -> int:
    """Return the length of the longest common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def plain_string(before: bytes, string: bytes, below: int, radix: int) -> bytes:
    shared = common(before, string)
    rest = string[shared:]
    return encode_varint(shared * radix + below) + encode_varint(len(rest)) + rest


def plain_bytes(gaps: list[Column]) -> bytes:
    out, before = b"\x00\x00", b""
    for upper, mode, body in gaps:
        out += plain_string(before, upper, mode, len(Mode))
        if isinstance(body, bytes):
            out += body
        else:
            out += encode_varint(len(body))
            for key in body:
                out += plain_string(before, key, 0, 1)
                before = key
        before = upper
    return out


class PlainReader:
    """Reads gaps field by field and checks every rule at once; raises ValueError."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 2

    def varint(self) -> int:
        number, self.at = decode_varint(self.data, self.at)
        return number

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        assert_that(len(taken) == size)
        self.at += size
        return taken

    def string(self, before: bytes, shared: int) -> bytes:
        string = before[:shared] + self.take(self.varint())
        assert_that(len(string) <= MAX_BOUND)
        assert_that(common(before, string) == shared)
        return string

    def gaps(self) -> list[Column]:
        gaps: list[Column] = []
        before = b""
        while self.at < len(self.data):
            assert_that(before != END or not gaps)
            shared, number = divmod(self.varint(), len(Mode))
            upper, mode = self.string(before, shared), Mode(number)
            assert_that(upper > before or upper == END)
            body: Body = b""
            if mode is Mode.FINGERPRINT:
                body = self.take(FINGERPRINT_SIZE)
            elif mode is not Mode.SKIP:
                body = self.keys(before, upper)
            gaps.append((upper, mode, body))
            before = upper
        return gaps

    def keys(self, before: bytes, upper: bytes) -> tuple[bytes, ...]:
        keys: list[bytes] = []
        for _ in range(self.varint()):
            key = EventId(self.string(before, self.varint()))
            assert_that(not key.is_fencepost and (upper == END or key < upper))
            assert_that(key > before if keys else key >= before)
            keys.append(key)
            before = key
        return tuple(keys)


def assert_that(holds: bool) -> None:
    if not holds:
        raise ValueError
