"""Attacks of other kinds: a web page's, a DAG's, and text for an operator's terminal."""

from __future__ import annotations

import base64
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx
from nacl.signing import SigningKey

from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import NETWORK, Field, add, document_id, make_model
from benchmarks.attack.measuring import MIB, Row
from recon_node.ceramic import EventId, Network
from recon_node.ceramic.builder import data_event, init_event
from recon_node.dag import unixfs
from recon_node.dag.dag_events import Identifier, replica_event
from recon_node.dag.protocol.dag_operations import Publish
from recon_node.dag.protocol.replica import Replica
from recon_node.dag.unixfs import NodeType, UnixFs
from recon_node.ipld import CID, DAG_CBOR, DAG_PB, RAW, car, dag_pb
from recon_node.store.db.blocks import section
from recon_node.store.maintenance.archive import ArchivePage, Manifest, cid_of, header
from recon_node.testnet import TestnetError, TestnetNode

_HOSTILE_TEXT: Final = "evil\x1b]0;OWNED\x07\x1b[31mred\x1b[2J\r\nfake\u202egnp.exe\u009b31m"
_SENT: Final = (b"\x1b]0;", b"\x1b[31mred", b"\x1b[2J", b"\nfake", b"\xc2\x9b", "\u202e".encode())

_PEAK_OF_CHILD: Final = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:]); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)
"""A program that runs another one, and prints the KiB that it held at most."""


@attack()
def another_sites_page(here: Field) -> None:
    """A page whose name is made to resolve to the loopback reads the API, by `GET` as well."""
    for path in ("/ceramic/recon", "/ceramic/feed/events", "/ceramic/streams"):
        for origin in ({}, {"Origin": "http://evil.example:5101"}):
            headers = {"Host": "evil.example:5101", **origin}
            answer = httpx.get(here.url + path, headers=headers)
            here.expect(f"{path} for evil.example", True, 400 <= answer.status_code < 500)


@attack()
def a_bomb_of_links(here: Field) -> None:
    """A DAG of 2 MB is 656 PB of files, and a directory without end, when it is pulled."""
    for kind, name, content in (
        (NodeType.FILE, "", 900_000),
        (NodeType.DIRECTORY, "e{}", 1),
    ):
        leaf = bytes(content)
        root = CID.of(RAW, leaf)
        blocks = {root: leaf}
        for _ in range(3):
            links = tuple(dag_pb.PbLink(root, name.format(number)) for number in range(9000))
            block = dag_pb.encode(dag_pb.PbNode(links, unixfs.encode(UnixFs(kind))))
            root = CID.of(DAG_PB, block)
            blocks[root] = block
        out = here.directory / f"pulled-{kind.name}"
        out.mkdir()
        file = here.directory / "bomb.car"
        file.write_bytes(car.encode([root], blocks))
        pushed = _recon_node(here, here.peer.api_url, "dag", "push", str(file))
        here.expect("the bomb is pushed", 0, pushed)
        with here.attacked():
            started = time.monotonic()
            code = _recon_node(here, here.url, "dag", "pull", str(root), "--out", str(out / "x"))
        here.expect("pull is refused", 1, code)
        here.at_most("pull", time.monotonic() - started, 20.0)
        here.expect("nothing is left", [], list(out.iterdir()))


@attack()
def a_token_of_400_digits(here: Field) -> None:
    """A publish whose UCAN has a time that no float holds, or half of a surrogate pair, ends the
    node when it is indexed, and again at each start."""
    for changes in ({"exp": 10**400}, {"iss": "\ud800"}):
        key = SigningKey.generate()
        identifier = Identifier(bytes(key.verify_key))
        fields = {"iss": "did:key:z", "aud": "did:key:z", "att": [], "exp": 1, "prf": [], **changes}
        parts = ({"alg": "EdDSA", "typ": "JWT", "ucv": "0.8.1"}, fields)
        token = ".".join([*map(_base64, parts), "AAAA"])
        root = CID.of(RAW, b"x")
        publish = Publish(identifier.key, root, root, token, None)
        event = replica_event(key, identifier, Replica(None, publish).block)
        with here.attacked():
            here.add([event])
            here.await_event(event)
            answer = here.get(f"/ceramic/dag/{root}")  # waits until the index has read it
        here.expect("questions about DAGs", True, answer.status_code < 500)


