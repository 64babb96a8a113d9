"""Every path of the API, with its operations."""

from __future__ import annotations

from typing import Final

from recon_node.api.openapi.parts import (
    ARROW,
    BODY_ERRORS,
    CAR,
    EXTENSION,
    NDJSON,
    Json,
    content,
    count,
    delete,
    done,
    get,
    in_path,
    in_query,
    ok,
    post,
    ref,
)

_WAIT = in_query(
    "wait",
    "With nothing to tell, wait so many seconds for something; 30 at most.",
    {"type": "number", "minimum": 0},
    **{EXTENSION: True},
)
_INTEREST = (
    in_query("controller", "A DID: its streams only."),
    in_query("streamId", "A stream, as multibase text: its events only. Needs `controller`."),
)
_FILTERS = (
    in_query("sortKey", "Rows of streams with this sort key only, such as `model`."),
    in_query("sortValue", "With this sort value: text; a StreamID as its base36 form, `k...`."),
    in_query("controller", "With this controller, a DID."),
    in_query("streamId", "Of this stream, as multibase text."),
)
_EVENT_VERDICTS: Final[Json] = {
    "200": {
        "description": "Of many events (+): a verdict on each line, in order; all are on disk.",
        "content": content({"type": "array", "items": ref("EventVerdict")}),
        EXTENSION: True,
    }
}


def _with_many_events(operation: Json) -> Json:
    """Take events as NDJSON, too: an extension, beside ceramic-one's form."""
    text = "EventData a line, at most 10,000; each is refused alone. Prevs come first."
    schema = {"type": "string", "description": text}
    operation["requestBody"]["content"][NDJSON] = {"schema": schema, EXTENSION: True}
    return operation


_EPOCH = in_query("epoch", "The log that the positions belong to: 410 when it is another.")

