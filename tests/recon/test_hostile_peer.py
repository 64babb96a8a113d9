"""Whatever bytes a peer sends, and whenever, a session raises RemoteProtocolError at most."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import damaged

from recon_node.recon import (
    VERSIONS,
    KeyRange,
    KeyStore,
    RemoteProtocolError,
    SessionSettings,
    Side,
    Version,
)
from recon_node.recon.session import Failed, Fetch, FetchById, TurnSession, turn_of

DATA = Path(__file__).parents[1] / "data" / "recon_exchanges.json"
CASES = json.loads(DATA.read_text())["cases"]
every_protocol = pytest.mark.parametrize("protocol", VERSIONS, ids=lambda each: each.id[-5:])


def from_hex(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def said_in(protocol: Version) -> list[bytes]:
    """All messages of the recorded sessions."""
    return [
        bytes.fromhex(each["message"]) for case in CASES for each in case["exchanges"][protocol.id]
    ]


def side_of(case: dict[str, Any], protocol: Version, *, initiates: bool) -> TurnSession[Any]:
    store = KeyStore(from_hex(case["initiator" if initiates else "responder"]["keys"]))
    settings = SessionSettings(**case["settings"])
    if initiates:
        return protocol.session(
            Side.initiator(store, KeyRange(*from_hex(case["initiator"]["asks"])), settings)
        )
    interests = [KeyRange(*from_hex(each)) for each in case["responder"]["interests"]]
    return protocol.session(Side.responder(store, interests, settings))


@st.composite
def hostile(draw: st.DrawFn, protocol: Version) -> list[bytes]:
    """Messages of real sessions in any order, some of them damaged, some of them only noise."""
    message = st.sampled_from(said_in(protocol))
    return draw(st.lists(message | message.flatmap(damaged) | st.binary(max_size=40), max_size=12))


@every_protocol
@given(data=st.data())
def test_a_peer_can_only_break_its_own_side(protocol: Version, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    initiates, by_id = data.draw(st.booleans()), data.draw(st.booleans())
    session = side_of(case, protocol, initiates=initiates)

    def fetch(action: Fetch | FetchById) -> Failed | None:
        if isinstance(action, FetchById):
            return Failed(ids=action.missing.ids[::2]) if by_id else None
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
