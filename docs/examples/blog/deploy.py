"""The models of the blog: what its documents look like. Their author deploys them once.

    python deploy.py author.key                  # creates the models, and prints their ids
    recon-node model codegen ID ... --out blog_models.py

With the same key, a definition gets the same id on every node: to deploy it again changes nothing.
With another key it makes another model, whose documents the blog does not see.
"""

import os
import sys

from recon_node.client import Ceramic, Key, ModelDefinition, Relation, StreamId

TEXT = {"type": "string", "maxLength": 10_000}
LINK = {
    "type": "object",
    "properties": {
        "root": {"type": ["string", "null"]},
        "previous": {"type": ["array", "null"], "items": {"type": "string"}},
    },
    "required": ["root", "previous"],
    "additionalProperties": False,
}
THREAD = {
    "type": "object",
    "properties": {"comments": {"$ref": "#/$defs/Link"}},
    "required": ["comments"],
    "additionalProperties": False,
}


def deploy(ceramic: Ceramic) -> list[StreamId]:
    """Create the models. With the same key, they get the same StreamIDs on every node."""
    profile = ceramic.create_model(
        ModelDefinition(
            name="Profile",
            schema={"properties": {"name": TEXT, "about": TEXT}, "required": ["name"]},
            account_relation="single",
        )
    )
    post = ceramic.create_model(
        ModelDefinition(
            name="Post",
            description="What an author has to say, with the comments on it",
            schema={
                "properties": {
                    "title": {"type": "string", "maxLength": 200},
                    "text": TEXT,
                    "tags": {"type": "array", "items": {"enum": ["news", "howto", "opinion"]}},
                    "profile": {"type": "string"},
                    "tangles": THREAD,
                },
                "required": ["title", "text", "tangles"],
                "$defs": {"Link": LINK},
            },
            relations={"profile": Relation.document(profile.id)},
        )
    )
    comment = ceramic.create_model(
        ModelDefinition(
            name="Comment",
            schema={
                "properties": {"text": TEXT, "post": {"type": "string"}, "tangles": THREAD},
                "required": ["text", "post", "tangles"],
                "$defs": {"Link": LINK},
            },
            relations={"post": Relation.document(post.id)},
        )
    )
    return [profile.id, post.id, comment.id]


if __name__ == "__main__":
    [key_file] = sys.argv[1:] or sys.exit("usage: deploy.py KEY_FILE")
    url = os.environ.get("RECON_NODE_URL", "http://127.0.0.1:5101")
    with Ceramic(url, key=Key.load(key_file)) as client:
        print(*deploy(client))