PATHS: Final[dict[str, dict[str, Json]]] = {
    "/ceramic/events": {
        "post": _with_many_events(
            post(
                "Add an event, or many",
                done("The event is here and on disk.") | _EVENT_VERDICTS,
                *BODY_ERRORS,
                body="EventData",
            )
        )
    },
    "/ceramic/events/{event_id}": {
        "get": get(
            "Read an event",
            ok("The event.", ref("Event")),
            *(400, 404),
            params=[in_path("event_id", "The event's CID; or its EventId, in any multibase.")],
        )
    },
    "/ceramic/streams/{stream_id}": {
        "get": get(
            "Read the state of a stream at its tip",
            ok("The state.", ref("StreamState")),
            *(400, 404),
            params=[in_path("stream_id", "A StreamID, as multibase text.")],
        )
    },
    "/ceramic/streams/{stream_id}/events": {
        "get": get(
            "List the events of a stream, delivered or not",
            ok("The events.", ref("StreamEvents")),
            *(400, 404),
            params=[
                in_path("stream_id", "A StreamID, as multibase text; or its init event's CID.")
            ],
            own=True,
        )
    },
    "/ceramic/feed/events": {
        "get": get(
            "Read the feed: events in the order of their delivery",
            ok("The next events.", ref("EventFeed")),
            *(400, 410),
            params=[
                in_query(
                    "resumeAt", "A resume token: events after it. Without it, from the start."
                ),
                count("limit", "Most events, 100 without it; at most 10,000."),
                in_query(
                    "includeData",
                    "Whether each event's CAR comes along.",
                    {"type": "string", "enum": ["none", "full"]},
                ),
                _WAIT,
            ],
        )
    },
    "/ceramic/feed/resumeToken": {
        "get": get(
            "Ask for the end of the feed", ok("The token of the feed's end.", ref("ResumeToken"))
        )
    },
    "/ceramic/feed/head": {
        "get": get(
            "Ask where the feed stands",
            ok("The feed's ends.", ref("FeedHead")),
            *(400,),
            params=[count("after", "What `wait` waits for: a head beyond this."), _WAIT],
            own=True,
        )
    },
    "/ceramic/feed/arrow": {
        "get": get(
            "Read a range of the feed as an Arrow IPC stream",
            ok("The rows.", {"type": "string", "format": "binary"}, ARROW),
            *(400, 410),
            params=[
                count("after", "Positions after this one; 0 without it."),
                count("upto", "Up to this one; the feed's head without it."),
                _EPOCH,
                *_FILTERS,
            ],
            own=True,
        )
    },
    "/ceramic/dag/{cid}.car": {
        "get": get(
            "Read a DAG as a CARv1, its blocks depth first",
            ok("The DAG.", {"type": "string", "format": "binary"}, CAR),
            *(400, 404),
            params=[in_path("cid", "The root.")],
            own=True,
        )
    },
    "/ceramic/dag/{cid}": {
        "get": get(
            "Ask what of a DAG is here",
            ok("What is here, and what is missing.", ref("DagState")),
            *(400,),
            params=[in_path("cid", "The root.")],
            own=True,
        )
    },
    "/ceramic/dag/publish/{did}": {
        "get": get(
            "Ask what an identifier leads to",
            ok("The DAG that was published last.", ref("DagPublication")),
            *(400,),
            params=[in_path("did", "The identifier: a did:key of an Ed25519 key.")],
            own=True,
        )
    },
    "/ceramic/dag/{cid}/contained/{replica}": {
        "get": get(
            "Ask whether the DAG that a replica describes contains a block",
            ok("Whether it does.", ref("DagContains")),
            *(400,),
            params=[in_path("cid", "The block."), in_path("replica", "The replica.")],
            own=True,
        )
    },
    "/ceramic/dag/{cid}/replicas": {
        "get": get(
            "Read the log of a DAG: its appends and joins",
            ok("Those that are here.", ref("DagReplicas")),
            *(400,),
            params=[in_path("cid", "The root.")],
            own=True,
        )
    },
    "/ceramic/interests": {
        "post": post(
            "Register an interest", done("The interest is kept."), *BODY_ERRORS, body="Interest"
        ),
        "delete": delete(
            "Remove an interest, or (`streamId` alone) all in one stream",
            params=[
                in_query("sep", "A field of the events' headers, such as `model`."),
                in_query(
                    "sepValue",
                    "Its value: multibase text for `model`, `unique`, `context` and `dag`.",
                ),
                *_INTEREST,
            ],
        ),
    },
    "/ceramic/interests/{sort_key}/{sort_value}": {
        "post": post(
            "Register an interest",
            done("The interest is kept."),
            *BODY_ERRORS,
            params=[
                in_path("sort_key", "A field of the events' headers, such as `model`."),
                in_path(
                    "sort_value",
                    "Its value: multibase text for `model`, `unique`, `context` and `dag`.",
                ),
                *_INTEREST,
            ],
        ),
        "delete": delete(
            "Remove an interest",
            params=[
                in_path("sort_key", "A field of the events' headers, such as `model`."),
                in_path(
                    "sort_value",
                    "Its value: multibase text for `model`, `unique`, `context` and `dag`.",
                ),
                *_INTEREST,
            ],
        ),
    },
    "/ceramic/experimental/interests": {
        "get": get(
            "List the interests",
            ok("This node's interests.", ref("InterestsGet")),
            *(400,),
            params=[in_query("peerId", "Only those of this peer; this node knows its own.")],
        )
    },
    "/ceramic/experimental/events/{sep}/{sep_value}": {
        "get": get(
            "Read the events of an interest that are here",
            ok("Events in the order of their keys.", ref("EventsGet")),
            *(400,),
            params=[
                in_path("sep", "A field of the events' headers, such as `model`."),
                in_path(
                    "sep_value",
                    "Its value: multibase text for `model`, `unique`, `context` and `dag`.",
                ),
                *_INTEREST,
                count("offset", "How many events to pass over: the `resumeOffset` of a page."),
                count("limit", "Most events; 10,000 without it, and at most."),
            ],
        )
    },
    "/ceramic/version": {
        "get": get("Ask for the node's version", ok("The version.", ref("Version"))),
        "post": post("Ask for the node's version", ok("The version.", ref("Version"))),
    },
    "/ceramic/liveness": {"get": get("Ask whether the node is alive", ok("It is."))},
    "/ceramic/config/network": {
        "get": get("Ask for the node's network", ok("The network.", ref("NetworkInfo")))
    },
    "/ceramic/peers": {
        "get": get("List the connected peers", ok("The peers.", ref("Peers"))),
        "post": post(
            "Connect to a peer",
            done("Connected at the first address that answered."),
            *(400,),
            params=[
                in_query(
                    "addresses",
                    "Multiaddrs of one peer, each with /p2p/ and its peer id.",
                    {"type": "array", "items": {"type": "string"}},
                    required=True,
                )
            ],
        ),
    },
    "/ceramic/recon": {
        "get": get(
            "Ask what the node holds, whom it knows and how its latest syncs went",
            ok("The state.", ref("ReconState")),
            own=True,
        )
    },
    "/metrics": {
        "get": get(
            "Read the metrics, in Prometheus' format",
            ok("The metrics.", {"type": "string"}, "text/plain"),
            own=True,
        )
    },
    "/openapi.json": {
        "get": get("Read this document", ok("OpenAPI.", {"type": "object"}), own=True)
    },
    "/docs": {
        "get": get(
            "Read this document as a page", ok("HTML.", {"type": "string"}, "text/html"), own=True
        )
    },
    "/": {
        "get": get(
            "See the node's status as a page",
            ok("HTML.", {"type": "string"}, "text/html"),
            own=True,
        )
    },
}
