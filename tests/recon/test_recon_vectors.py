"""Complete sessions, byte for byte, as docs/wire.md gives them to other implementations."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from exchanges import CASES, every_protocol, from_hex, session_of

from recon_node.recon import Failed, Fetch, FetchById, KeyStore, Version, id_of, turn_of

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
