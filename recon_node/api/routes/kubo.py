"""What ceramic-one has of kubo's API (`/api/v0`): the node, its peers, blocks, paths into them.

The blocks are those of this node's events. Nothing is fetched from peers: an event comes by Recon,
as a whole, or not at all. Everything that the node has is kept, so pins say nothing.

js-ceramic and ComposeDB use it: they take a node for ceramic-one if its agent version says so. All
of it is POST, as kubo's is (https://docs.ipfs.tech/reference/kubo/rpc/).
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import trio
from msgspec import field
from starlette.responses import Response

from recon_node import __version__
from recon_node.api.endpoint import Answer, Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import (
    Binary,
    Body,
    FlagParameter,
    Parameters,
    Parsed,
    UnfitError,
    Whole,
    parsed_by,
    peer_id_bytes,
)
from recon_node.api.routes.node_info import connect_to_one, network_side, with_peer_id
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, IpldError, dag_cbor, dag_json
from recon_node.p2p import PeerError
from recon_node.store import Store

AGENT: Final = f"recon-node/{__version__} (speaks as ceramic-one)"
"""js-ceramic looks for "ceramic-one" in it."""
PROTOCOL_VERSION: Final = "ipfs/0.1.0"
_PEER_ID: Final = "/p2p/"


class PeerIdQuery(Parameters, frozen=True):
    """Which node."""

    arg: str | None = None
    """A connected peer's id; this node without it."""


class KuboIdBody(Body, frozen=True, rename="pascal"):
    """A node of the network."""

    peer_id: str = field(name="ID")
    """Its peer id."""
    addresses: Sequence[str]
    """The multiaddrs where it can be reached, with its peer id."""
    agent_version: str
    """Its software."""
    protocol_version: str
    """That of libp2p's identify protocol."""
    protocols: Sequence[str]
    """What it speaks."""


@endpoint("POST", "/api/v0/id", need="read", errors=(400,))
async def post_id(call: Call[PeerIdQuery]) -> KuboIdBody:
    """Get the identity of a node."""
    peers, wanted = network_side(call.services), call.parameters.arg
    if wanted is None or wanted == peers.peer_id:
        addresses, protocols = with_peer_id(peers.addresses, peers.peer_id), sorted(peers.protocols)
        return KuboIdBody(peers.peer_id, addresses, AGENT, PROTOCOL_VERSION, protocols)
    peer_id_bytes(wanted)
    try:
        identity = await peers.identify(wanted)
    except PeerError as error:
        raise kubo_error(str(error)) from None
    if identity is None:
        raise kubo_error(f"this node is not connected to peer {wanted}")
    addresses, protocols = with_peer_id(identity.addresses, identity.id), sorted(identity.protocols)
    versions = (identity.agent_version, identity.protocol_version)
    return KuboIdBody(identity.id, addresses, *versions, protocols)


class KuboVersionBody(Body, frozen=True, rename="pascal"):
    """The software of this node."""

    commit: str
    """Empty."""
    system: str
    """The machine and its system, such as x86_64/linux."""
    version: str
    """Such as 1.2.3."""


@endpoint("POST", "/api/v0/version", need="read")
async def post_kubo_version(call: Call[Parameters]) -> KuboVersionBody:
    """Get the node's version."""
    system = f"{platform.machine()}/{platform.system().lower()}"
    return KuboVersionBody(commit="", system=system, version=__version__)


class KuboPeerBody(Body, frozen=True, rename="pascal"):
    """A connected peer."""

    addr: str
    """A multiaddr where it was reached; empty if none is known."""
    peer: str
    """Its peer id."""


class KuboPeersBody(Body, frozen=True, rename="pascal"):
    """Connected peers."""

    peers: list[KuboPeerBody]
    """In the order of their ids."""


@endpoint("POST", "/api/v0/swarm/peers", need="read")
async def post_swarm_peers(call: Call[Parameters]) -> KuboPeersBody:
    """List the connected peers."""
    known = call.services.peers.peers() if call.services.peers else ()
    peers = [
        KuboPeerBody(addr=next(iter(with_peer_id(peer.addresses, peer.id)), ""), peer=peer.id)
        for peer in sorted(known, key=lambda peer: peer.id)
        if peer.connected
    ]
    return KuboPeersBody(peers=peers)


class SwarmConnectQuery(Parameters, frozen=True):
    """Where to find a peer."""

    arg: list[str]
    """Multiaddrs of one peer, at least one of them with /p2p/ and its peer id."""


class KuboStringsBody(Body, frozen=True, rename="pascal"):
    """What was done."""

    strings: list[str]
    """A line for people."""


