"""`recon-node store`: on the logs of stopped nodes, and refused beside a running one."""

import base64
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from select import select
from typing import Any

import pytest
from cli_run import Events, damage_last_event, run
from click.testing import Result
from support import forking

from recon_node.ceramic import Event, Shard, parse_event
from recon_node.ipld import CID, car, encode_varint, multibase
from recon_node.store.db import log_schema
from recon_node.testnet import TestnetNode


def store(directory: Path, *args: object, **options: Any) -> Result:
    return run("store", *args, "--data-dir", directory, **options)


def test_a_log_is_described_checked_compacted_and_copied(log: Path, tmp_path: Path) -> None:
    info = store(log, "info").stdout
    for part in ("local-7", "events                     60", "delivered (feed head)      60"):
        assert part in info
    assert store(log, "check").stdout.startswith("sound: 60 events (")
    assert "0 unused blocks removed" in store(log, "compact").stdout
    file = tmp_path / "events.car"
    result = store(log, "export", file)
    assert (result.stdout, result.stderr) == ("", "60 events exported\n")
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == ["events.car"]
    assert store(log, "export", "-").stdout_bytes == file.read_bytes()
    copy = tmp_path / "copy"
    for counts in ("60 new, 0 known", "0 new, 60 known"):
        result = store(copy, "import", "-", data=file.read_bytes())
        assert result.stdout.startswith(f"60 events: {counts}, 0 refused, in ")
    assert store(copy, "check").stdout == store(log, "check").stdout


def test_an_upgrade_of_the_log_is_not_part_of_the_answer(log, monkeypatch):
    export = store(log, "export", "-").stdout_bytes
    monkeypatch.setattr(log_schema, "MIGRATIONS", (*log_schema.MIGRATIONS, "-- nothing"))
    result = store(log, "export", "-")
    assert "Bringing the event log up to date" in result.stderr
    assert result.stdout_bytes == export


def test_an_export_whose_reader_leaves_says_nothing(log: Path) -> None:
    """It blamed the event log for the broken pipe."""
    command = [sys.executable, "-m", "recon_node", "store", "export", "-", "--data-dir", log]
    with forking.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 1)


def test_damage_is_reported_and_repaired(log: Path) -> None:
    damage_last_event(log)
    error = store(log, "check", code=1).stderr
    for part in ("events: row 60, ", "damaged: 1 fault\n", "recon-node store check --repair"):
        assert part in error
    repaired = store(log, "check", "--repair").stdout
    for part in (
        "lost, but peers will send it again: ",
        "repaired: 59 events saved, 1 lost; feed positions changed: the new",
        "sound: 59 events",
        str(log / "events.sqlite3.damaged-1"),
    ):
        assert part in repaired
    store(log, "check")


def test_only_a_part_is_exported(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "part.car"
    nothing = store(log, "export", file, "--sort-value", "nothing", code=1)
    assert "none of the 60 events" in nothing.stderr
    assert not file.exists()
    alone = store(log, "export", file, "--controller", "did:key:z6Mk", code=2)
    assert "give that, too" in alone.stderr


def test_shards_are_exported(log: Path, tmp_path: Path, sample: Events) -> None:
    """Of one model, two halves that have nothing in common and are all of it together."""
    model = "kjzl6hvfrbw6ca7ij9jjbjqkjn08sd2af34jn0c801nk0zpbi49g8fstdbh7z12"
    parts = []
    for shard in (["--controllers", "1/2"], ["--controllers", "80..ff"], []):
        file = tmp_path / f"part{len(parts)}.car"
        store(log, "export", file, "--sort-value", model, *shard)
        parts.append({event.cid: event for event in exported(file, sample)})
    first, second, whole = parts
    assert first.keys() | second.keys() == whole.keys()
    assert first.keys().isdisjoint(second)
    inits = [event.header for event in first.values() if event.header is not None]
    assert inits
    assert all(Shard.of(1, 2).covers(header.controller) for header in inits)
    wrong = ("--sort-value", model, "--controllers", "5/4")
    assert "there is no shard 5/4" in store(log, "export", "x.car", *wrong, code=2).stderr


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
    store(log, "export", file)
    good = file.read_bytes()
    error = store(log, "export", file, code=1).stderr
    assert "already exists: choose another name, or use --force" in error
    store(log, "export", file, "--force")
    assert file.read_bytes() == good
    store(log, "export", file, "--force", "--sort-value", "nothing", code=1)
    assert file.read_bytes() == good
    with closing(sqlite3.connect(log / "events.sqlite3")) as connection:
        connection.executescript("DELETE FROM events; DELETE FROM cars; DELETE FROM streams")
    assert "holds no events" in store(log, "export", file, "--force", code=1).stderr
    assert file.read_bytes() == good
    assert store(log, "export", "-", code=1).stdout_bytes == b""
    store(log, "export", tmp_path, code=2)  # a directory
    nowhere = store(log, "export", tmp_path / "not there" / "x.car", code=1)
    assert "cannot be written: No such file or directory" in nowhere.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"log", "backup.car"}


