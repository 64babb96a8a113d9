"""What js-ceramic makes of the answers of a node that anchors for it."""

from pathlib import Path

import httpx
import pytest
from support import npm_packages
from support.waiting import wait_until

from recon_node.ceramic import StreamId, StreamType
from recon_node.ipld import CID, DAG_CBOR
from recon_node.testnet import TestnetNode

HERE = Path(__file__).parent
LIMIT = 60.0
STREAM = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"a stream"))
FLAGS = (
    *("--network", "local-4714", "--development-time", "--anchor", "development"),
    *("--anchor-interval", "1s", "--anchor-serve"),
)


@pytest.mark.long
def test_js_ceramic_reads_the_witness(tmp_path: Path) -> None:
    npm_packages.install(HERE, dev=True)
    node = TestnetNode("node", tmp_path, FLAGS)
    tips = [CID.of(DAG_CBOR, bytes([number])) for number in range(3)]
    try:
        node.launch()
        node.wait_until_ready()
        url = f"{node.api_url}/api/v0/requests"
        for tip in tips:
            body = {
                "streamId": str(STREAM),
                "cid": str(tip),
                "timestamp": "2026-01-01T00:00:00.000Z",
                "jsCeramicVersion": "6.11.0",
            }
            httpx.post(url, json=body).raise_for_status()
        for tip in tips:
            wait_until(lambda tip=tip: httpx.get(f"{url}/{tip}").json()["status"] == "COMPLETED")
            answer = httpx.get(f"{url}/{tip}").text
            read = npm_packages.node(HERE, LIMIT, "anchor_service.mjs", answer)
            assert read == {
                "status": "COMPLETED",
                "cid": str(tip),
                "streamId": str(STREAM),
                "chainId": "local:clock",
                "txType": "f(bytes32)",
                "end": str(tip),
                "prev": str(tip),
                "id": str(STREAM.cid),
            }
    finally:
        node.discard()
