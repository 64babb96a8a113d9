"""`--json`: every command with a result has it, and prints nothing else to standard output."""

from collections.abc import Iterator
from pathlib import Path

import click
from cli_run import Events, damage_last_event, error_of, json_of

from recon_node.cli import main as recon_node
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
    for child in group.list_commands(context):
        command = group.get_command(context, child)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{name} {child}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {child}")


COMMANDS = {**dict(commands(recon_node, "recon-node")), **dict(commands(spark_sink, "spark-sink"))}


def test_every_command_prints_json_or_says_why_not() -> None:
    without = {
        name
        for name, command in COMMANDS.items()
        if not any(
            "--json" in parameter.opts for parameter in command.get_params(click.Context(command))
        )
    }
    assert without == set(WITHOUT_JSON)


def test_the_log_of_a_stopped_node(log: Path, tmp_path: Path) -> None:
    of = ("--data-dir", log)
    info = json_of("store", "info", *of)
    assert (info["network"], info["events"], info["head"]) == ("local-7", 60, 60)
    assert json_of("store", "compact", *of)["blocks_removed"] == 0
    file = tmp_path / "all.car"
    assert json_of("store", "export", file, *of) == {"file": str(file), "events": 60}
    taken = json_of("store", "import", file, "--data-dir", tmp_path / "copy")
    assert (taken["events"], taken["new"], taken["refusals"]) == (60, 60, [])
    both = error_of("store", "export", "-", *of, "--json", code=2)
    assert "name a file, not -" in both


def test_a_damaged_log(log: Path) -> None:
    check = ("store", "check", "--data-dir", log)
    sound = json_of(*check)
    assert (sound["sound"], sound["delivered"], sound["repaired"]) == (True, 60, None)
    damage_last_event(log)
    damaged = json_of(*check, code=1)
    assert (damaged["sound"], damaged["fault_count"]) == (False, 1)
    assert damaged["faults"][0]["where"] == "events"
    mended = json_of(*check, "--repair")
    assert (mended["sound"], mended["events"]) == (True, 59)
    assert len(mended["repaired"]["lost"]) == 1
    assert Path(mended["repaired"]["damaged_file"]).exists()


def test_snapshots(log: Path, tmp_path: Path) -> None:
    url, copy = tmp_path / "snapshots", tmp_path / "copy"
    made = json_of("snapshot", "create", url, "--data-dir", log)
    sync = ("snapshot", "sync", url, "--data-dir", copy)
    synced = json_of(*sync, RECON_NODE_NETWORK="local-7")
    assert (synced["state"], synced["new"], synced["faults"]) == ("done", 60, [])
    report = json_of("snapshot", "verify", url)
    assert (report["name"], report["sound_events"], report["faults"]) == (made["name"], 60, [])
    assert json_of("snapshot", "gc", url)["snapshots_deleted"] == 0


def test_keys_and_settings(tmp_path: Path) -> None:
    key = json_of("key", "new", tmp_path / "my.key")
    assert key["did"].startswith("did:key:z6Mk")
    assert json_of("key", "show", tmp_path / "my.key") == key
    home = {"RECON_NODE_DATA_DIR": str(tmp_path)}
    own = json_of("dag", "key", **home)["did"]
    grant = json_of("dag", "grant", key["did"], **home)
    assert (grant["issuer"], grant["audience"], grant["expires"]) == (own, key["did"], None)
    checked = json_of("config", "check", "--network", "local-7", RECON_NODE_NOTHING="1")
    unknown = ["RECON_NODE_NOTHING"]
    assert checked == {"ok": True, "settings": ["network"], "unknown_variables": unknown}
    error_of("config", "check", "--network", "nonsense", "--json", code=2)


def test_a_running_node(node: TestnetNode, sample: Events, tmp_path: Path) -> None:
    file = tmp_path / "events"
    file.write_text(f"{sample[0]['car']}\nnonsense\n")
    sent = json_of("events", "add", file, node=node, code=1)
    assert (sent["complete"], sent["events"], sent["refused"]) == (True, 2, 1)
    assert [refusal["line"] for refusal in sent["refusals"]] == [2]
    cid = sample[0]["cid"]
    assert json_of("events", "get", cid, node=node) == {"id": cid, "data": sample[0]["car"]}
    assert json_of("events", "get", cid, "--show", node=node)["cid"] == cid
    error_of("events", "get", cid, "--car", "-", "--json", node=node, code=2)

    interest = {"sep": "model", "sepValue": "kh4q0ozorrgaq2mezktnrmdwleo1d"}
    added = json_of("interests", "add", interest["sepValue"], node=node)
    assert added["added"] == interest
    assert [interest["sepValue"] for interest in added["interests"]] == [interest["sepValue"]]
    removed = json_of("interests", "remove", interest["sepValue"], node=node)
    assert removed == {"removed": interest, "interests": []}
    assert error_of("peers", "add", "nowhere", "--json", node=node).startswith("Error: ")
