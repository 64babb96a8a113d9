"""Complete sessions, byte for byte, as docs/wire.md gives them to other implementations."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recon_node.recon import (
    VERSIONS,
    Failed,
    Fetch,
    FetchById,
    KeyRange,
    KeyStore,
    SessionSettings,
    Side,
    Version,
    id_of,
    turn_of,
)

TESTS = Path(__file__).parents[1]
CASES = json.loads((TESTS / "data" / "recon_exchanges.json").read_text())["cases"]
DOC = (TESTS.parent / "docs" / "wire.md").read_text()
every_case = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
every_protocol = pytest.mark.parametrize("protocol", VERSIONS, ids=lambda each: each.id[-5:])


def from_hex(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def fetched(
    store: KeyStore, theirs: dict[bytes, bytes], refused: list[bytes], action: Fetch | FetchById
) -> Failed:
    by_id = isinstance(action, FetchById)
    keys = [theirs[each] for each in action.missing.ids] if by_id else action.keys
    store.load(key for key in keys if key not in refused)
    return Failed([key for key in keys if key in refused])


@every_case
@every_protocol
def test_a_session_says_exactly_these_bytes(case: dict[str, Any], protocol: Version) -> None:
    ours, theirs = (KeyStore(from_hex(case[side]["keys"])) for side in ("initiator", "responder"))
    settings = SessionSettings(**case["settings"])
    asked = KeyRange(*from_hex(case["initiator"]["asks"]))
    interests = [KeyRange(*from_hex(each)) for each in case["responder"]["interests"]]
    asking = protocol.session(Side.initiator(ours, asked, settings))
    answering = protocol.session(Side.responder(theirs, interests, settings))
    sides = [("responder", answering, theirs), ("initiator", asking, ours)]
    sender, turn = "initiator", turn_of(asking.start())
    refused = {side: from_hex(case[side].get("refuses", [])) for side in ("initiator", "responder")}
    said: list[dict[str, str]] = []
    while turn:
        answer: list[Any] = []
        name, session, store = sides[0]
        sides.reverse()
        for message in turn:
            raw = protocol.encode(message)
            said.append({"from": sender, "message": raw.hex()})
            assert protocol.encode(protocol.decode(raw)) == raw
            if session.side.done:  # 1.0.0: it has said its last word, and reads no more
                continue
            fetch = partial(fetched, store, {id_of(key): key for key in sides[0][2]}, refused[name])
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
