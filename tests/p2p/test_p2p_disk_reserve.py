"""A node whose disk has only its reserve left: it takes nothing from peers, and goes on without."""

from __future__ import annotations

import pytest
from nacl.signing import SigningKey
from p2p_support import eventually, node

from recon_node.ceramic import StreamId, StreamType
from recon_node.ceramic.builder import init_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.recon import VERSIONS
from recon_node.store import directory as disk_reserve

MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
KEY = SigningKey(bytes(range(32)))
FEW = 20


def events(first: int) -> list[bytes]:
    return [init_event(KEY, MODEL, None, unique=b"%d" % n).car for n in range(first, first + FEW)]


@pytest.mark.parametrize("versions", [VERSIONS, ()], ids=["recon", "ring"])
async def test_a_node_without_room_still_gives_and_takes_again_later(
    versions, tmp_path, monkeypatch
):
    monkeypatch.setattr(disk_reserve, "LOOK_EVERY", 0.0)
    quick = {"sync_interval": 0.2, "versions": versions, "ceramic_one": not versions}
    async with (
        node(tmp_path / "short", events(0), **quick) as short,
        node(tmp_path / "peer", events(FEW), **quick) as peer,
    ):
        free = short.store.disk.keep - 1
        monkeypatch.setattr(short.store.disk, "_free", lambda: free)
        await peer.p2p.connect(short.address)
        if versions:
            await eventually(lambda: len(peer.store.keys) == 2 * FEW)
        before = len(short.p2p.sync_reports)
        await eventually(lambda: len(short.p2p.sync_reports) > before)
        assert len(short.store.keys) == FEW
        own = await short.store.admit_local(events(2 * FEW)[:1])
        assert own[0].status == "new", "the node's own clients can write"
        free = 2 * short.store.disk.keep
        await eventually(lambda: len(short.store.keys) == 2 * FEW + 1)
        await eventually(lambda: short.ahash() == peer.ahash())
