"""`recon-node store`: on the logs of stopped nodes, and refused beside a running one."""

from __future__ import annotations

import base64
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from recon_node.ceramic import Event, Network, Shard, parse_event
from recon_node.cli import main
from recon_node.ipld import CID, car, multibase
from recon_node.store import StoreSettings, open_store
from recon_node.testnet import TestnetNode

Events = list[dict[str, str]]
NETWORK = Network.local(7)


def run(directory: Path, *args: str, data: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["store", *args, "--data-dir", str(directory)], input=data)


@pytest.fixture
def log(tmp_path: Path, sample: Events) -> Path:
    """The log of a node that has stopped."""
    directory = tmp_path / "log"

    async def fill() -> None:
        async with open_store(directory, NETWORK, settings=StoreSettings(verifiers=0)) as store:
            await store.admit_local([multibase.decode(event["car"]) for event in sample[:60]])

    trio.run(fill)
    return directory


def test_a_log_is_described_checked_compacted_and_copied(log: Path, tmp_path: Path) -> None:
    result = run(log, "info")
    assert result.exit_code == 0, result.output
    for part in ("local-7", "events                     60", "delivered (feed head)      60"):
        assert part in result.stdout
    result = run(log, "check")
    assert (result.exit_code, result.stdout[:18]) == (0, "sound: 60 events (")
    result = run(log, "compact")
    assert result.exit_code == 0
    assert "0 unused blocks removed" in result.stdout
    file = tmp_path / "events.car"
    result = run(log, "export", str(file))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "60 events exported\n")
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == ["events.car"]
    piped = run(log, "export", "-")
    assert piped.stdout_bytes == file.read_bytes()
    copy = tmp_path / "copy"
    for counts in ("60 new, 0 known", "0 new, 60 known"):
        result = run(copy, "import", "-", data=file.read_bytes())
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"60 events: {counts}, 0 refused, in ")
    assert run(copy, "check").stdout == run(log, "check").stdout


def test_damage_is_reported_and_repaired(log: Path) -> None:
    with closing(sqlite3.connect(log / "events.sqlite3")) as connection:
        connection.execute("UPDATE cars SET car = x'00' WHERE id = 60")
        connection.commit()
    result = run(log, "check")
    assert result.exit_code == 1
    assert "events: row 60, " in result.stderr
    assert "damaged: 1 fault\n" in result.stderr
    assert "recon-node store check --repair" in result.stderr
    result = run(log, "check", "--repair")
    assert result.exit_code == 0, result.output
    assert "lost, but peers will send it again: " in result.stdout
    assert "repaired: 59 events saved, 1 lost; feed positions changed: the new" in result.stdout
    assert "sound: 59 events" in result.stdout
    assert str(log / "events.sqlite3.damaged-1") in result.stdout
    assert run(log, "check").exit_code == 0


def test_only_a_part_is_exported(log: Path, tmp_path: Path, sample: Events) -> None:
    file = str(tmp_path / "part.car")
    result = run(log, "export", file, "--sort-value", "nothing")
    assert result.exit_code == 1
    assert "none of the 60 events" in result.stderr
    assert not (tmp_path / "part.car").exists()
    result = run(log, "export", file, "--controller", "did:key:z6Mk")
    assert result.exit_code == 2
    assert "give that, too" in result.stderr


def test_shards_are_exported(log: Path, tmp_path: Path, sample: Events) -> None:
    """Of one model, two halves that have nothing in common and are all of it together."""
    model = "kjzl6hvfrbw6ca7ij9jjbjqkjn08sd2af34jn0c801nk0zpbi49g8fstdbh7z12"
    parts = []
    for shard in (["--controllers", "1/2"], ["--controllers", "80..ff"], []):
        file = tmp_path / f"part{len(parts)}.car"
        result = run(log, "export", str(file), "--sort-value", model, *shard)
        assert result.exit_code == 0, result.output
        parts.append({event.cid: event for event in exported(file, sample)})
    first, second, whole = parts
    assert first.keys() | second.keys() == whole.keys()
    assert first.keys().isdisjoint(second)
    inits = [event.header for event in first.values() if event.header is not None]
    assert inits
    assert all(Shard.of(1, 2).covers(header.controller) for header in inits)
    refused = run(log, "export", "x.car", "--sort-value", model, "--controllers", "5/4")
    assert (refused.exit_code, "there is no shard 5/4" in refused.stderr) == (2, True)


def exported(file: Path, sample: Events) -> list[Event]:
    """The events of the sample that a CAR has."""
    blocks = car.decode(file.read_bytes()).blocks
    return [
        parse_event(multibase.decode(event["car"]))
        for event in sample
        if CID.parse(event["cid"]) in blocks
    ]


