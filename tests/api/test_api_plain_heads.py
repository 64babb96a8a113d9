"""Heads of requests that are read without h11: h11 reads all of them, in the same way."""

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recon_node.api.server import MAX_HEAD, plain_head

POST = (
    b"POST /ceramic/events?a=%20 HTTP/1.1\r\nHost: node:1\r\nUser-Agent: some thing/1.0 (x; y)\r\n"
    b"content-type:application/json\r\nContent-Length: 4\r\n\r\nbody"
)
NAMES = [
    "Host",
    "hOsT",
    "Content-Length",
    "Transfer-Encoding",
    "Expect",
    "X-1",
    "Connection",
    "a b",
]
VALUES = ["node", "4", "04", "+4", "4, 4", "-1", "", " ", "chunked", "100-continue", "a b ", "a\tb"]
FIELDS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(NAMES) | st.text(max_size=3),
    st.sampled_from([":", ": ", " : ", ":  ", ":\t", ""]),
    st.sampled_from(VALUES) | st.text(max_size=3),
    st.sampled_from(["\r\n"] * 5 + ["\n", "\r", "\r\n ", ""]),
)
LINES = st.builds(
    "{} {} {}{}".format,
    st.sampled_from(["GET", "POST", "get", "PUT", "G(T", ""]),
    st.sampled_from(["/", "/a?b#c", "*", "http://node/", "a", "/ ", "/é"]),
    st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2", "http/1.1"]),
    st.sampled_from(["\r\n", "\n", " \r\n"]),
)
REQUESTS = st.builds(
    lambda line, fields, end, behind: (line + "".join(fields) + end).encode() + behind,
    LINES,
    st.lists(FIELDS, max_size=5),
    st.sampled_from(["\r\n", "\n", ""]),
    st.binary(max_size=9),
)


@st.composite
def altered(draw: st.DrawFn) -> bytes:
    """Some bytes of a plain request are others."""
    data = bytearray(POST)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        data[start : start + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@given(data=altered() | REQUESTS)
@example(data=POST)
@example(data=POST + POST)
@example(data=POST.replace(b"Host", b"Host: a\r\nHost"))
@example(data=b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
def test_what_is_plain_means_the_same_to_h11(data: bytes) -> None:
    head = plain_head(data)
    if head is None:
        return
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
    http.receive_data(data)
    request = http.next_event()
    assert isinstance(request, h11.Request)
    assert head.headers == list(request.headers)
    assert (head.method, head.target) == (request.method, request.target)
    assert (head.version, head.behind) == (request.http_version, http.trailing_data[0])
    body = bytearray()
    while isinstance(event := http.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    length = int(dict(head.headers).get(b"content-length", 0))
    assert body == head.behind[:length]
    assert http.trailing_data[0] == head.behind[length:]


@pytest.mark.parametrize(
    ("data", "is_plain"),
    [
        (POST, True),
        (POST + b"GET /", True),
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", True),
        (POST[:-1], False),
        (POST[:60], False),
        (POST.replace(b"node:1", b"node:1" + b"1" * MAX_HEAD), False),
        (POST.replace(b"Host", b"Expect: 100-continue\r\nHost"), False),
        (POST.replace(b": 4", b": 9999999999999999"), False),
    ],
)
def test_which_heads_are_plain(data: bytes, *, is_plain: bool) -> None:
    assert (plain_head(data) is not None) is is_plain
