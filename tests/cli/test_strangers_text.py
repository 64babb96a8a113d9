"""What strangers write reaches a terminal as text: every command, with hostile streams."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import trio
from cli_run import run
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from support import vectors

from recon_node.base.terminal import shown, shown_json
from recon_node.ceramic import Network
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.cli import main
from recon_node.ipld import multibase
from recon_node.store import open_store
from recon_node.testnet import TestnetNode

EVIL = "evil\x1b]0;OWNED\x07\x1b[31mred\x1b[2J\r\nfake line\u202egnp.exe\u009b31m"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
KEY = SigningKey(b"e" * 32)
DEFINITION = {
    "version": "2.0",
    "name": EVIL,
    "description": EVIL,
    "interface": False,
    "implements": [],
    "schema": {"type": "object", "properties": {"a": {"type": "string"}}},
    "accountRelation": {"type": "list"},
}
MODEL = model_event(KEY, DEFINITION)
INIT = init_event(KEY, MODEL.stream_id(), {"a": EVIL, EVIL: 1}, unique=b"u")
CHANGES = [
    data_event(KEY, INIT, [INIT.cid], [{"op": "add", "path": "/" + EVIL, "value": EVIL}]),
    data_event(KEY, INIT, [INIT.cid], [{"op": EVIL, "path": "/a", "value": EVIL}]),
]
STREAM = str(INIT.stream_id())

SHOWN = vectors.load(
    "hostile_commands", evil=EVIL, change=CHANGES[0].cid, stream=STREAM, model=MODEL.stream_id()
)
"""Commands that show what strangers wrote, or quote what they are given; of their arguments,
`$file`, `$key`, `$log` and `$new` are paths."""


OWN = {
    *("anchor deploy", "anchor key", "backup", "dag key", "id", "key new", "key sign-in", "run"),
    *("snapshot create", "store compact", "testnet"),
}
"""Commands that show what is the operator's own, numbers, and log lines."""


def commands(group: click.Group, *path: str) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group) and not command.invoke_without_command:
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name))


@pytest.fixture(scope="module")
def filled(node: TestnetNode) -> TestnetNode:
    lines = "\n".join(multibase.encode(event.car) for event in (MODEL, INIT, *CHANGES))
    run("events", "add", "-", node=node, data=lines)
    return node


@pytest.mark.parametrize("command", SHOWN)
def test_nothing_that_a_terminal_obeys_is_printed(filled, tmp_path, command):
    evil, key = tmp_path / "evil", tmp_path / "my.key"
    evil.write_text(json.dumps({"author": EVIL, "content": EVIL}) + "\n" + EVIL)
    key.write_text(bytes(KEY).hex())
    if "$log" in SHOWN[command]:
        trio.run(_fill_log, tmp_path / "log")
    paths = {"file": evil, "key": key, "log": tmp_path / "log", "new": tmp_path / "new"}
    values = {f"${name}": str(path) for name, path in paths.items()}
    arguments = [values.get(argument, argument) for argument in SHOWN[command]]
    env = {"RECON_NODE_URL": filled.api_url, "RECON_NODE_DATA_DIR": str(tmp_path / "home")}
    result = CliRunner().invoke(main, [*command.split(), *arguments], env=env)
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    assert not OBEYED.search(result.output), result.output
    assert not any(line.startswith("fake line") for line in result.output.splitlines())


async def _fill_log(data_dir: Path) -> None:
    async with open_store(data_dir, Network.local(7)) as store:
        await store.admit_local([event.car for event in (MODEL, INIT, *CHANGES)])


def test_every_command_is_known_here() -> None:
    """A new one either shows what strangers wrote, or does not."""
    assert set(commands(main)) == SHOWN.keys() | OWN
    assert not SHOWN.keys() & OWN


def test_names_are_still_there(filled: TestnetNode) -> None:
    assert r"evil\x1b]0;OWNED" in run("model", "list", node=filled).output


@given(st.text())
def test_shown_text_prints_and_json_stays_the_same(text: str) -> None:
    assert shown(text).isprintable()
    assert not OBEYED.search(shown(text, lines=True))
    assert shown(text) == text or not text.isprintable()
    written = shown_json(json.dumps({"t": text}, ensure_ascii=False, indent=1))
    assert json.loads(written) == {"t": text}
    assert not OBEYED.search(written)
