"""A key, and models."""

from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest

from recon_node.client import Key, ModelDefinition, Relation, SignIn, View


def issued(request: SignIn[str], start: float, end: float) -> SignIn[str]:
    """What is asked for, as it was asked from one time to another, in Unix seconds."""
    payload, text = dict(request.fields["p"]), request.message
    for name, time in (("iat", start), ("exp", end)):
        at = datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")
        text = text.replace(payload[name], at)
        payload[name] = at
    return replace(request, message=text, fields={**request.fields, "p": payload})


OWN_NODE = pytest.mark.parametrize("ceramic", [httpx.ASGITransport], indirect=True)
"""For what a client does without the node, or the same with any."""
KEY = Key.from_seed(bytes(32))
POST = ModelDefinition(
    name="Post",
    schema={
        "properties": {
            "title": {"type": "string", "maxLength": 20},
            "tags": {"type": "array", "items": {"type": "string"}},
            "stars": {"type": "integer"},
        }
    },
    views={"author": View.author(), "version": View.version()},
)
PROFILE = ModelDefinition(
    name="Profile", schema={"properties": {"name": {"type": "string"}}}, account_relation="single"
)
VOTE = ModelDefinition(
    name="Vote",
    schema={"properties": {"post": {"type": "string"}, "yes": {"type": "boolean"}}},
    account_relation="set",
    set_fields=["post"],
    relations={"post": Relation.document()},
)