@endpoint("POST", "/api/v0/swarm/connect")
async def post_swarm_connect(call: Call[SwarmConnectQuery]) -> KuboStringsBody:
    """Connect to a peer."""
    peers, addresses = network_side(call.services), call.parameters.arg
    named = {peer_id for address in addresses if (peer_id := address.partition(_PEER_ID)[2])}
    if not named:
        raise bad_request("the multiaddrs have no peer id: they must end with /p2p/<peer id>")
    if len(named) > 1:
        raise bad_request("the multiaddrs belong to several peers: connect to one at a time")
    [peer_id] = named
    peer_id_bytes(peer_id)
    try:
        await connect_to_one(peers, with_peer_id(addresses, peer_id), call.services.limits.connect)
    except ApiError as error:
        raise kubo_error(error.message) from None
    return KuboStringsBody(strings=[f"connect {peer_id} success"])


def kubo_error(message: str) -> ApiError:
    """An error of a handler: kubo answers 500 for what is not here, and 404 only for its paths."""
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message)


NOT_HERE: Final = "block was not found locally (offline)"
"""kubo's words, by which its clients know this error; so are the next ones."""
TOO_SLOW: Final = "context deadline exceeded"
_AS_TEXT: Final = {"content-type": "text/plain", "x-content-type-options": "nosniff"}
"""What kubo says of a block, though it is binary: without a charset."""
MAX_PATH_PARTS: Final = 256
"""Steps of a path; no block has more levels, and each may be a link to another one."""
MAX_WALKED: Final = 4 * 1024 * 1024
"""Bytes of the blocks on a path."""
_DECODED_AT_ONCE: Final = 16_384
"""Bytes of a block that is decoded without leaving the event loop: a tenth of a millisecond, or a
few where it is all containers."""

_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_GO_DURATION: Final = re.compile(r"\+?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+)", re.ASCII)
_GO_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)


def _duration(text: str) -> float:
    if len(text) > 100 or not _GO_DURATION.fullmatch(text):
        raise UnfitError("{name} should be a duration such as 1.5s, 300ms or 1m30s, not {input!r}")
    return sum(float(number) * _SECONDS[unit] for number, unit in _GO_PART.findall(text))


_CID: Final = parsed_by(CID.parse, "invalid cid: ")


@dataclass(frozen=True, slots=True)
class IpldPath:
    """A block, and a way from it to a value: `CID/key/0/key`, also with `/ipfs/` before it."""

    root: CID
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> IpldPath:
        """Read a path; raises `ApiError` 400."""
        parts = [part for part in re.split(r"[/\\]", text) if part]
        if parts and parts[0].lower() == "ipfs":
            del parts[0]
        if not parts:
            raise bad_request("path too short: it begins with a CID")
        if len(parts) > MAX_PATH_PARTS:
            raise bad_request(f"the path has more than {MAX_PATH_PARTS} parts")
        return cls(_CID.read(parts[0]), tuple(parts[1:]))


Cid = Annotated[CID, _CID]
Path = Annotated[IpldPath, Parsed(IpldPath.parse)]
Duration = Annotated[float, Parsed(_duration)]
"""Seconds, written as Go does: `1.5s`, `300ms`, `1m30s`."""


class BlockQuery(Parameters, frozen=True):
    """Which block."""

    arg: Cid
    """Its CID."""


class BlockGetQuery(BlockQuery, frozen=True):
    """Which block, and for how long to look for it."""

    timeout: Duration | None = None
    """The time to look for it, such as `1s` or `300ms`."""
    offline: FlagParameter = False
    """Must be true: no block is fetched from peers."""


class PathQuery(Parameters, frozen=True):
    """Which value."""

    arg: Path
    """A CID, and a path from its block: `CID/key/0`, or `/ipfs/CID/key/0`."""


class DagGetQuery(PathQuery, frozen=True):
    """Which value, and its form."""

    output_codec: Literal["dag-json", "dag-cbor", "dag-jose", "raw"] = field(
        default="dag-json", name="output-codec"
    )
    """dag-json or dag-cbor."""


class PinAddQuery(PathQuery, frozen=True):
    """Which block."""

    recursive: FlagParameter = False
    """Must not be true."""
    progress: FlagParameter = False
    """Must not be true."""


_BLOCK: Final = Answer("The block.", Binary, media_type="text/plain")
_VALUE: Final = Answer("The value.", Binary, media_type="application/octet-stream")


@endpoint("POST", "/api/v0/block/get", _BLOCK, need="read")
async def post_block_get(call: Call[BlockGetQuery]) -> Response:
    """Read a block."""
    query = call.parameters
    if not query.offline:
        raise bad_request("only offline mode is supported")
    with trio.move_on_after(math.inf if query.timeout is None else query.timeout):
        block = await _block(call.services.store, query.arg)
        return Response(block, headers=_AS_TEXT)
    raise kubo_error(TOO_SLOW)


class BlockStatBody(Body, frozen=True, rename="pascal"):
    """A block."""

    key: str
    """Its CID."""
    size: Whole
    """Its bytes."""


