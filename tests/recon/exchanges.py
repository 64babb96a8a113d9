"""The recorded sessions of tests/data/recon_exchanges.json, and the sides that hold them."""

import json
from pathlib import Path
from typing import Any

import pytest

from recon_node.recon import VERSIONS, KeyRange, KeyStore, SessionSettings, Side, Version
from recon_node.recon.session import TurnSession

DATA = Path(__file__).parents[1] / "data" / "recon_exchanges.json"
CASES = json.loads(DATA.read_text())["cases"]
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
