"""Values of the tables for people, and for JSON."""

import json
from typing import Any

from recon_node.ceramic import StreamId, StreamIdError
from recon_node.ipld import CID, CidError


def show(value: Any) -> Any:
    """A value for people and for JSON: CIDs and JSON as what they are, other bytes as hex."""
    if isinstance(value, bytes):
        return _show_bytes(value)
    if isinstance(value, list | tuple):  # a tuple is an entry of a map
        return [show(item) for item in value]
    if isinstance(value, dict):
        return {name: show(item) for name, item in value.items()}
    return value


def _show_bytes(value: bytes) -> Any:
    try:
        return str(CID(value))
    except CidError:
        pass
    try:
        return str(StreamId.from_bytes(value))
    except StreamIdError:
        pass
    if value.startswith(b"{"):
        try:
            return json.loads(value)
        except ValueError:
            pass
    return "0x" + value.hex()
