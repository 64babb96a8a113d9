"""Complete sessions, byte for byte, as docs/wire.md gives them to other implementations; and that
any bytes make a session raise RemoteProtocolError at most.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import damaged
from support import vectors

from recon_node.recon import (
    VERSIONS,
    Failed,
    Fetch,
    FetchById,
    KeyRange,
    KeyStore,
    RemoteProtocolError,
    SessionSettings,
    Side,
    Version,
    id_of,
    turn_of,
)
from recon_node.recon.session import TurnSession

CASES = vectors.load("recon_exchanges")["cases"]
every_protocol = pytest.mark.parametrize("protocol", VERSIONS, ids=lambda version: version.id[-5:])


def from_hex(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def session_of(case: dict[str, Any], protocol: Version, name: str) -> TurnSession[Any]:
    """Return the session of the initiator or of the responder, with its keys."""
    store = KeyStore(from_hex(case[name]["keys"]))
    settings = SessionSettings(**case["settings"])
    if name == "initiator":
        asked = KeyRange(*from_hex(case[name]["asks"]))
        return protocol.session(Side.initiator(store, asked, settings))
    interests = [KeyRange(*from_hex(interest)) for interest in case[name]["interests"]]
    return protocol.session(Side.responder(store, interests, settings))


DOC = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
every_case = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])


def fetched(
    store: KeyStore, theirs: dict[bytes, bytes], refused: list[bytes], action: Fetch | FetchById
) -> Failed:
    by_id = isinstance(action, FetchById)
    keys = [theirs[id_] for id_ in action.sought.ids] if by_id else action.keys
    store.load(key for key in keys if key not in refused)
    return Failed([key for key in keys if key in refused])


@every_case
@every_protocol
def test_a_session_says_exactly_these_bytes(case: dict[str, Any], protocol: Version) -> None:
    names = ("initiator", "responder")
    asking, answering = sessions = [session_of(case, protocol, name) for name in names]
    sender, turn = "initiator", turn_of(asking.start())
    refused = {side: from_hex(case[side].get("refuses", [])) for side in names}
    said: list[dict[str, str]] = []
    while turn:
        answer: list[Any] = []
        name = names[sender == "initiator"]
        session, other = sessions[sender == "initiator"], sessions[sender != "initiator"]
        for message in turn:
            raw = protocol.encode(message)
            said.append({"from": sender, "message": raw.hex()})
            assert protocol.encode(protocol.decode(raw)) == raw
            if session.side.done:  # 1.0.0: it has said its last word, and reads no more
                continue
            by_id = {id_of(key): key for key in other.side.keys}
            fetch = partial(fetched, session.side.keys, by_id, refused[name])
            answer = turn_of(session.receive(protocol.decode(raw)), fetch)
        sender, turn = name, answer
    assert said == case["exchanges"][protocol.id]
    assert asking.side.done
    assert answering.side.done
    assert asking.side.left_out == answering.side.left_out_by_peer == len(refused["initiator"])
    assert answering.side.left_out == asking.side.left_out_by_peer == len(refused["responder"])


def test_the_document_shows_the_bytes_of_the_data() -> None:
    shown = re.findall(r"^\*\*(.+?)\*\*, (\S+)\. .*\n\n((?: {4}.*\n)+)", DOC, re.MULTILINE)
    by_name = {case["name"]: case for case in CASES}
    assert len(shown) == 7
    for name, version, block in shown:
        exchange = by_name[name]["exchanges"][f"/ceramic/recon/{version}"]
        said = re.findall(r"^ {4}(\w+):\n((?: {8}\w+\n)+)", block, re.MULTILINE)
        assert [
            {"from": sender, "message": "".join(lines.split())} for sender, lines in said
        ] == exchange


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