@endpoint("POST", "/api/v0/block/stat", need="read")
async def post_block_stat(call: Call[BlockQuery]) -> BlockStatBody:
    """Get the size of a block."""
    block = await _block(call.services.store, call.parameters.arg)
    return BlockStatBody(key=str(call.parameters.arg), size=len(block))


@endpoint("POST", "/api/v0/dag/get", _VALUE, need="read")
async def post_dag_get(call: Call[DagGetQuery]) -> Response:
    """Read a value in a block, or in those that it links to."""
    codec = call.parameters.output_codec
    if codec not in ("dag-json", "dag-cbor"):
        raise bad_request(f"unsupported output codec: {codec}; dag-json and dag-cbor are supported")
    node = await _resolve(call.services, call.parameters.arg)

    def render() -> Response:
        written = dag_cbor if codec == "dag-cbor" else dag_json
        return Response(written.encode(node.value), media_type="application/octet-stream")

    return await call.services.in_thread(render)


class KuboLinkBody(Body, frozen=True):
    """A link, as DAG-JSON has it."""

    cid: str = field(name="/")
    """The CID."""


class DagResolveBody(Body, frozen=True, rename="pascal"):
    """Where a path ends."""

    cid: KuboLinkBody
    """The last block on it."""
    rem_path: str
    """The rest of the path, in that block."""


@endpoint("POST", "/api/v0/dag/resolve", need="read")
async def post_dag_resolve(call: Call[PathQuery]) -> DagResolveBody:
    """Find the block in which a path ends."""
    node = await _resolve(call.services, call.parameters.arg)
    return DagResolveBody(cid=KuboLinkBody(cid=str(node.cid)), rem_path="/".join(node.rest))


class PinsBody(Body, frozen=True, rename="pascal"):
    """Blocks that are kept."""

    pins: list[str]
    """Their CIDs: one."""


@endpoint("POST", "/api/v0/pin/add")
async def post_pin_add(call: Call[PinAddQuery]) -> PinsBody:
    """Check that a block is here. Everything that is here is kept."""
    if call.parameters.recursive:
        raise bad_request("recursive pinning is not supported")
    if call.parameters.progress:
        raise bad_request("pin progress is not supported")
    node = await _resolve(call.services, call.parameters.arg)
    return PinsBody(pins=[str(node.cid)])


@endpoint("POST", "/api/v0/pin/rm")
async def post_pin_rm(call: Call[PathQuery]) -> PinsBody:
    """Do nothing. Everything that is here is kept."""
    return PinsBody(pins=[str(call.parameters.arg.root)])


@dataclass(slots=True)
class _Node:
    """A value in a block, and how to get there from the block's root."""

    cid: CID
    value: Any
    walked: int
    """The bytes of the blocks up to this one."""
    rest: tuple[str, ...] = ()


async def _resolve(services: Services, path: IpldPath) -> _Node:
    """Follow a path; raises `ApiError` 500 where it leads nowhere."""
    node = await _load(services, path.root, 0)
    for part in path.parts:
        try:
            value = _child(node.value, part)
        except (KeyError, IndexError, ValueError, TypeError):
            whole = "/".join(path.parts)
            raise kubo_error(
                f"IPLD resolve error: couldn't find part {part[:100]} in path '{whole[:500]}'"
            ) from None
        if part == "payload" and isinstance(value, bytes):  # of an envelope: bytes that are a CID
            with suppress(IpldError):
                value = CID(value)
        if isinstance(value, CID):
            node = await _load(services, value, node.walked)
        else:
            node = _Node(node.cid, value, node.walked, (*node.rest, part))
    return node


def _child(value: Any, part: str) -> Any:
    if isinstance(value, list):
        if not (part.isascii() and part.isdigit()):
            raise ValueError(part)
        return value[int(part)]
    if isinstance(value, dict):
        return value[part]
    raise TypeError(part)


async def _load(services: Services, cid: CID, walked: int) -> _Node:
    if cid.codec not in (DAG_CBOR, DAG_JOSE):
        raise kubo_error(f"unsupported codec {cid.codec:#x}: {cid}")
    block = await _block(services.store, cid)
    walked += len(block)
    if walked > MAX_WALKED:
        raise kubo_error(f"the blocks on the path have more than {MAX_WALKED} bytes")
    if len(block) <= _DECODED_AT_ONCE:
        return _Node(cid, dag_cbor.decode(block), walked)
    return _Node(cid, await services.in_long_thread(partial(dag_cbor.decode, block)), walked)


async def _block(store: Store, cid: CID) -> bytes:
    """A block; raises `ApiError` 500 when it is not here, with the words that clients expect."""
    block = await store.reader.block(cid)
    if block is None:
        raise kubo_error(NOT_HERE)
    return block
