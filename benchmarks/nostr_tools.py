"""negentropy as a JavaScript client has it: the initiator is the npm package nostr-tools.

It runs in a Node.js process of its own, with its defaults; messages are capped at 60,000 bytes
there. nostr-tools has the client's side only, so the port in negentropy.py answers it, as a relay
would. CPU time is that of both.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.contestants import Contestant, Cost, CpuTimer, check_difference
from benchmarks.negentropy import Items, Negentropy
from benchmarks.pairs import Pair

VERSION: Final = "2.25.2"
_SCRIPT: Final = Path(__file__).with_suffix(".mjs")
_NIP77: Final = Path("node_modules/nostr-tools/lib/esm/nip77.js")


def nostr_tools() -> Contestant:
    """Return the contestant; npm installs it first, unless it is there.

    Ends the program with a message where Node.js is missing or npm fails.
    """
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            raise SystemExit(f"--nostr-tools needs Node.js: the command `{command}` was not found")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "recon-node" / f"nostr-tools-{VERSION}"
    if not (folder / _NIP77).exists():
        _install(folder)
    return partial(_reconcile, folder / _NIP77)


def _install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
    command += [str(folder), f"nostr-tools@{VERSION}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"npm could not install nostr-tools:\n{result.stderr}")


def _reconcile(nip77: Path, pair: Pair) -> Cost:
    ours, theirs = pair.items()
    answering = Negentropy(Items(theirs))
    cost = Cost()
    with tempfile.NamedTemporaryFile() as items:
        items.write(b"".join(ours))
        items.flush()
        with subprocess.Popen(
            ["node", str(_SCRIPT), str(nip77), items.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as node:
            try:
                result = _converse(node, answering, cost)
            finally:
                node.kill()
    cost.cpu_s += result["cpu_s"]
    check_difference(pair, round(result["found"]))
    return cost


def _converse(node: subprocess.Popen[str], answering: Negentropy, cost: Cost) -> dict[str, float]:
    """Answer the messages of a Node.js process; return its last line."""
    assert node.stdin is not None
    assert node.stdout is not None
    for line in node.stdout:
        if line.startswith("{"):
            result: dict[str, float] = json.loads(line)
            return result
        message = bytes.fromhex(line)
        with CpuTimer() as timer:
            answer = answering.reconcile(message)
        assert answer is not None
        cost.cpu_s += timer.seconds
        cost.rounds += 1
        cost.bytes_sent += len(message)
        cost.bytes_received += len(answer)
        node.stdin.write(answer.hex() + "\n")
        node.stdin.flush()
    raise SystemExit("Node.js ended before the reconciliation did; its message is above")
