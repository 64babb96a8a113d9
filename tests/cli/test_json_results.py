"""`--json`: every command with a result has it, and prints nothing else to standard output."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from click.testing import CliRunner, Result

from recon_node.ceramic import Network
from recon_node.cli import main as recon_node
from recon_node.ipld import multibase
from recon_node.store import StoreSettings, open_store
from recon_node.testnet import TestnetNode
from spark_sink.cli import main as spark_sink

WITHOUT_JSON = {
    "recon-node anchor now": "starts what `anchor status` shows",
    "recon-node model codegen": "its output is Python",
    "recon-node run": "its log is JSON if log_format says so",
    "recon-node snapshot tree": "its output is the file",
    "spark-sink changes": "prints JSON lines in any case",
}
"""Commands without a result that a program could use."""


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group that can be called."""
    context = click.Context(group)
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{name} {each}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {each}")


COMMANDS = {
    **dict(commands(recon_node, "recon-node")),
    **dict(commands(spark_sink, "spark-sink")),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_json_or_says_why_not(name: str) -> None:
    command = COMMANDS[name]
    options = [each for one in command.get_params(click.Context(command)) for each in one.opts]
    assert ("--json" in options) is (name not in WITHOUT_JSON)


def test_the_reasons_are_about_commands_that_exist() -> None:
    assert set(WITHOUT_JSON) <= set(COMMANDS)


def called(*args: object, exit_code: int = 0, env: dict[str, str] | None = None) -> Any:
    """Standard output, which has to be one JSON value."""
    result = invoked(*args, env=env)
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def invoked(*args: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(recon_node, [*map(str, args), "--json"], env=env)


@pytest.fixture
def log(tmp_path: Path, sample: list[dict[str, str]]) -> Path:
    """The data directory of a node that has stopped."""
    directory = tmp_path / "log"

    async def fill() -> None:
        settings = StoreSettings(verifiers=0)
        async with open_store(directory, Network.local(7), settings=settings) as store:
            await store.admit_local([multibase.decode(event["car"]) for event in sample[:20]])

    trio.run(fill)
    return directory


def test_the_log_of_a_stopped_node(log: Path, tmp_path: Path) -> None:
    of = ("--data-dir", log)
    info = called("store", "info", *of)
    assert (info["network"], info["events"], info["head"]) == ("local-7", 20, 20)
    assert called("store", "compact", *of)["blocks_removed"] == 0
    file = tmp_path / "all.car"
    assert called("store", "export", file, *of) == {"file": str(file), "events": 20}
    taken = called("store", "import", file, "--data-dir", tmp_path / "copy")
    assert (taken["events"], taken["new"], taken["refusals"]) == (20, 20, [])
    both = invoked("store", "export", "-", *of)
    assert (both.exit_code, both.stdout, "name a file, not -" in both.stderr) == (2, "", True)


def test_a_damaged_log(log: Path) -> None:
    of = ("--data-dir", log)
    sound = called("store", "check", *of)
    assert (sound["sound"], sound["delivered"], sound["repaired"]) == (True, 20, None)
    with closing(sqlite3.connect(log / "events.sqlite3")) as connection:
        connection.execute("UPDATE cars SET car = x'00' WHERE id = 20")
        connection.commit()
    damaged = called("store", "check", *of, exit_code=1)
    assert (damaged["sound"], damaged["fault_count"]) == (False, 1)
    assert damaged["faults"][0]["where"] == "events"
    mended = called("store", "check", "--repair", *of)
    assert (mended["sound"], mended["events"]) == (True, 19)
    assert len(mended["repaired"]["lost"]) == 1
    assert Path(mended["repaired"]["damaged_file"]).exists()


def test_snapshots(log: Path, tmp_path: Path) -> None:
    url, copy = tmp_path / "snapshots", tmp_path / "copy"
    made = called("snapshot", "create", url, "--data-dir", log)
    synced = called(
        "snapshot", "sync", url, "--data-dir", copy, env={"RECON_NODE_NETWORK": "local-7"}
    )
    assert (synced["state"], synced["new"], synced["faults"]) == ("done", 20, [])
    found = called("snapshot", "verify", url)
    assert (found["name"], found["sound_events"], found["faults"]) == (made["name"], 20, [])
    assert called("snapshot", "gc", url)["snapshots_deleted"] == 0


def test_keys_and_settings(tmp_path: Path) -> None:
    key = called("key", "new", tmp_path / "my.key")
    assert key["did"].startswith("did:key:z6Mk")
    assert called("key", "show", tmp_path / "my.key") == key
    home = {"RECON_NODE_DATA_DIR": str(tmp_path)}
    own = called("dag", "key", env=home)["did"]
    grant = called("dag", "grant", key["did"], env=home)
    assert (grant["issuer"], grant["audience"], grant["expires"]) == (own, key["did"], None)
    checked = called("config", "check", "--network", "local-7", env={"RECON_NODE_NOTHING": "1"})
    assert checked == {
        "ok": True,
        "settings": ["network"],
        "unknown_variables": ["RECON_NODE_NOTHING"],
    }
    wrong = invoked("config", "check", "--network", "nonsense")
    assert (wrong.exit_code, wrong.stdout) == (2, "")


def test_a_running_node(node: TestnetNode, sample: list[dict[str, str]], tmp_path: Path) -> None:
    env = {"RECON_NODE_URL": node.api_url}
    file = tmp_path / "events"
    file.write_text(f"{sample[0]['car']}\nnonsense\n")
    sent = called("events", "add", file, exit_code=1, env=env)
    assert (sent["complete"], sent["events"], sent["refused"]) == (True, 2, 1)
    assert [each["line"] for each in sent["refusals"]] == [2]
    cid = sample[0]["cid"]
    assert called("events", "get", cid, env=env) == {"id": cid, "data": sample[0]["car"]}
    assert called("events", "get", cid, "--show", env=env)["cid"] == cid
    both = invoked("events", "get", cid, "--car", "-", env=env)
    assert (both.exit_code, both.stdout) == (2, "")

    interest = {"sep": "model", "sepValue": "kh4q0ozorrgaq2mezktnrmdwleo1d"}
    added = called("interests", "add", interest["sepValue"], env=env)
    assert added["added"] == interest
    assert [each["sepValue"] for each in added["interests"]] == [interest["sepValue"]]
    removed = called("interests", "remove", interest["sepValue"], env=env)
    assert removed == {"removed": interest, "interests": []}
    failed = invoked("peers", "add", "nowhere", env=env)
    assert (failed.exit_code, failed.stdout, failed.stderr[:7]) == (1, "", "Error: ")