def test_without_a_log_nothing_is_created(tmp_path: Path) -> None:
    for command in (["info"], ["check"], ["compact"], ["export", tmp_path / "x.car"]):
        for directory in (tmp_path, tmp_path / "not there"):
            assert "--data-dir" in store(directory, *command, code=1).stderr
        assert {path.name for path in tmp_path.iterdir()} <= {"lock"}


def test_the_log_of_a_running_node_is_left_alone(node: TestnetNode) -> None:
    for command in (["info"], ["check", "--repair"], ["compact"], ["export", "x.car"]):
        assert "in use by process" in store(node.data_dir, *command, code=1).stderr
    store(node.data_dir, "import", "-", data=b"garbage", code=1)


@pytest.mark.parametrize("form", ["kubo", "one CAR", "lines", "CARs", "ceramic-one"])
def test_history_is_imported_in_any_form(tmp_path: Path, sample: Events, form: str) -> None:
    """From a directory or CAR of blocks, as kubo and js-ceramic keep them, or files of events."""
    cars = [multibase.decode(event["car"]) for event in sample[:60]]
    blocks = {cid: block for one in cars for cid, block in car.decode(one).blocks.items()}
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
        for number, event_car in enumerate(cars):
            (source / f"{number}.car").write_bytes(event_car)
    log = tmp_path / "log"
    for counts in ("60 new, 0 known", "0 new, 60 known"):
        result = store(log, "import", source, "--network", "local-7")
        assert result.stdout.startswith(f"60 events: {counts}, 0 refused, in ")
    store(log, "check")
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


def test_directories_and_databases_without_events_are_refused(tmp_path, sample):
    """Kubo's other datastores, for instance. A database beside blocks is not one of them."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "000001.vlog").write_bytes(b"badger")
    other = source / "other.sqlite"
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE x (y)")
    log = tmp_path / "log"
    for path, reason in ((source, "has no events"), (other, "not that of a ceramic-one node")):
        assert reason in store(log, "import", path, "--network", "local-7", code=1).stderr
    (source / "an event.car").write_bytes(multibase.decode(sample[0]["car"]))
    (source / "README.txt").write_text("Blocks of a node.\n")
    done = store(log, "import", source, "--network", "local-7")
    assert "1 new" in done.stdout
    assert f"left out: {source / 'README.txt'} has no events" in done.stderr


def test_a_file_of_events_that_is_damaged_is_refused_with_the_line(tmp_path, sample) -> None:
    lines, log = tmp_path / "events.jsonl", tmp_path / "log"
    for second, reason in (("mAAAA", " is damaged: not a CAR"), ("{}", ": ")):
        lines.write_text(f"{sample[0]['car']}\n{second}\n")
        error = store(log, "import", lines, "--network", "local-7", code=1).stderr
        assert f"events.jsonl, line 2{reason}" in error
    with closing(sqlite3.connect(tmp_path / "db")) as database, database:
        database.execute("CREATE TABLE ceramic_one_block (bytes)")
        database.execute("INSERT INTO ceramic_one_block VALUES (5), ('text'), (x'a0')")
    said = store(log, "import", tmp_path / "db", code=1).stderr
    assert "has no events" in said
    assert f"left out: 2 rows of ceramic_one_block in {tmp_path / 'db'}, which are not" in said


def test_a_file_that_is_not_an_export_is_refused(tmp_path: Path, sample: Events) -> None:
    (tmp_path / "x").write_text("hello\n" * 20)
    assert "has no events" in store(tmp_path / "log", "import", tmp_path / "x", code=1).stderr
    event = multibase.decode(sample[0]["car"])
    error = store(tmp_path, "import", "-", data=event, code=1).stderr
    assert "was not written by `recon-node store export`" in error
    assert "recon-node events add" in error


def test_an_import_that_waits_for_its_input_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recon_node", "store", "import", "-", "--data-dir", tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forking.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write(encode_varint(1_000_000) + bytes(300_000))  # no pipe holds that
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        while not select([process.stderr], [], [], 1)[0]:
            process.send_signal(signal.SIGINT)  # Python misses one between two reads of its own
        assert process.wait(60) == 130
        assert process.stderr.read() == b"Aborted!\n"
    assert list(tmp_path.iterdir()) == []
