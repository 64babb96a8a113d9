"""A chain on the loopback, which says what attacks need."""

from __future__ import annotations

import http.server
import json
import threading
from functools import cache
from typing import Any, Final

CHAIN: Final = "eip155:11155111"
_CALL: Final = "97ad09eb"
"""`anchorDagCbor(bytes32)`: the call of a contract that anchors."""


class Chain:
    """Answers JSON-RPC until the program ends.

    Args:
        floods: whether questions about transactions get interim answers (1xx) without end.
    """

    def __init__(self, *, floods: bool = False) -> None:
        self._transactions: dict[str, dict[str, str]] = {}
        self._blocks: dict[str, dict[str, object]] = {}
        chain = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                call = json.loads(self.rfile.read(int(self.headers["content-length"])))
                while floods and call["method"] == "eth_getTransactionByHash":
                    try:
                        self.wfile.write(b"HTTP/1.1 100 \r\n\r\n" * 4096)
                    except OSError:
                        return
                result = chain._answer(call["method"], call["params"])
                body = json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def mine(self, transaction: bytes, root: bytes, number: int) -> None:
        """Put a transaction that anchors a root into a block of its own."""
        block, tx_hash = f"0x{number:064x}", f"0x{transaction.hex()}"
        self._transactions[tx_hash] = {
            "hash": tx_hash,
            "input": f"0x{_CALL}{root.hex()}",
            "blockHash": block,
            "blockNumber": hex(number),
        }
        self._blocks[hex(number)] = {
            "hash": block,
            "number": hex(number),
            "timestamp": hex(1_750_000_000 + number % 1000),
            "transactions": [tx_hash],
        }

    def _answer(self, method: str, params: list[Any]) -> Any:
        if method == "eth_chainId":
            return hex(int(CHAIN.partition(":")[2]))
        if method == "eth_getTransactionByHash":
            return self._transactions.get(params[0])
        head = {"hash": f"0x{0:064x}", "number": hex(10**9), "timestamp": hex(1_750_001_000)}
        return self._blocks.get(params[0], head)


@cache
def the_chain(*, floods: bool = False) -> Chain:
    """The one chain of this process, or the one that floods."""
    return Chain(floods=floods)


def with_chain(*, floods: bool = False) -> tuple[str, ...]:
    """Flags of a node that asks this chain."""
    return ("--chain-rpc", f"{CHAIN}={the_chain(floods=floods).url}", "--chain-confirmations", "1")
