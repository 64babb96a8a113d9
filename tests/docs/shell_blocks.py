"""Pages as scripts: their shell blocks in their order, as a reader runs them.

A block whose title names a terminal keeps running until the end.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from support.waiting import kept_port

PAGES = Path(__file__).parents[2] / "docs/how-to"
LIMIT = 300.0
"""Seconds, for a busy machine."""
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```sh(?: title=\"([^\"]*)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def script(page: Path, without: Collection[str] = ("once",)) -> str:
    """A page as one script of bash, without the blocks of some titles."""
    parts = ["set -e -o pipefail", "PS4='+ '", "set -x"]
    for title, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if title in without or "activate" in block:
            continue
        if "terminal" not in title:
            parts.append(block)
            continue
        parts.append(f"{{ {block.rstrip()}\n}} > '{title}.log' 2>&1 &")
        if "recon-node run" in block:
            api = re.search(r"--api (\S+)", block)
            where = f" --url http://{api[1]}" if api else ""
            parts += [
                f"api={api[1] if api else '${RECON_NODE_URL#http://}'}",
                "until (: < /dev/tcp/${api/://}) 2> /dev/null; do kill -0 $!; sleep 0.1; done",
                f"until recon-node status{where} > /dev/null 2>&1; do kill -0 $!; sleep 0.2; done",
            ]
    return "\n".join([*parts, "echo the end"])


def run(text: str, directory: Path, limit: float) -> str:
    """Run a script in a directory that is its home; return what it prints.

    All that it starts ends with it, and if this process is killed, which closes the pipe.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("RECON_NODE")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    watched, ours = os.pipe()
    watch = f"{{ read -r; kill -KILL 0; }} <&{watched} > /dev/null 2>&1 &\n"
    with (
        os.fdopen(watched),
        os.fdopen(ours),
        subprocess.Popen(
            ["bash", "-c", watch + text],
            pass_fds=[watched],
            cwd=directory,
            env={**own, "HOME": str(directory), "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as shell,
    ):
        try:
            output, _ = shell.communicate(timeout=limit)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    logs = "\n".join(f"{log.name}:\n{log.read_text()}" for log in directory.glob("*.log"))
    assert output.endswith("the end\n"), f"{output}\n{logs}"
    assert shell.returncode == 0, output
    return output


def run_page(
    name: str,
    directory: Path,
    replaced: dict[str, str] | None = None,
    without: Collection[str] = ("once",),
) -> str:
    """Run a guide with a node on free ports; its Python blocks come at the end."""
    page = PAGES / name
    text = script(page, without)
    python = "\n".join(PYTHON.findall(page.read_text(encoding="utf-8")))
    for old, new in (replaced or {}).items():
        python = python.replace(old, new)
    end = "echo the end"
    text = text.removesuffix(end) + f"python guide.py\n{end}"
    with ExitStack() as stack:
        api, peers = (stack.enter_context(kept_port()) for _ in range(2))
        flags = f"--api 127.0.0.1:{api} --listen /ip4/127.0.0.1/tcp/{peers} --no-discovery"
        first = "recon-node run --network local-7\n"
        assert text.count(first) == 1
        text = text.replace(first, f"{first.rstrip()} {flags}\n")
        for old, new in (replaced or {}).items():
            text = text.replace(old, new)
        python = python.replace("http://127.0.0.1:5101", f"http://127.0.0.1:{api}")
        (directory / "guide.py").write_text(python)
        text = f"export RECON_NODE_URL=http://127.0.0.1:{api}\n{text}"
        text = text.replace("recon-node status >", "recon-node status --url $RECON_NODE_URL >")
        return run(text, directory, LIMIT)
