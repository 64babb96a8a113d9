"""Whatever bytes a peer sends, and whenever, a session raises RemoteProtocolError at most."""

from exchanges import CASES, every_protocol, session_of
from hypothesis import given
from hypothesis import strategies as st
from peers import damaged

from recon_node.recon import RemoteProtocolError, Version
from recon_node.recon.actions import Failed, Fetch, FetchById, turn_of


@st.composite
def hostile(draw: st.DrawFn, protocol: Version) -> list[bytes]:
    """Messages of real sessions in any order, some of them damaged, some of them only noise."""
    every = [
        bytes.fromhex(exchange["message"])
        for case in CASES
        for exchange in case["exchanges"][protocol.id]
    ]
    message = st.sampled_from(every)
    return draw(st.lists(message | message.flatmap(damaged) | st.binary(max_size=40), max_size=12))


@every_protocol
@given(data=st.data())
def test_a_peer_can_only_break_its_own_side(protocol: Version, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    initiates, by_id = data.draw(st.booleans()), data.draw(st.booleans())
    session = session_of(case, protocol, "initiator" if initiates else "responder")

    def fetch(action: Fetch | FetchById) -> Failed | None:
        if isinstance(action, FetchById):
            return Failed(ids=action.sought.ids[::2]) if by_id else None
        for key in action.keys[1::2]:
            session.side.keys.add(key)
        return Failed(action.keys[::2])

    if initiates:
        protocol.encode(*turn_of(session.start()))
    try:
        for raw in data.draw(hostile(protocol)):
            for answer in turn_of(session.receive(protocol.decode(raw)), fetch):
                protocol.encode(answer)
    except RemoteProtocolError:
        return
