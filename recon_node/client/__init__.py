"""A client for Ceramic: write models and documents, read streams, merge branches, follow a feed.

    from recon_node.client import Ceramic, Key, ModelDefinition

    with Ceramic("http://127.0.0.1:5101", key=Key.generate()) as ceramic:
        model = ceramic.create_model(
            ModelDefinition(name="Post", schema={"properties": {"title": {"type": "string"}}})
        )
        post = ceramic.create(model.id, {"title": "First"})
        post = ceramic.update(post.id, {"title": "Second"})

`Ceramic` blocks; `AsyncCeramic` has the same methods for asyncio and trio. Both work with nodes of
this project and with ceramic-one nodes. Events are built, checked and signed in the program: a key
never leaves it. docs/client.md is the guide. In reading order:

    clients       the two clients, which carry requests and answers
    operations    what operations are, and reading streams
    arguments     streams, events and content, as programs give them
    writing       creating and changing streams
    merges        merging streams that have diverged
    feed_entries  the feed
    lists         models, documents, interests, anchors and threads
    keys          keys and capabilities
    accounts      accounts that sign in, and let keys write for them
    definitions   the definitions of models
    codegen       Python types of their documents
"""

from recon_node.base.connection import (
    ClientError,
    InvalidArgumentError,
    NodeError,
    NotANodeError,
    NotFoundError,
    UnauthorizedError,
    UnreachableError,
)
from recon_node.ceramic import METAMODEL, Event, StreamId
from recon_node.client.accounts import (
    Account,
    Assertion,
    EthereumAccount,
    PasskeyAccount,
    SignIn,
    SolanaAccount,
)
from recon_node.client.arguments import CidRef, Document, InvalidContentError, StreamRef
from recon_node.client.clients import AsyncCeramic, Ceramic, TooMuchWorkError
from recon_node.client.definitions import AccountRelation, ModelDefinition, Relation, View
from recon_node.client.feed_entries import FeedEntry, FeedPage
from recon_node.client.keys import (
    Capability,
    CapabilityExpiredError,
    Key,
    KeyFileError,
    KeyKind,
    NoKeyError,
)
from recon_node.client.lists import (
    Anchor,
    FirstInterestWarning,
    Interest,
    ListedDocument,
    ListedModel,
    ListPage,
    Thread,
    ThreadMessage,
)
from recon_node.client.merges import MergeConflictError
from recon_node.client.operations import OutsideInterestsWarning, RefusedEventError
from recon_node.client.writing import Patch
from recon_node.ipld import CID
from recon_node.streams import Conflict, Expired, MergeProposal, json_diff

__all__ = [
    "CID",
    "METAMODEL",
    "Account",
    "AccountRelation",
    "Anchor",
    "Assertion",
    "AsyncCeramic",
    "Capability",
    "CapabilityExpiredError",
    "Ceramic",
    "CidRef",
    "ClientError",
    "Conflict",
    "Document",
    "EthereumAccount",
    "Event",
    "Expired",
    "FeedEntry",
    "FeedPage",
    "FirstInterestWarning",
    "Interest",
    "InvalidArgumentError",
    "InvalidContentError",
    "Key",
    "KeyFileError",
    "KeyKind",
    "ListPage",
    "ListedDocument",
    "ListedModel",
    "MergeConflictError",
    "MergeProposal",
    "ModelDefinition",
    "NoKeyError",
    "NodeError",
    "NotANodeError",
    "NotFoundError",
    "OutsideInterestsWarning",
    "PasskeyAccount",
    "Patch",
    "RefusedEventError",
    "Relation",
    "SignIn",
    "SolanaAccount",
    "StreamId",
    "StreamRef",
    "Thread",
    "ThreadMessage",
    "TooMuchWorkError",
    "UnauthorizedError",
    "UnreachableError",
    "View",
    "json_diff",
]
