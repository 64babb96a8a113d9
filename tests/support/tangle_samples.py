"""A thread by four authors, with a message that its model rejects and one that comes too soon; and
messages of a classic feed."""

import base64
import json
from typing import Any

from nacl.signing import SigningKey

from recon_node.ceramic import Event, StreamId
from recon_node.ceramic.builder import init_event, model_event
from recon_node.client import ModelDefinition
from recon_node.tangles.classic_feed import signing_input

ALICE, BOB, CAROL, DAVE = KEYS = [SigningKey(bytes([n]) * 32) for n in (1, 2, 3, 4)]
TEXT = {"type": "string", "maxLength": 20}
_PROPERTIES = {"text": TEXT, "timestamp": {"type": "number"}, "tangles": {}}
DEFINITION = ModelDefinition(
    name="Message", schema={"properties": _PROPERTIES, "required": ["text"]}
).to_json()
MODEL = model_event(ALICE, DEFINITION)
THREAD = "thread"


def post(
    key: SigningKey, text: Any, root: StreamId | None, previous: list[Event], **content: Any
) -> Event:
    links = (
        {"root": None, "previous": None}
        if root is None
        else {"root": str(root), "previous": [str(document.stream_id()) for document in previous]}
    )
    data = {"text": text, "tangles": {THREAD: links}, **content}
    return init_event(key, MODEL.stream_id(), data, unique=json.dumps(text).encode())


ROOT = post(ALICE, "root", None, [])
LEFT = post(BOB, "left", ROOT.stream_id(), [ROOT], timestamp=2)
RIGHT = post(CAROL, "right", ROOT.stream_id(), [ROOT], timestamp=1)
BOTH = post(DAVE, "both", ROOT.stream_id(), [LEFT, RIGHT])
WRONG = post(BOB, 7, ROOT.stream_id(), [ROOT])
LOOSE = post(BOB, "loose", ROOT.stream_id(), [post(BOB, "absent", ROOT.stream_id(), [ROOT])])
ALL = [MODEL, ROOT, LEFT, RIGHT, BOTH, WRONG, LOOSE]


def ids(*events: Event) -> list[str]:
    """The StreamIDs of documents."""
    return [str(event.stream_id()) for event in events]


FEED_KEY = SigningKey(bytes(range(32)))
AUTHOR = f"@{base64.b64encode(bytes(FEED_KEY.verify_key)).decode()}.ed25519"
"""The author of a classic feed."""


def feed_message(
    sequence: int, previous: str | None, content: Any, **changes: Any
) -> dict[str, Any]:
    message = {
        "previous": previous,
        "author": AUTHOR,
        "sequence": sequence,
        "timestamp": 1_700_000_000_000 + sequence,
        "hash": "sha256",
        "content": content,
        **changes,
    }
    signature = FEED_KEY.sign(signing_input(message)).signature
    return {**message, "signature": base64.b64encode(signature).decode() + ".sig.ed25519"}
