"""Servers and files that lie: answers without end or compressed, backups made by others."""

import gzip
import io
import json
import tarfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from cli_run import error_of, run
from support.web_server import serving

from recon_node.backup import BackupError, restore_backup
from recon_node.base.connection import MAX_ANSWER, Connection, NodeError
from recon_node.ceramic import StreamId, StreamType
from recon_node.ipld import CID, RAW

ROOT = CID.of(RAW, b"root")
STREAM = StreamId(StreamType.MODEL_INSTANCE, ROOT)


def start(handler: BaseHTTPRequestHandler, **headers: str) -> None:
    handler.send_response(200)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def test_a_compressed_answer_is_not_unpacked() -> None:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.headers["accept-encoding"])
        start(handler, content_encoding="gzip")
        handler.wfile.write(gzip.compress(b'{"a": 1}'))

    asked: list[str] = []
    with serving(reply) as url:
        assert "is not a node" in error_of("status", "--url", url)
    assert set(asked) == {"identity"}


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ("model new @/dev/zero --key my.key", "it has more than 16777216 bytes"),
        ("model new - --key my.key", "it has more than 16777216 characters"),
        ("config check --config /dev/zero", "it has more than 1048576 bytes"),
        (f"dag publish {ROOT} --proof @/dev/zero", "it has more than 65536 bytes"),
        (f"stream update {STREAM} {{}} --key my.key --capability /dev/zero", "too many"),
        ("events add endless.car", "has more than 4,194,304 bytes"),
    ],
)
def test_a_file_without_end_is_given_up(command, limit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("key", "new", "my.key")
    (tmp_path / "endless.car").symlink_to("/dev/zero")
    code = 2 if command.startswith(("model", "config")) else 1
    endless = " " * (16 * 1024 * 1024 + 1)
    error = error_of(*command.split(), code=code, data=endless, RECON_NODE_DATA_DIR=str(tmp_path))
    assert limit in error


def test_an_answer_without_end_is_given_up() -> None:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        start(handler)
        while True:
            handler.wfile.write(b" " * 1024 * 1024)

    too_much = pytest.raises(NodeError, match=f"more than {MAX_ANSWER:,} bytes")
    with serving(reply) as url, Connection(url) as node, too_much:
        node.request("GET", "/ceramic/recon")


def test_a_pull_ends_where_the_node_said_that_it_would(tmp_path: Path) -> None:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        start(handler)
        if not handler.path.endswith(".car"):
            nothing = {"count": 0, "first": []}
            state = {"complete": True, "blocks": 1, "bytes": 100, "missing_blocks": nothing}
            rest = {"missing_shards": nothing, "shards": [], "unclaimed": [], "heads": []}
            rest |= {"head": None, "interests": []}
            handler.wfile.write(json.dumps(state | rest).encode())
            return
        while True:
            handler.wfile.write(bytes(65536))
            written.append(65536)

    written: list[int] = []
    with serving(reply) as url:
        error = error_of("dag", "pull", ROOT, "--url", url, "--out", tmp_path / "out.car")
    assert "more than the 100 bytes that it announced" in error
    assert list(tmp_path.iterdir()) == []
    assert sum(written) < 64 * 1024 * 1024  # what is under way


MANIFEST = {
    "files": {"events.sqlite3": "0" * 64},
    "events": 0,
    "head": 0,
    "epoch": "x",
    "peer_id": None,
    "made_at": "",
    "format": 1,
}


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, size: int = -1) -> bytes:
    header = tarfile.TarInfo(name)
    header.size, header.type = len(data) if size < 0 else size, kind
    return header.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def sparse(name: str, real: int) -> bytes:
    """A file that is all hole, in the format of GNU tar."""
    block = bytearray(member(name, kind=tarfile.GNUTYPE_SPARSE))
    block[483:495] = tarfile.itn(real, 12, tarfile.GNU_FORMAT)  # type: ignore[attr-defined]
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def sparse_by_attributes(name: str, real: int) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.pax_headers.update({"GNU.sparse.size": str(real), "GNU.sparse.map": f"{real},0"})
        tar.addfile(info)
    return archive.getvalue()


HARMFUL = {
    "sparse": sparse("events.sqlite3", 1 << 40),
    "sparse PAX": sparse_by_attributes("events.sqlite3", 1 << 40),
    "PAX": member("x", kind=tarfile.XHDTYPE, size=3 << 30),
    "global PAX": member("x", kind=tarfile.XGLTYPE, size=3 << 30),
    "long name": member("x", kind=tarfile.GNUTYPE_LONGNAME, size=3 << 30),
    "1 PB": member("events.sqlite3", size=1 << 50),
    "link": member("events.sqlite3", kind=tarfile.SYMTYPE),
    "other": member("not in the manifest", b"x"),
    "twice": member("events.sqlite3", b"x") + member("events.sqlite3", b"y"),
}


@pytest.mark.parametrize("rest", HARMFUL.values(), ids=HARMFUL)
def test_a_backup_that_somebody_made_writes_nothing_else(tmp_path: Path, rest: bytes) -> None:
    archive = tmp_path / "backup"
    manifest = json.dumps(MANIFEST).encode()
    archive.write_bytes(member("manifest.json", manifest) + rest + bytes(1024))
    data_dir = tmp_path / "node"
    with pytest.raises(BackupError):
        restore_backup(archive, data_dir, None, new_epoch=False, progress=lambda *_: None)
    assert {path.name for path in data_dir.iterdir()} <= {"lock", "node.lock"}
