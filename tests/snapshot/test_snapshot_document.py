"""The format of snapshots on the page (docs/wire.md): vectors, and a reader made by it alone."""

import base64
import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import dag_cbor as third_party
import pytest
from click.testing import CliRunner
from multiformats import CID
from snapshot_support import events, make_log
from tree_support import Blocks

from recon_node.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text().split("\n## Snapshots\n")[1]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at


def sections(data: bytes) -> list[tuple[bytes, bytes]]:
    """The CIDs (of sha2-256) and blocks that follow each other in a CAR, without its header."""
    read, at = [], 0
    while at < len(data):
        size, at = varint(data, at)
        section, at = data[at : at + size], at + size
        _, end = varint(section, 1)  # version 1, codec
        cid, block = section[: end + 34], section[end + 34 :]
        assert cid[end:] == b"\x12\x20" + sha256(block).digest()
        read.append((cid, block))
    return read


def car_sections(data: bytes) -> list[tuple[bytes, bytes]]:
    size, at = varint(data, 0)
    return sections(data[at + size :])


class Reader:
    """Reads all events of a snapshot, as the page says."""

    def __init__(self, place: Path) -> None:
        self._place = place
        (_, envelope), (cid, manifest), *_ = car_sections((place / "latest.car").read_bytes())
        assert third_party.decode(envelope)["payload"] == cid
        self.manifest: Any = third_party.decode(manifest)
        self._packs = [self._pack(pack.encode("base32")) for pack, _ in self.manifest["packs"]]

    def _pack(self, cid: str) -> bytes:
        return (self._place / "packs" / f"{cid}.car").read_bytes()

    def events(self) -> dict[bytes, list[tuple[bytes, bytes]]]:
        """The blocks of each event, by its EventID."""
        leaves: dict[bytes, list[tuple[bytes, bytes]]] = {}
        todo = [tuple(self.manifest["place"])]
        while todo:
            pack, offset, size = todo.pop()
            data = self._packs[pack][offset : offset + size]
            length = int.from_bytes(data[-3:], "big")
            node, locator = data[: -3 - length], data[-3 - length : -3]
            level, at = varint(node, 0)
            keys = self._keys(node, at) if level == 0 else []
            places = self._places(locator)
            if level:
                assert len(places) == varint(node, at)[0]
                todo += places
            else:
                for key, (in_pack, start, length) in zip(keys, places, strict=True):
                    leaves[key] = sections(self._packs[in_pack][start : start + length])
        return leaves

    def _keys(self, node: bytes, at: int) -> list[bytes]:
        keys, last = [], b""
        while at < len(node):
            head, at = varint(node, at)
            size, at = varint(node, at)
            key = last[: head >> 2] + node[at : at + size]
            at += size
            if head & 3:  # the digest of a CID comes last
                tail = {1: b"\x01\x71\x12\x20", 2: b"\x01\x85\x01\x12\x20"}[head & 3]
                key = key[:-32] + tail + key[-32:]
            keys.append(key)
            last = key
        return keys

    def _places(self, locator: bytes) -> list[tuple[int, int, int]]:
        spans: list[tuple[int, int, int]] = []
        at = pack = end = 0
        while at < len(locator):
            head, at = varint(locator, at)
            size, kind = head >> 2, head & 3
            if kind == 0:
                pack, at = varint(locator, at)
                end, at = varint(locator, at)
            elif kind == 2:
                gap, at = varint(locator, at)
                end += gap
            spans.append((pack, end, size))
            end += size
        return spans


def run(*words: str) -> None:
    result = CliRunner().invoke(main, ["snapshot", *words])
    assert result.exit_code == 0, result.output


MADE = events(120, seed=3)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a snapshot of `MADE` is."""
    directory = tmp_path_factory.mktemp("snapshot")
    make_log(directory / "node", MADE)
    run("create", str(directory / "out"), "--data-dir", str(directory / "node"))
    return directory / "out"


def test_a_third_party_reads_a_snapshot_by_the_page(out: Path) -> None:
    reader = Reader(out)
    assert (reader.manifest["type"], reader.manifest["count"]) == ("recon-node/snapshot", 120)
    events = reader.events()
    assert len(events) == 120
    by_cid = {bytes(event.cid): event for event in MADE}
    for key, blocks in events.items():
        [event] = [by_cid[cid] for cid in by_cid if key.endswith(cid)]
        assert dict(blocks) == dict(car_sections(event.car))


def test_the_tree_as_ipld(out: Path, tmp_path: Path) -> None:
    """A third party's codecs read the same keys from both renderings, and the same CIDs."""
    run("tree", str(out), str(tmp_path / "tree.car"))
    run("tree", str(out), str(tmp_path / "tree.jsonl"), "--dag-json")
    blocks = dict(car_sections((tmp_path / "tree.car").read_bytes()))
    manifest: Any = third_party.decode(next(iter(blocks.values())))
    assert bytes(manifest["root"]) in blocks
    rendered = [json.loads(line) for line in (tmp_path / "tree.jsonl").open()]
    assert [CID.decode(node["cid"]["/"]) for node in rendered] == [*map(CID.decode, blocks)]
    assert [third_party.encode(from_dag_json(node["block"])) for node in rendered] == [
        *blocks.values()
    ]
    assert set(keys_below(manifest["root"], blocks)) == set(Reader(out).events())


def from_dag_json(value: Any) -> Any:
    """A value of DAG-JSON, by its specification."""
    if isinstance(value, list):
        return list(map(from_dag_json, value))
    if not isinstance(value, dict):
        return value
    if value.keys() != {"/"}:
        return {key: from_dag_json(member) for key, member in value.items()}
    if isinstance(value["/"], str):
        return CID.decode(value["/"])
    text = value["/"]["bytes"]
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def keys_below(cid: CID, blocks: dict[bytes, bytes]) -> Iterator[bytes]:
    """The keys of a node of the tree, as the page says."""
    level, *fields = third_party.decode(blocks[bytes(cid)])  # type: ignore[misc]
    if level:
        for child in fields[1::4]:
            yield from keys_below(child, blocks)
        return
    key = b""
    for shared, rest in zip(fields[::2], fields[1::2], strict=True):
        key = key[:shared] + rest
        yield key


def test_the_tree_on_the_page() -> None:
    """Twelve keys: two leaves and the node above them, block by block."""
    keys = [b"key-%02d" % number for number in range(12)]
    blocks = Blocks()
    root = blocks.build(set(keys))
    shown = dict(re.findall(r"^    (bafy\w+)  ([0-9a-f]+)$", PAGE, re.M))
    assert shown == {str(cid): bytes(block).hex() for cid, block in blocks.items()}
    assert third_party.decode(blocks[root.link.cid])[0] == root.link.level
