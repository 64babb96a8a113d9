"""The Python client and the Ceramic SDK for JavaScript read what each other wrote, by its fields.

The SDK is as it is published on npm. It needs `node` and `npm`; the packages are those of
package-lock.json, put into node_modules here by the first run, and where the npm registry is out of
reach then, there is nothing to test with. Its codecs are strict: they refuse unknown fields, and
what they read, they must write again to the same bytes. Where RECON_TEST_CERAMIC_ONE names a binary
of ceramic-one, the client also writes to such a node and reads from it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import npm_packages
from support.waiting import equal, recon, wait_until

from benchmarks.ceramic_one_node import BINARY_VARIABLE, CeramicOneNode, binary_from_environment
from recon_node import __version__
from recon_node.ceramic import EventKind
from recon_node.client import (
    METAMODEL,
    Ceramic,
    Document,
    Key,
    ModelDefinition,
    RefusedEventError,
    Relation,
    View,
)
from recon_node.ipld import multibase
from recon_node.testnet import Testnet, TestnetNode

HERE = Path(__file__).parent
LIMIT = 150.0
"""Seconds for a run of the SDK."""
BINARY = binary_from_environment()

POST = ModelDefinition(
    name="Post",
    description="What someone has to say",
    schema={
        "properties": {
            "text": {"type": "string", "maxLength": 300},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["text"],
    },
    views={"author": View.author(), "version": View.version()},
)
PROFILE = ModelDefinition(
    name="Profile", schema={"properties": {"name": {"type": "string"}}}, account_relation="single"
)
VOTE = ModelDefinition(
    name="Vote",
    schema={"properties": {"topic": {"type": "string"}, "yes": {"type": "boolean"}}},
    account_relation="set",
    set_fields=["topic"],
    immutable_fields=["topic"],
)


@pytest.fixture(scope="module")
def pair() -> Iterator[list[TestnetNode]]:
    npm_packages.install(HERE)
    with Testnet(2, flags=("--sync-interval", "1")) as net:
        yield net.nodes


@pytest.fixture
def node(pair: list[TestnetNode]) -> TestnetNode:
    """The one on which the SDK has not registered interests."""
    return pair[1]


def sdk(*args: str) -> Any:
    """Run the application; what it says."""
    return npm_packages.node(HERE, LIMIT, "sdk.mjs", *args)


def commit_id(document: Document) -> str:
    """An event of a stream as the SDK names it: the StreamID's bytes, then the event's CID."""
    return multibase.encode(document.id.to_bytes() + document.event, "base36")


def write(ceramic: Ceramic) -> dict[str, str]:
    """What sdk.mjs writes, and models with relations and views."""
    posts = ceramic.create_model(POST)
    ceramic.update(posts.id, {**posts.content, "description": "A short text"})
    post = ceramic.create(
        posts.id,
        {"text": "first", "tags": ["a/b", "c~d"]},
        should_index=True,
        model_version=posts.event,
    )
    second = ceramic.update(post.id, {"text": "second", "tags": ["c~d"]})
    ceramic.update(post.id, {"text": "third ☃"}, should_index=False)
    profiles, votes = ceramic.create_model(PROFILE), ceramic.create_model(VOTE)
    profile = ceramic.create(profiles.id, {"name": "Ada"})
    ceramic.update(profile.id, {"name": "Ada L."})
    vote = ceramic.create(votes.id, {"topic": "tea"})
    ceramic.update(vote.id, {"topic": "tea", "yes": True})
    ceramic.create_model(
        ModelDefinition(
            name="Comment",
            schema={"properties": {"post": {"type": "string"}, "by": {"type": "string"}}},
            relations={"post": Relation.document(posts.id), "by": Relation.account()},
            views={
                "the post": View.related("post", posts.id),
                "likes": View.count_referring(votes.id, "topic"),
                "votes": View.referring(votes.id, "topic"),
                "mine": View.set_referring(votes.id, "topic"),
            },
        )
    )
    return {
        "model": str(posts.id),
        "post": str(post.id),
        "commit": commit_id(second),
        "profile": str(profile.id),
        "vote": str(vote.id),
    }


CONTENTS = {
    "post": {"text": "third ☃"},
    "profile": {"name": "Ada L."},
    "vote": {"topic": "tea", "yes": True},
}


def test_the_client_reads_and_continues_what_the_sdk_wrote(pair: list[TestnetNode]) -> None:
    """On another node, from which the SDK then reads both. The first test: no other events."""
    here, there = pair
    written = sdk("write", here.api_url)
    assert written["version"] == __version__
    key = Key.from_seed(b"\7" * 32)
    assert written["did"] == key.did
    wait_until(lambda: equal(pair))
    with Ceramic(there.api_url, key=key) as ceramic:
        documents = {name: ceramic.read(written["ids"][name]) for name in CONTENTS}
        assert {name: document.content for name, document in documents.items()} == CONTENTS
        assert documents["post"].metadata["shouldIndex"] is False
        assert [len(ceramic.events(document.id)) for document in documents.values()] == [3, 3, 2]
        assert all(
            not document.rejected and not document.open_tips for document in documents.values()
        )
        ceramic.update(documents["post"].id, {"text": "fourth"})
        same = ceramic.create(str(documents["vote"].model), {"topic": "tea", "yes": False})
        assert same.id == documents["vote"].id  # both make the same deterministic document
    wait_until(lambda: equal(pair))
    read = sdk("read", there.api_url, json.dumps(written["ids"]))
    states = read["states"]
    assert {name: state["content"] for name, state in states.items()} == {
        "post": {"text": "fourth"},
        "profile": {"name": "Ada L."},
        "vote": {"topic": "tea", "yes": False},
    }
    assert {state["metadata"]["controller"] for state in states.values()} == {written["did"]}
    metadata = states["post"]["metadata"]
    assert metadata["shouldIndex"] is False
    assert metadata["modelVersion"].startswith("b")
    assert metadata["model"] == written["ids"]["model"] == read["documentModel"]
    assert read["definition"]["description"] == "A short text"
    assert read["firstDefinition"]["description"] == "What someone has to say"
    assert {"jws", "linkedBlock"} <= set(read["signedEvent"])
    assert read["feedLength"] == recon(there)["head"]
    assert read["missing"].startswith("Failed to fetch stream state: Stream not found")


def test_the_sdk_reads_what_the_client_wrote(node: TestnetNode) -> None:
    key = Key.from_seed(b"\7" * 32)
    with Ceramic(node.api_url, key=key) as ceramic:
        ids = write(ceramic)
    states = sdk("read", node.api_url, json.dumps(ids))
    assert {name: state["content"] for name, state in states["states"].items()} == CONTENTS
    metadata = states["states"]["post"]["metadata"]
    assert (metadata["controller"], metadata["shouldIndex"]) == (key.did, False)
    assert metadata["modelVersion"].startswith("b")
    assert metadata["model"] == ids["model"] == states["documentModel"]
    assert states["definition"]["description"] == "A short text"
    assert states["firstDefinition"] == POST.to_json()


def test_the_sdk_knows_every_field_of_the_client_s_events(node: TestnetNode) -> None:
    """Whatever the kind of key: one run of the SDK looks at all."""
    keys = [Key.generate(kind) for kind in ("ed25519", "secp256k1", "p256")]
    for key in keys:
        with Ceramic(node.api_url, key=key) as ceramic:
            write(ceramic)
            events = {entry.cid: entry.event for entry in ceramic.feed(limit=10_000).entries}
    seen = sdk("inspect", node.api_url)
    for key in keys:
        mine = {
            str(cid): event
            for cid, event in events.items()
            if event is not None and event.envelope is not None and event.envelope.signer == key.did
        }
        assert len(mine) >= 12
        for cid, event in mine.items():
            assert seen[cid]["fits"], event.payload
            assert seen[cid]["signer"] == key.did
            is_init = event.kind is EventKind.INIT
            assert all(name.endswith("Init" if is_init else "Data") for name in seen[cid]["fits"])
    for state in seen.values():  # the unsigned ones, too
        assert state["fits"]


@pytest.mark.skipif(
    BINARY is None, reason=f"{BINARY_VARIABLE} does not name a binary of ceramic-one"
)
def test_the_client_works_with_a_ceramic_one_node(tmp_path: Path) -> None:
    assert BINARY is not None
    other = CeramicOneNode(BINARY, tmp_path / "one", 18)
    try:
        other.start()
        with Ceramic(other.api_url, key=Key.generate(), timeout=60) as ceramic:
            check_ceramic_one(ceramic)
    finally:
        other.kill()


def check_ceramic_one(ceramic: Ceramic) -> None:
    ceramic.register_interest(METAMODEL)
    token = ceramic.feed_token()
    ids = write(ceramic)
    ceramic.register_interest(ids["model"])
    assert {name: ceramic.read(ids[name]).content for name in CONTENTS} == CONTENTS
    seen: list[Any] = []

    def is_followed() -> bool:
        nonlocal token
        page = ceramic.feed(token)
        seen.extend(entry.cid for entry in page.entries)
        token = page.token
        return len(seen) >= 14

    wait_until(is_followed)
    post = ceramic.read(ids["post"])
    ceramic.update(post.id, {"text": "one"}, at=post.event)
    ceramic.update(post.id, {"text": "two"}, at=post.event)
    assert len(ceramic.read(post.id).open_tips) == 2
    with pytest.raises(RefusedEventError):
        ceramic.merge(post.id, {"text": "both"})
