"""The bytes of answers, as h11 understands them on the client's side."""

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.api.server import AnswerWriter

PARTS = st.lists(st.binary(max_size=300), min_size=1, max_size=5)


@given(
    status=st.sampled_from([200, 204, 304, 404, 503]),
    parts=PARTS,
    method=st.sampled_from(["GET", "HEAD", "POST"]),
    is_old=st.booleans(),
    keeps_alive=st.booleans(),
    says_close=st.booleans(),
    is_declared=st.booleans(),
)
def test_a_client_reads_what_was_answered_and_knows_whether_the_connection_stays(
    status, parts, method, is_old, keeps_alive, says_close, is_declared
):
    content = b"".join(parts)
    is_bodiless = status in (204, 304) or method == "HEAD"
    headers = [(b"x-name", b"a value")]
    if is_declared and status != 204:
        headers.append((b"content-length", b"%d" % len(content)))
    if says_close:
        headers.append((b"connection", b"close"))
    answer = AnswerWriter(is_head=method == "HEAD", is_old=is_old, keeps_alive=keeps_alive)
    sent = answer.head(status, headers)
    for at, part in enumerate(parts, 1):
        assert not answer.is_complete
        sent += answer.body(part, is_last=at == len(parts))
    assert answer.is_complete
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", "node")]))
    client.send(h11.EndOfMessage())
    client.receive_data(sent)
    if not answer.keeps_alive:
        client.receive_data(b"")
    head = client.next_event()
    assert isinstance(head, h11.Response)
    assert head.status_code == status
    assert (b"x-name", b"a value") in head.headers
    body = bytearray()
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert bytes(body) == (b"" if is_bodiless else content)
    assert (client.their_state is h11.DONE) is answer.keeps_alive
    assert not client.trailing_data[0]
    assert not (answer.keeps_alive and (is_old or says_close or not keeps_alive))


@pytest.mark.parametrize("value", [b"x\r\nset-cookie: a=b", b"x\n", b"x\r", b"x\0"])
def test_a_header_cannot_become_two(value: bytes) -> None:
    with pytest.raises(ValueError, match="line break"):
        AnswerWriter().head(200, [(b"x-name", value)])


@pytest.mark.parametrize("body", [b"12", b"1234"])
def test_a_body_has_the_length_in_its_head(body: bytes) -> None:
    answer = AnswerWriter(keeps_alive=True)
    answer.head(200, [(b"content-length", b"3")])
    with pytest.raises(ValueError, match="length"):
        answer.body(body, is_last=True)
    assert not answer.is_complete, "the connection ends"