def test_a_good_export_is_not_overwritten(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.car"
    assert run(log, "export", str(file)).exit_code == 0
    good = file.read_bytes()
    result = run(log, "export", str(file))
    assert result.exit_code == 1
    assert "already exists: choose another name, or use --force" in result.stderr
    assert run(log, "export", str(file), "--force").exit_code == 0
    assert file.read_bytes() == good
    result = run(log, "export", str(file), "--force", "--sort-value", "nothing")
    assert (result.exit_code, file.read_bytes()) == (1, good)
    with closing(sqlite3.connect(log / "events.sqlite3")) as connection:
        connection.executescript("DELETE FROM events; DELETE FROM cars; DELETE FROM streams")
    result = run(log, "export", str(file), "--force")
    assert (result.exit_code, file.read_bytes()) == (1, good)
    assert "holds no events" in result.stderr
    assert run(log, "export", "-").stdout_bytes == b""
    assert run(log, "export", str(tmp_path)).exit_code == 2, "a directory"
    result = run(log, "export", str(tmp_path / "not there" / "x.car"))
    assert result.exit_code == 1
    assert "cannot be written: No such file or directory" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"log", "backup.car"}


@pytest.mark.parametrize("command", ["info", "check", "compact", "export"])
def test_without_a_log_nothing_is_created(tmp_path: Path, command: str) -> None:
    arguments = [str(tmp_path / "x.car")] if command == "export" else []
    for directory in (tmp_path, tmp_path / "not there"):
        result = run(directory, command, *arguments)
        assert result.exit_code == 1
        assert "--data-dir" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"lock"}


def test_the_log_of_a_running_node_is_left_alone(node: TestnetNode, tmp_path: Path) -> None:
    for command in (["info"], ["check", "--repair"], ["compact"], ["export", "x.car"]):
        result = run(node.data_dir, *command)
        assert result.exit_code == 1
        assert "in use by process" in result.stderr
    result = run(node.data_dir, "import", "-", data=b"garbage")
    assert result.exit_code == 1


@pytest.mark.parametrize("form", ["kubo", "one CAR", "lines", "CARs", "ceramic-one"])
def test_history_is_imported_in_any_form(tmp_path: Path, sample: Events, form: str) -> None:
    """From a directory or CAR of blocks, as kubo and js-ceramic keep them, or files of events."""
    cars = [multibase.decode(event["car"]) for event in sample[:60]]
    blocks = {cid: block for each in cars for cid, block in car.decode(each).blocks.items()}
    source = tmp_path / "source"
    source.mkdir()
    if form == "kubo":
        for cid, block in blocks.items():
            name = base64.b32encode(b"\x12\x20" + cid.digest).decode().rstrip("=")
            (source / name[-3:-1]).mkdir(exist_ok=True)
            (source / name[-3:-1] / f"{name}.data").write_bytes(block)
        (source / "version").write_text("5")
    elif form == "one CAR":
        source = source / "dag.car"
        source.write_bytes(car.encode([next(iter(blocks))], blocks))
    elif form == "lines":
        source = source / "events.jsonl"
        source.write_text("".join(f"{event['car']}\n" for event in reversed(sample[:60])))
    elif form == "ceramic-one":
        source = source / "db.sqlite3"
        fill_ceramic_one(source, blocks)
    else:
        for number, each in enumerate(cars):
            (source / f"{number}.car").write_bytes(each)
    log = tmp_path / "log"
    for counts in ("60 new, 0 known", "0 new, 60 known"):
        result = run(log, "import", str(source), "--network", "local-7")
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"60 events: {counts}, 0 refused, in ")
    assert run(log, "check").exit_code == 0
    assert {path.name for path in log.iterdir() if path.is_dir()} == set(), "nothing is left"


def fill_ceramic_one(path: Path, blocks: dict[CID, bytes]) -> None:
    """Make a database with blocks as ceramic-one 0.58 does it: migrations/sqlite in its source,
    20240321211121_block.up.sql."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE ceramic_one_block ("
            "multihash BLOB NOT NULL, bytes BLOB NOT NULL, PRIMARY KEY(multihash))"
        )
        rows = [(b"\x12\x20" + cid.digest, block) for cid, block in blocks.items()]
        database.executemany("INSERT INTO ceramic_one_block VALUES (?, ?)", rows)


def test_directories_and_databases_without_events_are_refused(
    tmp_path: Path, sample: Events
) -> None:
    """Kubo's other datastores, for instance. A database beside blocks is not one of them."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "000001.vlog").write_bytes(b"badger")
    other = source / "other.sqlite"
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE x (y)")
    for path, reason in ((source, "has no events"), (other, "not that of a ceramic-one node")):
        result = run(tmp_path / "log", "import", str(path), "--network", "local-7")
        assert result.exit_code == 1
        assert reason in result.stderr
    (source / "an event.car").write_bytes(multibase.decode(sample[0]["car"]))
    result = run(tmp_path / "log", "import", str(source), "--network", "local-7")
    assert result.stdout.startswith("1 events: 1 new") or result.stdout.startswith("1 event: 1 new")


def test_a_file_without_events_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello\n" * 20)
    result = run(tmp_path / "log", "import", str(tmp_path / "x"))
    assert result.exit_code == 1
    assert "has no events" in result.stderr


def test_a_file_that_is_not_an_export_is_refused(tmp_path: Path, sample: Events) -> None:
    result = run(tmp_path, "import", "-", data=multibase.decode(sample[0]["car"]))
    assert result.exit_code == 1
    assert "was not written by `recon-node store export`" in result.stderr
    assert "recon-node events add" in result.stderr
