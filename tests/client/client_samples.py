"""A key, and models."""

from __future__ import annotations

from recon_node.client import Key, ModelDefinition, Relation, View

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
    name="Profile",
    schema={"properties": {"name": {"type": "string"}}},
    account_relation="single",
)
VOTE = ModelDefinition(
    name="Vote",
    schema={"properties": {"post": {"type": "string"}, "yes": {"type": "boolean"}}},
    account_relation="set",
    set_fields=["post"],
    relations={"post": Relation.document()},
)