@attack()
def an_export_of_one_block(here: Field) -> None:
    """A file of 1 MB, whose 600 events all have one block, takes 0.6 GB when it is imported."""
    block = os.urandom(999_000)
    cid, network = CID.of(RAW, block), Network.local(int(NETWORK.partition("-")[2]))
    cids = [CID.of(DAG_CBOR, number.to_bytes(2, "big")) for number in range(600)]
    ids = [
        EventId.build(network, "k", "did:key:z6Mk", event_cid, 0, event_cid) for event_cid in cids
    ]
    page = ArchivePage([(event_id, [cid]) for event_id in ids], []).encode()
    manifest = Manifest(network, len(ids), (cid_of(page),)).encode()
    parts = [(cid_of(manifest), manifest), (cid_of(page), page), (cid, block)]
    file = here.directory / "export.car"
    file.write_bytes(header(cid_of(manifest)) + b"".join(section(*part) for part in parts))
    command = [sys.executable, "-m", "recon_node", "store", "import", str(file)]
    directory = ["--data-dir", str(here.directory / "imported")]
    # A child's peak begins with that of the process that starts it, so a small one does.
    measured = [sys.executable, "-c", _PEAK_OF_CHILD, *command, *directory]
    result = subprocess.run(measured, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    peak = int(result.stdout.split()[-1]) * 1024
    grown, holds = f"{peak / MIB:.0f} MiB", peak <= 400 * MIB
    here.rows.append(Row("memory of the import", "400 MiB", grown, holds))


def _base64(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _recon_node(here: Field, url: str, *arguments: str) -> int:
    """Run a command, whose key is the field's; returns its exit code."""
    command = [sys.executable, "-m", "recon_node", *arguments, "--url", url]
    data = {"RECON_NODE_DATA_DIR": str(here.directory / "key")}
    return subprocess.run(
        command, capture_output=True, timeout=120, check=False, env=os.environ | data
    ).returncode


def _on_terminal(url: str, *arguments: str) -> bytes:
    """What a command sends to a terminal."""
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "recon_node", *arguments, "--url", url]
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    output = b""
    with suppress(OSError):  # at the end of the process
        while piece := os.read(outer, 65536):
            output += piece
    os.close(outer)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    return output


@attack()
def text_for_a_terminal(here: Field) -> None:
    """A model's name, a member's name and a text are sent to an operator's terminal as they are,
    with commands to it in them."""
    key = SigningKey.generate()
    schema = {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}
    model, model_id = make_model(key, name=_HOSTILE_TEXT, description=_HOSTILE_TEXT, schema=schema)
    init = init_event(key, model_id, {"a": _HOSTILE_TEXT}, unique=b"u")
    patch = [{"op": "add", "path": f"/{_HOSTILE_TEXT}", "value": _HOSTILE_TEXT}]
    update = data_event(key, init, [init.cid], patch)
    add(here.url, [model, init, update])
    for command in (
        ("model", "list"),
        ("stream", "list"),
        ("stream", "show", document_id(init)),
        ("stream", "show", str(model_id)),
        ("events", "get", str(model.cid), "--show"),
        ("events", "get", str(update.cid), "--show"),
        ("status",),
    ):
        output = _on_terminal(here.url, *command)
        here.expect(f"raw in `{' '.join(command[:2])}`", [], [x for x in _SENT if x in output])


@attack()
def the_disk(here: Field) -> None:
    """A name of 0.9 MB in each of 100 events: what a peer writes is bounded by what it sent."""
    key = SigningKey.generate()
    model, model_id = make_model(key)
    events = [model]
    for number in range(100):
        content = {"a": str(number) + "z" * 900_000}
        events.append(init_event(key, model_id, content, unique=str(number).encode()))
    sent = sum(len(event.car) for event in events)
    before = _disk(here.node.data_dir)
    with here.attacked():
        here.add(events)
        here.await_event(events[-1], 120)
    grown = _disk(here.node.data_dir) - before
    here.expect(f"disk below twice {sent / MIB:.0f} MiB", True, grown < 2 * sent)


def _disk(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def _link_to(target: Path) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return put


@attack()
def files_of_others(here: Field) -> None:
    """What others put into the data directory stops a start, or has another file overwritten."""
    target = here.directory / "precious"
    target.write_text("precious\n")
    node = TestnetNode("with-files", here.directory, ("--network", NETWORK, "--no-discovery"))
    node.launch()
    node.wait_until_ready()
    node.stop()
    files: dict[str, Callable[[Path], object]] = {
        "peers.json": lambda path: path.write_bytes(b'{"peers":' + b"[" * 100_000),
        ".peers.json.part": _link_to(target),
        "identity.key": lambda path: path.chmod(0o644),
    }
    for name, put in files.items():
        put(node.data_dir / name)
        try:
            node.restart()
            node.stop()
        except TestnetError as error:
            here.expect(f"starts with a hostile {name}", True, error)
    _link_to(target)(node.data_dir / "lock")
    with suppress(TestnetError):  # it may refuse to start
        node.launch()
        node.wait_until_ready(20)
    node.kill()
    node.release_ports()
    here.expect("the file that links lead to", "precious\n", target.read_text())
    (node.data_dir / "lock").unlink()
    exposed = [path.name for path in node.data_dir.iterdir() if path.lstat().st_mode & 0o077]
    here.expect("files that others can read", [], exposed)
