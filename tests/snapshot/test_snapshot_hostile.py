"""Stores and snapshots made to do harm: each is named in the error, and nothing wrong gets in."""

import itertools
import socket
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import trio
from nacl.signing import SigningKey
from snapshot_support import KEY, NETWORK, create, events, make_log, sync, web
from support import vectors
from support.web_server import serving

from recon_node.api.routes.products.snapshots import describe_sync
from recon_node.ceramic import Network, network_range
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, RAW, car, dag_cbor, encode_varint
from recon_node.recon import KeyRange, Sha256a
from recon_node.recon.keys.sha256a import spread
from recon_node.snapshot import snapshot_reader
from recon_node.snapshot import web as web_module
from recon_node.snapshot.objects import (
    MAX_WHOLE,
    Faults,
    ObjectError,
    Objects,
    SnapshotError,
    SnapshotFault,
    UnavailableError,
)
from recon_node.snapshot.packs import PackExtent, PackReader, encode_locator, located, pack_name
from recon_node.snapshot.root import (
    LATEST,
    RootError,
    RootObject,
    SnapshotManifest,
    decode_root,
    encode_root,
)
from recon_node.snapshot.snapshot_reader import SnapshotReader, read_root
from recon_node.snapshot.tree.build import build
from recon_node.snapshot.tree.nodes import (
    LOWEST,
    InnerNode,
    LeafNode,
    Link,
    NodeFormatError,
    Root,
    node_cid,
    pack,
    unpack,
)
from recon_node.snapshot.tree.update import Branch, whole
from recon_node.snapshot.upkeep import verify_snapshot
from recon_node.snapshot.web import WebServer

EVENTS = 100


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("log")
    make_log(data_dir, events(EVENTS, seed=30))
    return data_dir


@pytest.fixture(autouse=True)
def _no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recon_node.snapshot.objects.RETRIES", 0)


