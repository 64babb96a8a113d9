"""The shapes of the API's bodies, as JSON Schema; see `recon_node.api.openapi`."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


def _whole(description: str) -> Json:
    return {"type": "integer", "minimum": 0, "description": description}


def _seconds(description: str, *, absent: bool = False) -> Json:
    return {"type": ["number", "null"] if absent else "number", "description": description}


def _list(items: Json, description: str) -> Json:
    return {"type": "array", "items": items, "description": description}


def _each(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(title: str, properties: Json, optional: tuple[str, ...] = ()) -> Json:
    required = [name for name in properties if name not in optional]
    return {"title": title, "type": "object", "required": required, "properties": properties}


_INTEREST: Final[Json] = {
    "sep": _text("The sort key."),
    "sepValue": _text("The sort value; a StreamID as its base36 form."),
    "controller": _text("A DID."),
    "streamId": _text("A StreamID."),
    "configured": {
        "type": "boolean",
        "description": "(+) Whether it comes from the node's settings, and cannot be removed.",
    },
}
_PARTS: Final = ("controller", "streamId")

SCHEMAS: Final[Json] = {
    "ErrorResponse": _object(
        "What was wrong", {"message": _text("What was wrong and what to do, for people.")}
    ),
    "EventData": _object("An event to add", {"data": _text("The event's CAR, as multibase text.")}),
    "EventVerdict": _object(
        "What became of one event of many",
        {
            "status": {"type": "string", "enum": ["new", "known", "refused"]},
            "id": _text("The CID of the event's root block, unless it was refused."),
            "reason": _text("Why it was refused."),
        },
        optional=("id", "reason"),
    ),
    "Event": _object(
        "An event",
        {
            "id": _text("The CID of the event's root block."),
            "data": _text("The event's CAR, as multibase text."),
        },
        optional=("data",),
    ),
    "EventFeed": _object(
        "A page of the feed",
        {
            "events": _list(_each("Event"), "In the order of their delivery."),
            "resumeToken": _text("Where to go on: the position of the last event, as text."),
        },
    ),
    "ResumeToken": _object("The feed's end", {"resumeToken": _text("Its last position, as text.")}),
    "FeedHead": _object(
        "Where the feed stands",
        {
            "epoch": _text("The log's UUID. Positions of another log mean nothing in this one."),
            "low": _whole("The feed holds the positions after this one: 0, since it keeps all."),
            "head": _whole("The feed's last position."),
        },
    ),
    "DagState": _object(
        "What of a DAG is here",
        {
            "root": _text("The CID of its root."),
            "complete": {"type": "boolean", "description": "Whether all is here that it links to."},
            "blocks": _whole("Those here that the root leads to."),
            "bytes": _whole("Of these blocks."),
            "missing_blocks": _each("Lacking"),
            "shards": _list(_text("A CID."), "Those here that a replica names."),
            "unclaimed": _list(_text("A CID."), "Those here that no replica names."),
            "missing_shards": _each("Lacking"),
            "missing_replicas": _each("Lacking"),
            "heads": _list(_text("A CID."), "The replicas that no other one continues."),
            "head": {
                "oneOf": [{"type": "null"}, _each("DagHead")],
                "description": "The replica that has the shards of all heads: their join, which "
                "need not be here. null: no replica is here with its whole history.",
            },
            "ignored": _whole("Events about the DAG that bring nothing that holds."),
        },
    ),
    "DagHead": _object(
        "A replica", {"cid": _text("Its CID."), "data": _text("Its block, as multibase text.")}
    ),
    "DagReplicas": _object(
        "The log of a DAG",
        {
            "root": _text("The CID of its root."),
            "replicas": _list(_each("DagHead"), "In the order of their binary CIDs."),
        },
    ),
    "Lacking": _object(
        "What is not here",
        {"count": _whole("How many."), "first": _list(_text("A CID."), "At most 100 of them.")},
    ),
    "DagPublication": _object(
        "What an identifier leads to",
        {
            "id": _text("The identifier."),
            "link": {
                "type": ["string", "null"],
                "description": "The CID of the DAG's root. null: nothing was published, or it is "
                "not yet known to be contained by its origin.",
            },
            "origin": {"type": ["string", "null"], "description": "The replica that describes it."},
            "pending": {
                "oneOf": [{"type": "null"}, _each("DagPending")],
                "description": "A later publish than that of `link`, which counts as soon as it is "
                "known that its origin contains its link.",
            },
            "order": _list(
                _text("A CID."),
                "The permitted publishes in their order. The last one whose origin contains its "
                "link counts.",
            ),
            "waiting_for": _list(
                _text("A CID."),
                "What is not here: publishes that others continue, and replicas and shards of the "
                "pending one's origin.",
            ),
            "refused": _list(
                _object(
                    "A publish that is not permitted, or whose origin does not contain its link",
                    {"cid": _text("Its CID."), "reason": _text("Why, for people.")},
                ),
                "At most 100 of them.",
            ),
            "ignored": _whole("Events about the identifier that bring no publish of it."),
        },
    ),
    "DagPending": _object(
        "A publish of which it is not known whether its origin contains its link",
        {"link": _text("The CID of the DAG's root."), "origin": _text("The replica.")},
    ),
    "DagContains": _object(
        "Whether a replica contains a block",
        {
            "contains": {
                "type": ["boolean", "null"],
                "description": "null: it cannot be told, for something is not here.",
            },
            "waiting_for": _list(_text("A CID."), "Replicas and shards that are not here."),
        },
    ),
    "EventsGet": _object(
        "Events of an interest",
        {
            "events": _list(_each("Event"), "In the order of their keys."),
            "resumeOffset": _whole("Where to go on, for the same parameters."),
            "isComplete": {"type": "boolean", "description": "Whether there are no more."},
        },
    ),
    "Interest": _object(
        "An interest",
        {
            "sep": _text("The sort key: a field of the events' headers, such as `model`."),
            "sepValue": _text("Its value: a StreamID, other bytes in base36, or text as it is."),
            "controller": {"type": ["string", "null"], "description": "A DID."},
            "streamId": {
                "type": ["string", "null"],
                "description": "A StreamID, as multibase text. Needs the other fields, or (+), of "
                "a stream that is here, none of them.",
            },
        },
        optional=("sep", "sepValue", "controller", "streamId"),
    ),
    "NodeInterest": _object("An interest of this node", _INTEREST, optional=_PARTS),
    "InterestsGet": _object(
        "Interests",
        {
            "interests": _list(
                _object(
                    "An interest",
                    {"data": _text("ceramic-one's bytes of it, as multibase text.")} | _INTEREST,
                    optional=_PARTS,
                ),
                "None: the node wants everything of its network.",
            )
        },
    ),
    "StreamState": _object(
        "The state of a stream",
        {
            "id": _text("The StreamID."),
            "event_cid": _text(
                "The CID of the tip of the accepted events: what the next event names as its prev."
            ),
            "controller": _text("The DID that the stream belongs to."),
            "dimensions": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "model, controller, context and unique, each as multibase text.",
            },
            "data": _text("Multibase text of the JSON {metadata, content}."),
            "validation_errors": _list(
                _object(
                    "An event that was rejected",
                    {
                        "event_cid": _text("The event's CID."),
                        "errors": _list(_text("A reason."), "Why, for people."),
                    },
                ),
                "Events of the stream that were rejected and changed nothing; the latest 100.",
            ),
        },
    ),
    "StreamEvents": _object(
        "The events of a stream",
        {
            "id": _text("The StreamID."),
            "init": _text("The CID of its init event."),
            "events": _list(
                _each("StreamEvent"), "The delivered ones in feed order, then the others."
            ),
        },
    ),
    "StreamEvent": _object(
        "An event of a stream",
        {
            "cid": _text("The event's CID."),
            "kind": {"type": "string", "enum": ["init", "data", "time"]},
            "prev": _list(_text("A CID."), "The events that it builds on."),
            "height": _whole("As in its EventId: 0 for the init event."),
            "state": {
                "type": "string",
                "enum": ["delivered", "pending", "waiting"],
                "description": "pending: the lookup of an anchor is to come, its own or of what it "
                "builds on; waiting: an event that it builds on is not here.",
            },
            "position": {"type": ["integer", "null"], "description": "In the feed."},
            "time": {
                "type": ["integer", "null"],
                "description": "Of a time event: Unix seconds of its anchor's block.",
            },
            "chain_id": {
                "type": ["string", "null"],
                "description": "Of a time event: its anchor's chain (CAIP-2).",
            },
            "expires": {
                "type": ["integer", "null"],
                "description": "Until when the capability that it is signed by holds, in Unix "
                "seconds.",
            },
        },
    ),
    "Version": _object("A version", {"version": _text("Such as 1.2.3.")}),
    "NetworkInfo": _object("A network", {"name": _text("Such as testnet-clay.")}),
    "Peer": _object(
        "A connected peer",
        {
            "id": _text("The did:key of its peer id; the peer id itself if that hides its key."),
            "addresses": _list(_text("A multiaddr, with the peer id."), "Where it was reached."),
        },
    ),
    "Peers": _object("Connected peers", {"peers": _list(_each("Peer"), "The peers.")}),
    "KnownPeer": _object(
        "A peer that the node knows",
        {
            "id": _text("The peer id."),
            "addresses": _list(_text("A multiaddr."), "Where it was reached, or is said to be."),
            "connected": {"type": "boolean"},
            "latency": _seconds("Round trip time.", absent=True),
            "last_sync": _seconds("Unix time of the last sync that went well.", absent=True),
            "failures": _whole("Syncs and dials that failed since one went well."),
        },
    ),
    "SyncReport": _object(
        "How a sync went",
        {
            "peer": _text("The peer id."),
            "role": _text("initiator or responder."),
            "protocol": _text("Which version of Recon."),
            "rounds": _whole("Messages received."),
            "bytes_sent": _whole("Of Recon's frames."),
            "bytes_received": _whole("Of Recon's frames."),
            "event_bytes_sent": _whole("Of CARs."),
            "event_bytes_received": _whole("Of CARs."),
            "keys_received": _whole("Keys that were not here."),
            "events_received": _whole("Events that are here now."),
            "events_sent": _whole("Events that the peer fetched."),
            "keys_left_out": _whole("Keys of the peer whose events were missing or refused."),
            "keys_left_out_by_peer": _whole("Keys of this node that the peer left out likewise."),
            "seconds": _seconds("How long it took."),
            "outcome": _text("agreed, agreed but for keys left out, or what went wrong."),
            "finished_at": _seconds("Unix time."),
        },
    ),
    "ReconState": _object(
        "What a node holds",
        {
            "network": _text("The network's name."),
            "events": _whole("Events held."),
            "waiting": _whole("Those of them whose history is not complete here."),
            "pending": _whole("Those of them that wait for the lookup of an anchor."),
            "pending_proofs": _whole("The lookups that they wait for."),
            "damaged": _whole("Events found damaged in the log and not mended yet."),
            "head": _whole("The feed's last position."),
            "epoch": _text("The log's UUID."),
            "sha256a": _text("The sum of the hashes of all keys: the same for the same events."),
            "interests": _list(
                _each("NodeInterest"), "None: the node wants everything of its network."
            ),
            "peer_id": _text("The node's peer id."),
            "addresses": _list(_text("A multiaddr."), "Where peers can reach it."),
            "peers": _list(_each("KnownPeer"), "Every peer that it knows."),
            "syncs": _list(_each("SyncReport"), "The latest syncs, the oldest first."),
            "transfers": _list(
                _each("SyncReport"), "The latest syncs that moved events, the oldest first."
            ),
        },
        optional=("peer_id", "addresses", "peers"),
    ),
}