@pytest.fixture(scope="module")
def store(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a snapshot of the log."""
    directory = tmp_path_factory.mktemp("store")
    create(log, Objects.open(str(directory)))
    return directory


@pytest.fixture
def kept(log: Path) -> tuple[Objects, RootObject]:
    """A snapshot in memory."""
    objects = Objects.open("memory://")
    return objects, create(log, objects).root


@pytest.mark.parametrize(
    ("misdeed", "reason"),
    [("no ranges", "cannot be read"), ("cut off", "cannot be read"), ("other bytes", "damaged")],
)
def test_a_server_that_harms_packs(store: Path, tmp_path: Path, misdeed: str, reason: str) -> None:
    with web(store, misdeed, "packs/") as url:
        report, count = sync(tmp_path / "node", url)
    assert count == 0
    faults = " ".join(map(str, [*report.synced.faults, report.sources[0].error]))
    assert reason in faults
    assert url in faults


@pytest.mark.parametrize("only", [LATEST, "packs/"])
def test_no_fault_shows_a_password(store: Path, tmp_path: Path, only: str) -> None:
    with web(store, "other bytes", only) as url:
        report, _ = sync(tmp_path / "node", url.replace("//", "//user:s3cret@"))
    assert report.has_failed
    assert "//***@127.0.0.1" in str(describe_sync(report))
    assert "s3cret" not in f"{report} {describe_sync(report)}"


@pytest.mark.parametrize("misdeed", ["endless", "redirects", "other bytes"])
def test_a_server_that_harms_the_root(store: Path, tmp_path: Path, misdeed: str) -> None:
    with web(store, misdeed, LATEST) as url:
        report, count = sync(tmp_path / "node", url)
    assert count == 0
    assert report.synced.counts == {}
    assert LATEST in str(report.sources[0].error)
    assert url in str(report.sources[0].error)
    assert report.sources[0].received < MAX_WHOLE + 64 * 1024 * 1024


WHOLE, CHUNKS = bytes(1 << 20), b"1\r\n \r\n" * 10_000


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        ("400 Bad Request", WHOLE),
        ("400 Bad Request", CHUNKS),
        ("302 Found\r\nLocation: /elsewhere", WHOLE),
        ("200 OK\r\nContent-Encoding: gzip", CHUNKS),
        ("206 Partial Content\r\nContent-Range: bytes 7-8/9", WHOLE),
    ],
)
def test_an_answer_of_any_kind_is_not_read_without_end(head: str, piece: bytes) -> None:
    """The body of an error was kept in memory, 70 MB of it a second."""
    sent, most = 0, 64 << 20
    coding = "Transfer-Encoding: chunked" if piece[0] else "Content-Length: 99999999999"

    def reply(handler: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        sent = 0
        handler.wfile.write(f"HTTP/1.1 {head}\r\n{coding}\r\n\r\n".encode())
        while sent < most:
            handler.wfile.write(piece)
            sent += len(piece)

    with serving(reply) as url:
        objects = Objects.open(url)
        with pytest.raises(ObjectError):
            objects.get("a")
        with pytest.raises(ObjectError):
            objects.get_range("a", 5, 100)
    assert sent < most // 2


def test_a_server_that_only_says_that_it_will_answer_is_left() -> None:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        while True:
            handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000)

    with serving(reply) as url, pytest.raises(ObjectError, match="takes too long"):
        Objects.open(url, timeout=1).get("a")


def test_a_snapshot_of_another_network(store: Path, tmp_path: Path) -> None:
    report, count = sync(tmp_path / "node", store, network=Network.local(8))
    assert count == 0
    assert "is of the network local-7, but the node is on local-8 (its setting" in str(
        report.sources[0].error
    )


def test_a_snapshot_from_the_future_is_not_built_on(log, kept):
    objects, root = kept
    _, data = encode_root(replace(root.manifest, created=253_402_300_799), KEY, root.top)
    objects.put(LATEST, data)
    with pytest.raises(SnapshotError, match=r"9999-12-31.* in the future"):
        create(log, objects)


@pytest.mark.parametrize("created", [253_402_300_800, 2**55, 2**62, 2**63 - 1])
def test_a_snapshot_made_at_a_time_beyond_the_calendar_is_broken(kept, created):
    """Python has three kinds of errors for such times."""
    objects, root = kept
    _, data = encode_root(replace(root.manifest, created=created), KEY, root.top)
    objects.put(LATEST, data)
    with pytest.raises(SnapshotError, match=r"manifest is broken.*created"):
        read_root(objects)


def test_a_manifest_that_is_signed_by_another_key_than_it_names(kept):
    objects, root = kept
    _, mine = encode_root(root.manifest, KEY, root.top)
    _, other = encode_root(root.manifest, SigningKey(b"x" * 32), root.top)
    at = next(n for n, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
    swapped = mine[:at] + other[at : at + 200] + mine[at + 200 :]
    for data in (swapped, mine[:-1], mine + b"x", b""):
        objects.put(LATEST, data)
        with pytest.raises(SnapshotError, match="not usable"):
            read_root(objects)


def lying(extents: list[PackExtent], size: int = 1000) -> list[SnapshotFault]:
    """Read a leaf whose locator has these extents; return the faults."""
    objects = Objects.open("memory://")
    keys = [bytes([n]) * 30 for n in range(1, 1 + len(extents))]
    *_, leaf = build(keys)
    node = pack(LeafNode(keys)) + encode_locator(extents)
    node += len(encode_locator(extents)).to_bytes(3, "big")
    name = CID.of(RAW, node)
    objects.put(pack_name(name), node)
    whole_log = make_root(Root(leaf.link, len(keys)), PackExtent(0, 0, len(node)), [(name, size)])
    faults: list[SnapshotFault] = []
    reader = SnapshotReader(objects, whole_log, faults.append)
    [(_, node, at)] = reader.open([whole(leaf.link)])
    assert reader.events(list(zip(node.keys, at, strict=True))) == []
    return faults


def make_root(tree: Root, extent: PackExtent, packs: list[tuple[CID, int]]) -> RootObject:
    manifest = SnapshotManifest(NETWORK, (), (), 0, tree, extent, packs, 0)
    return encode_root(manifest, KEY, {})[0]


@pytest.mark.parametrize(
    ("extent", "reason"),
    [
        (PackExtent(0, 0, 2_000_000), "is the limit"),
        (PackExtent(0, 1 << 40, 10), "has only"),
        (PackExtent(9, 0, 10), "pack 9"),
        (PackExtent(0, 0, 10), "damaged"),
    ],
)
def test_a_locator_that_lies(extent: PackExtent, reason: str) -> None:
    # Keys that are not EventIds are refused before anything is read.
    assert all("damaged key" in str(fault) for fault in lying([extent]))
    objects = Objects.open("memory://")
    name = CID.of(RAW, b"?" * 100)
    objects.put(pack_name(name), b"?" * 100)
    link = Link(0, b"", Sha256a(bytes(32)), CID.of(DAG_CBOR, b"no such node"))
    faults: list[SnapshotFault] = []
    root = make_root(Root(link, 1), replace_size(extent), [(name, 100)])
    reader = SnapshotReader(objects, root, faults.append)
    assert reader.open([Branch(link, KeyRange(b"", b"\xff" * 64))]) == []
    assert reason in str(faults[0])


def replace_size(extent: PackExtent) -> PackExtent:
    """Nodes may be larger than events."""
    return extent._replace(size=1 << 30) if extent.size > 1_000_000 else extent


def test_front_coding_does_not_blow_up() -> None:
    """Few bytes that would stand for gigabytes: each key shares all of a long one before it."""
    n = encode_varint
    long = n(0) + n(200) + b"k" * 200
    assert len(unpack(n(0) + long, None)) > 200
    bomb = n(0) + long + (n(200 << 2) + n(100) + b"x" * 100) * 100
    with pytest.raises(NodeFormatError, match="longer than"):
        unpack(bomb, None)
    for broken in (
        b"",
        n(0) + n(5 << 2) + n(1) + b"x",  # shares what is not there
        n(0) + n(0) + n(9) + b"x",  # cut off
        n(0) + n(1) + n(9) + b"x" * 9,  # a CID cut off
        n(1),
        n(1) + n(1 << 40),  # children without end
        n(1) + n(2) + bytes(96) + n(0) + n(1) + b"b" + b"more",
    ):
        with pytest.raises(NodeFormatError):
            unpack(broken, Sha256a(bytes(32)))


def test_a_store_that_only_fails_is_given_up(kept: tuple[Objects, RootObject]) -> None:
    objects, root = kept

    def fail(name: str, start: int, size: int) -> bytes:
        raise UnavailableError("does not answer")

    objects.get_range = fail  # type: ignore[method-assign]
    faults: list[SnapshotFault] = []
    reader = SnapshotReader(objects, root, faults.append)
    extent = root.manifest.extent
    assert extent is not None
    tree = root.manifest.tree
    link = tree.link._replace(cid=CID.of(DAG_CBOR, b"elsewhere"))  # not at the top
    reader.note_extent(link, extent)
    for _ in range(15):
        assert reader.open([whole(link)]) == []
    with pytest.raises(SnapshotError, match=r"16 times in a row and was given up.*does not answer"):
        reader.open([whole(link)])
    assert len(faults) == 16


SPAN = KeyRange(*network_range(NETWORK))


def bounds_of(count: int, depth: int = 0) -> list[bytes]:
    """The bounds below some children of the first child of the first child..."""
    return [
        LOWEST,
        *(SPAN.lower + bytes(2 * depth) + n.to_bytes(2, "big") for n in range(1, count)),
    ]


def put_tree(store: Path, levels: list[tuple[InnerNode, list[PackExtent]]]) -> None:
    """Write a snapshot of inner nodes, the root last; each is at the beginning of its own pack."""
    (store / "packs").mkdir(parents=True)
    packs: list[tuple[CID, int]] = []
    for inner, extents in levels:
        node = located(inner, encode_locator(extents))
        content = node + bytes(310_000)
        packs.append((CID.of(RAW, content), len(content)))
        (store / pack_name(packs[-1][0])).write_bytes(content)
    tree = Root(link_to(inner), len(extents))
    place = PackExtent(len(packs) - 1, 0, len(node))
    manifest = SnapshotManifest(NETWORK, (), (SPAN,), 0, tree, place, packs, 1)
    (store / LATEST).write_bytes(encode_root(manifest, KEY, {})[1])


def link_to(inner: InnerNode) -> Link:
    total = Sha256a.from_lanes(sum(spread(link.hash) for link in inner.children))
    return Link(inner.children[0].level + 1, LOWEST, total, node_cid(inner.encode()))


def test_a_tree_that_names_one_node_3000_times(tmp_path: Path) -> None:
    """It once ended the node, at every start."""
    missing, hashed = CID.of(DAG_CBOR, b"no such node"), Sha256a.from_lanes(1)
    inner = InnerNode([Link(0, bound, hashed, missing) for bound in bounds_of(3000)])
    put_tree(tmp_path / "store", [(inner, [PackExtent(0, n * 100, 100) for n in range(3000)])])
    report, held = sync(tmp_path / "node", tmp_path / "store")
    assert held == 0
    assert report.synced.fault_count
    assert not report.is_whole


def test_a_tree_that_is_wide_on_all_levels(tmp_path, monkeypatch):
    """Each level took 50 MB, and there may be 40: the nodes beside those that were opened first."""
    monkeypatch.setattr(snapshot_reader, "_MAX_AHEAD", 1000)
    monkeypatch.setattr(snapshot_reader, "_NODES_AT_ONCE", 1)
    levels: list[tuple[InnerNode, list[PackExtent]]] = []
    for number in range(4):
        children = [
            Link(number, bound, Sha256a.from_lanes(1), CID.of(DAG_CBOR, b"%d" % at))
            for at, bound in enumerate(bounds_of(300, depth=3 - number))
        ]
        extents = [PackExtent(0, at * 100, 100) for at in range(300)]
        if levels:
            below, inside = levels[-1]
            children[0] = link_to(below)
            extents[0] = PackExtent(number - 1, 0, len(located(below, encode_locator(inside))))
        levels.append((InnerNode(children), extents))
    put_tree(tmp_path / "store", levels)
    report, _ = sync(tmp_path / "node", tmp_path / "store")
    assert "was made to fill the memory" in str(report.sources[0].error)
    objects = Objects.open(str(tmp_path / "store"))
    with pytest.raises(SnapshotError, match="was made to fill the memory"):
        verify_snapshot(objects, read_root(objects), lambda *step: None)


def test_verifying_reads_a_few_bytes_at_once(kept, monkeypatch):
    """256 nodes, which may have 4 MB each, and all events of 256 leaves were in memory."""
    monkeypatch.setattr(snapshot_reader, "_PART_BYTES", 5000)
    objects, root = kept
    sizes: list[int] = []
    read = PackReader.read

    def recorded(reader: PackReader, extents: Any, *rest: Any) -> Any:
        sizes.append(sum(extent.size for extent in extents.values()))
        return read(reader, extents, *rest)

    monkeypatch.setattr(PackReader, "read", recorded)
    verified = verify_snapshot(objects, root, lambda *step: None)
    assert verified.events == EVENTS
    assert max(sizes) < 2 * 5000


def test_of_endless_faults_the_first_are_kept() -> None:
    faults = Faults()
    for number in range(3000):
        faults.note(SnapshotFault(str(number), "damaged"))
    assert (len(faults.faults), faults.fault_count) == (1000, 3000)


def test_whoever_signs_is_known_before_the_manifest_is_read(monkeypatch):
    """A megabyte of empty lists takes 60 MB."""
    whole_range = (KeyRange(*network_range(NETWORK)),)
    root, data = encode_root(
        SnapshotManifest(NETWORK, (), whole_range, 0, None, None, (), 0), KEY, {}
    )
    assert decode_root(data, {root.signer}).cid == root.cid
    read: list[bytes] = []
    monkeypatch.setattr(SnapshotManifest, "decode", read.append)
    with pytest.raises(RootError, match="not trusted"):
        decode_root(data, {"did:key:z6Mkh"})
    assert not read


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ranges", [[1 << 31, (1 << 31) + 1]]),  # as bytes(n) would have it: zeros
        ("ranges", [[n.to_bytes(4, "big"), n.to_bytes(4, "big") + b"0"] for n in range(5000)]),
        ("ranges", [[b"b", b"c"], [b"a", b"b"]]),
        ("ranges", [[b"b", b"a"]]),
        ("ranges", [[b"a", b"b", b"c"]]),
        ("count", "9" * 4000),
        ("count", 1 << 63),
        ("level", True),
        ("place", [-1, 0, 1]),
        ("place", [0, 0]),
        ("packs", [[CID.of(RAW, b""), "9"]]),
        ("root", 1 << 31),
        ("ahash", 1 << 31),
        ("interests", [1 << 31]),
        ("feed", {"epoch": 1, "position": 0, "pages": []}),
        ("feed", {"epoch": "e", "position": "0", "pages": []}),
    ],
)
def test_a_manifest_is_what_it_says_or_broken(field: str, value: object) -> None:
    """200 ranges between numbers, in 3 kB, held the node for minutes: it compared gigabytes."""
    link = Link(0, LOWEST, Sha256a(bytes(32)), CID.of(DAG_CBOR, b""))
    manifest = make_root(Root(link, 1), PackExtent(0, 0, 1), []).manifest
    fields = dag_cbor.decode(manifest.encode())
    assert SnapshotManifest.decode(dag_cbor.encode(fields)).encode() == manifest.encode()
    with pytest.raises(RootError, match="its manifest is broken"):
        SnapshotManifest.decode(dag_cbor.encode({**fields, field: value}))


def test_a_signature_has_no_megabytes() -> None:
    block = b"\x9a" + (900_000).to_bytes(4, "big") + b"\x80" * 900_000
    cid = CID.of(DAG_JOSE, block)
    with pytest.raises(RootError, match="its envelope has more than"):
        decode_root(car.encode([cid], {cid: block}))


def test_what_nobody_foresaw_ends_only_its_source(store, tmp_path, monkeypatch):
    monkeypatch.setattr(SnapshotReader, "events", lambda *arguments: 1 / 0)
    report, held = sync(tmp_path / "node", store)
    assert held == 0
    assert "ZeroDivisionError" in str(report.sources[0].error)


def test_a_leaf_that_unpacks_to_fifty_times_its_bytes_is_refused() -> None:
    """Eight of them held the node for a minute, and took 2.5 GB."""
    before = b"\x05" * 253
    keys = [before + n.to_bytes(3, "big") for n in range(100_000)]
    packed_leaf = pack(LeafNode(keys))
    assert len(packed_leaf) < 700_000
    with pytest.raises(NodeFormatError, match="too many for its bytes"):
        unpack(packed_leaf, None)
    short = pack(LeafNode([n.to_bytes(4, "big") for n in range(100_000)]))
    with pytest.raises(NodeFormatError, match="too many for its bytes"):
        unpack(short, None)


@pytest.mark.parametrize(
    ("source", "target", "is_followed"),
    vectors.load("redirects"),
)
async def test_a_public_server_redirects_to_public_addresses_only(source, target, is_followed):
    """Else it could have this machine ask what only it can reach."""

    def answer(request: httpx.Request) -> httpx.Response:
        if str(request.url) == f"{source}/latest":
            return httpx.Response(302, headers={"location": target})
        return httpx.Response(404)

    server = WebServer(source, 30.0, 30.0, 0)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(OSError, match="404" if is_followed else "not a public address"):
            await server._get(client, "latest", 100, None)


@pytest.mark.parametrize("name", ["source", "target"])
async def test_a_name_that_resolves_again_leads_nowhere_else(monkeypatch, name):
    """Names are resolved once to be checked and once to be connected (DNS rebinding)."""
    public, private = "127.0.0.2", "127.0.0.1"
    monkeypatch.setattr(web_module, "_is_global", lambda address: address == public)
    answers = {
        "source": itertools.chain([public], itertools.repeat(private)),
        "target": itertools.chain([public], itertools.repeat(private)),
    }
    answers["target" if name == "source" else "source"] = itertools.repeat(public)
    reached: list[str] = []

    def reply(handler: BaseHTTPRequestHandler) -> None:
        host = handler.headers["Host"].partition(".")[0]
        reached.append(f"{host} at {handler.connection.getsockname()[0]}")
        handler.send_response(302 if host == "source" else 404)
        target = private if name == "source" else "target.test"
        handler.send_header("Location", f"http://{target}:{url.rpartition(':')[2]}/")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    async def resolve(host: bytes, port: bytes | int | None, *_: Any) -> list[Any]:
        address = next(answers[host.decode().partition(".")[0]])
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port or 0)))]

    resolver = Mock(spec=trio.abc.HostnameResolver, getaddrinfo=resolve)
    trio.socket.set_custom_hostname_resolver(resolver)
    with serving(reply, host="0.0.0.0") as url:
        server = WebServer(f"http://source.test:{url.rpartition(':')[2]}", 30.0, 30.0, 0)
        async with httpx.AsyncClient(trust_env=False) as client:
            with pytest.raises(OSError, match=r"not (a )?public"):
                await server._get(client, "latest", 100, None)
    assert reached == [f"source at {public}"]
