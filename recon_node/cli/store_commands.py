"""`recon-node store`: looking after the event log of a node."""

import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import click
import trio

from recon_node.base.errors import reason_of, unwrapped
from recon_node.base.files import SQLITE_HEAD
from recon_node.base.terminal import (
    FILE_OR_DASH,
    CommandError,
    counted,
    echo,
    human_size,
    json_option,
    keep_stdout_for_json,
    one_line,
    print_json,
    print_result,
)
from recon_node.ceramic import MAX_CAR_SIZE, EventIdError, Network, Shard, StreamId, StreamIdError
from recon_node.cli.command import complete_file, intake_text, print_first, step_bar
from recon_node.cli.config import DataDirCommand
from recon_node.cli.streams.event_file import NoEventsError, read_items
from recon_node.ipld import IpldError, car, multibase
from recon_node.ipld.car import BEGINNING_SIZE, looks_like_car, read_layout, sections, without_v2
from recon_node.settings import Settings
from recon_node.store import Interest, Policy, StoreError
from recon_node.store.db.log_schema import FILE_NAME
from recon_node.store.directory_lock import directory_lock
from recon_node.store.maintenance import (
    ImportResult,
    NoExportError,
    Progress,
    Repaired,
    Report,
    check_log,
    compact_log,
    export_events,
    find_log,
    forget_streams,
    import_events,
    import_history,
    network_of,
    read_info,
    repair_log,
    streams_in,
)


@click.group()
def store() -> None:
    """Maintain the event log of a node: check it, compact it, forget, export and import events.

    Stop the node first: the commands refuse to work while one runs on the data directory.
    """


@store.command("info", cls=DataDirCommand)
@json_option
def info(settings: Settings, as_json: bool) -> None:
    """Show the contents of the log.

    \b
    Example:
      recon-node store info --data-dir /var/lib/recon-node
    """
    with _locked(settings) as directory:
        log = read_info(directory)
    facts = {"file": str(log.path), "network": log.network.name, "schema_version": log.schema}
    counts = ("epoch", "events", "head", "waiting", "pending", "shared_blocks", "refused")
    facts |= {name: getattr(log, name) for name in counts}
    if as_json:
        print_json({**facts, "bytes": log.size, "bytes_free": log.free})
        return
    facts["size"] = f"{human_size(log.size)}, {human_size(log.free)} of it free"
    names = {
        "schema_version": "schema version",
        "head": "delivered (feed head)",
        "waiting": "waiting for their history",
        "shared_blocks": "shared blocks",
        "refused": "remembered as refused",
    }
    for name, value in facts.items():
        number = isinstance(value, int) and name != "schema_version"
        echo(f"{names.get(name, name):<26} {f'{value:,}' if number else value}")


@store.command("check", cls=DataDirCommand)
@click.option(
    "--repair", is_flag=True, help="Build a sound log from what can be read; keep the damaged file."
)
@json_option
def check(settings: Settings, repair: bool, as_json: bool) -> None:
    """Check that the log is sound: pages, indexes, every event, the order of the feed.

    Exit code 1 if anything is wrong. --repair builds a sound log from all events that can be read,
    and keeps the damaged file under another name. Events that cannot be read are listed; peers send
    them again. If one of them was in the feed, the log gets a new epoch, which tells readers of the
    feed to start again, because a feed position never changes its event.

    \b
    Examples:
      recon-node store check
      recon-node store check --repair
    """
    repaired: Repaired | None = None
    guarded = Policy.of(settings.policy).decides_by_name
    with _locked(settings) as directory, step_bar() as progress:
        report = check_log(directory, progress)
        if repair and not report.clean:
            _print_faults(report)
            run = partial(repair_log, directory, progress=progress, guarded=guarded)
            with unwrapped():
                repaired = trio.run(run)
            for line in _repair_lines(repaired):
                echo(line, err=as_json)
            report = check_log(directory, progress)
    _print_faults(report)
    if not report.clean and not repair:
        echo("run `recon-node store check --repair` to save what can be read", err=True)
    if as_json:
        done = None if repaired is None else _repair_facts(repaired)
        print_json({"sound": report.clean, **asdict(report), "repaired": done})
    elif report.clean:
        echo(
            f"sound: {counted(report.events, 'event')} ({human_size(report.bytes)}), "
            f"{report.delivered:,} delivered, keys {report.sha256a}"
        )
    if not report.clean:
        sys.exit(1)


def _print_faults(report: Report) -> None:
    lines = (f"{fault.where}: {fault.message}" for fault in report.faults)
    print_first(lines, report.fault_count, " faults")
    if not report.clean:
        echo(f"damaged: {counted(report.fault_count, 'fault')}", err=True)


def _repair_facts(repaired: Repaired) -> dict[str, Any]:
    return {
        "events": repaired.events,
        "lost": list(map(str, repaired.lost)),
        "refused": [
            {"event_id": None if event_id is None else str(event_id), "reason": reason}
            for event_id, reason in repaired.refused
        ],
        "unreadable_rows": repaired.nameless,
        "epoch": repaired.epoch,
        "epoch_kept": repaired.epoch_kept,
        "damaged_file": str(repaired.damaged_file),
    }


def _repair_lines(repaired: Repaired) -> Iterator[str]:
    for event_id in repaired.lost:
        yield f"lost, but peers will send it again: {event_id}"
    for name, reason in repaired.refused:
        yield f"invalid, left out: {name or 'an event'}: {reason}"
    if repaired.nameless:
        yield f"{counted(repaired.nameless, 'row')} could not be read at all"
    epoch = f"feed positions changed: the new epoch is {repaired.epoch}"
    if repaired.epoch_kept:
        epoch = "all feed positions are unchanged"
    yield (
        f"repaired: {counted(repaired.events, 'event')} saved, {len(repaired.lost):,} lost; "
        f"{epoch}. The damaged file is kept as {repaired.damaged_file}"
    )


@store.command("compact", cls=DataDirCommand)
@json_option
def compact(settings: Settings, as_json: bool) -> None:
    """Rewrite the log without free pages and unused blocks.

    This needs as much free disk space as the log takes. Feed and epoch stay the same.

    \b
    Example:
      recon-node store compact
    """
    with _locked(settings) as directory, step_bar() as progress:
        done = compact_log(directory, progress)
    facts = {"bytes_before": done.before, "bytes_after": done.after}
    print_result(
        {**facts, "blocks_removed": done.blocks_removed},
        f"{human_size(done.before)} before, {human_size(done.after)} after; "
        f"{counted(done.blocks_removed, 'unused block')} removed",
        as_json=as_json,
    )


@store.command("forget", cls=DataDirCommand)
@click.argument("whom", nargs=-1, required=True, metavar="STREAM|CONTROLLER...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def forget(whom: tuple[str, ...], yes: bool, settings: Settings, as_json: bool) -> None:
    """Remove the bytes of streams for good, and keep the keys of their events.

    Name a stream by its StreamID, or all streams of a controller by its DID. Events keep their keys
    and feed positions, so that the node still has the same set as its peers, and does not fetch
    them again. Of later events of these streams, only the keys are stored. Peers, snapshots and
    backups still have the events: docs/operations.md lists the remaining copies.

    \b
    Examples:
      recon-node store forget kjzl6kcym7w8y...
      recon-node store forget did:key:z6Mk... --yes
    """
    with _locked(settings) as directory, step_bar() as progress:
        try:
            streams = streams_in(directory, whom)
        except StreamIdError as error:
            raise click.BadParameter(str(error), param_hint="'STREAM|CONTROLLER'") from None
        if not yes:
            text = f"Remove the events of {counted(len(streams), 'stream')} from {directory}?"
            click.confirm(text, abort=True, err=True)
        done = forget_streams(directory, streams, progress)
    print_result(
        asdict(done),
        f"{counted(done.streams, 'stream')} forgotten: the bytes of "
        f"{counted(done.events, 'event')} are removed, and their keys stay",
        as_json=as_json,
    )
    for name in done.still_there:
        echo(f"{name} may still have them: delete it", err=True)


@store.command("export", cls=DataDirCommand)
@click.argument("file", type=FILE_OR_DASH)
@click.option(
    "--sort-value", metavar="VALUE", help="Export only events with this sort value (a model)."
)
@click.option(
    "--sort-key", metavar="KEY", default="model", show_default=True, help="The sort key of VALUE."
)
@click.option("--controller", metavar="DID", help="Export only events of this controller.")
@click.option(
    "--controllers", metavar="SHARD", help="Export only events of a shard: 1/4, or 00..3f."
)
@click.option("--stream", metavar="STREAM_ID", help="Export only events of this stream.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@json_option
def export(
    file: Path, settings: Settings, force: bool, as_json: bool, **interest: str | None
) -> None:
    """Write all events to FILE (- for standard output) as one CAR, in feed order.

    Any CAR tool can read it: its root is a manifest that links to everything, and it has each block
    once. `recon-node store import` imports it.

    FILE appears when the export is complete. An existing file is replaced only with --force, and
    never with an empty export: exporting nothing is an error.

    \b
    Examples:
      recon-node store export backup.car
      recon-node store export - --sort-value k... --controller did:key:z... | zstd > part.car.zst
      recon-node store export quarter.car --sort-value k... --controllers 1/4
    """
    keep_stdout_for_json(as_json, file)
    wanted = _interests(**interest)
    with (
        _locked(settings) as directory,
        complete_file(file, force=force) as out,
        step_bar() as progress,
    ):
        events = export_events(directory, out, wanted, progress)
    if as_json:
        print_json({"file": str(file), "events": events})
    else:
        echo(f"{counted(events, 'event')} exported", err=True)


@store.command("import", cls=DataDirCommand)
@click.argument("source", type=click.Path(exists=True, allow_dash=True, path_type=Path))
@click.option(
    "--network", metavar="NAME", help="Network of a new log, if SOURCE does not name one."
)
@json_option
def import_(source: Path, settings: Settings, as_json: bool) -> None:
    """Import the events of SOURCE (- for standard input).

    SOURCE is an export of a log; or any CAR, a file with an event in each line, or the database of
    a ceramic-one node; or a directory of such files or of blocks, as kubo and js-ceramic keep them
    (flatfs): what `ceramic-one migrations from-ipfs` reads.

    Each event is checked: its blocks, signatures and history, and by a running node its anchors.
    Write policies and interests do not apply, and events that were signed in a session which has
    expired since are accepted. Events that the log already has are skipped, so an interrupted
    import can simply be run again. If there is no log yet, one is created.

    Exit code 1 if any event was refused.

    \b
    Examples:
      recon-node store import backup.car --data-dir /var/lib/recon-node
      zstd -d < part.car.zst | recon-node store import -
      recon-node store import ~/.ipfs/blocks --network mainnet
      recon-node store import ~/.ceramic-one/db.sqlite3 --network mainnet
    """
    started = time.monotonic()
    with one_line(StoreError, OSError), step_bar() as progress, unwrapped():
        intake = _import(source, settings, progress)
    seconds = time.monotonic() - started
    counts = intake.counts
    lines = (f"refused: {event}: {reason}" for event, reason in intake.refused)
    print_first(lines, counts["refused"], " were refused")
    facts = {
        "events": counts.total(),
        **{verdict: counts[verdict] for verdict in ("new", "known", "refused")},
        "refusals": [{"event_id": str(event), "reason": why} for event, why in intake.refused],
        "seconds": round(seconds, 3),
    }
    print_result(facts, intake_text(counts, seconds), as_json=as_json)
    if counts["refused"]:
        sys.exit(1)


def _import(source: Path, settings: Settings, progress: Progress) -> ImportResult:
    data_dir, guarded = settings.data_dir, Policy.of(settings.policy).decides_by_name
    if not source.is_dir():
        try:
            with sys.stdin.buffer if str(source) == "-" else source.open("rb") as file:
                run = partial(import_events, data_dir, file, progress=progress, guarded=guarded)
                return trio.run(run)
        except NoExportError:
            if not source.is_file():
                raise
    log = data_dir / FILE_NAME
    network = network_of(log) if log.exists() else Network.parse(settings.network)
    read = partial(import_history, guarded=guarded)
    result = trio.run(read, data_dir, network, read_blocks(source), progress)
    if not result.events:
        raise CommandError(
            f"{source} has no events that this command can read. Of kubo's datastores it reads "
            "flatfs; of others, give it the CARs that `ipfs dag export` writes"
        )
    return result


@contextmanager
def _locked(settings: Settings) -> Iterator[Path]:
    """Yield the data directory, locked; turn errors into one line."""
    directory = settings.data_dir
    with one_line(StoreError, OSError):
        if not directory.is_dir():
            raise StoreError(f"the data directory {directory} does not exist; see --data-dir")
        with directory_lock(directory):
            find_log(directory)
            yield directory


def _interests(
    sort_key: str | None,
    sort_value: str | None,
    controller: str | None,
    controllers: str | None,
    stream: str | None,
) -> list[Interest]:
    if sort_value is None:
        narrowing = {"controller": controller, "controllers": controllers, "stream": stream}
        for name, value in narrowing.items():
            if value is not None:
                raise click.UsageError(f"--{name} narrows --sort-value: give that, too")
        return []
    try:
        shard = None if controllers is None else Shard.parse(controllers)
        stream_id = None if stream is None else StreamId.parse(stream)
        return [Interest(sort_key or "", sort_value, controller, stream_id, shard)]
    except (ValueError, EventIdError) as error:
        raise click.UsageError(str(error)) from None


LINES: Final = frozenset({".jsonl", ".ndjson", ".json", ".txt"})
"""Names of files with an event in each line."""
_BLOCKS: Final = "ceramic_one_block"
"""The table in which a ceramic-one node keeps its blocks."""


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the blocks of a file, or of all files of a directory.

    A file is a CAR, or has a CAR in each line, or is the database of a ceramic-one node
    (`db.sqlite3`). In a directory, other files, except those called `*.jsonl`, are blocks
    themselves, as kubo and js-ceramic keep them (`blocks/6Z/CIQ....data`). Other databases there
    are skipped, and files such as `README.txt` or `config.json` left out and named.

    Raises:
        CommandError: a file cannot be read, or is damaged.
    """
    try:
        if path.is_dir():
            for below in sorted(path.rglob("*")):
                if below.is_file():
                    yield from _of_file(below, may_skip=True)
        else:
            yield from _of_file(path, may_skip=False)
    except OSError as error:
        where = error.filename or path
        raise CommandError(f"{where} cannot be read: {reason_of(error)}") from None


def _of_file(path: Path, *, may_skip: bool) -> Iterator[bytes]:
    where = str(path)
    with path.open("rb") as file:
        beginning = file.read(BEGINNING_SIZE)
        file.seek(0)
        try:
            if looks_like_car(beginning) or path.suffix.lower() == ".car":
                yield from _of_car(file)
            elif beginning.startswith(SQLITE_HEAD):
                yield from _of_ceramic_one(path, may_skip=may_skip)
            elif may_skip and path.suffix not in LINES:
                block = file.read(MAX_CAR_SIZE + 1)
                if len(block) <= MAX_CAR_SIZE:
                    yield block
            else:
                for item in read_items(file, where):
                    where = f"{path}, line {item.line}"
                    if item.problem is not None:
                        raise CommandError(f"{where}: {item.problem}")
                    data = without_v2(multibase.decode(item.data, multibase.MAX_NUMBER))
                    yield from car.decode(data).blocks.values()
        except NoEventsError as error:
            if not may_skip:
                raise
            echo(f"left out: {error}", err=True)
        except IpldError as error:
            raise CommandError(f"{where} is damaged: {error}") from None


def _of_ceramic_one(path: Path, *, may_skip: bool) -> Iterator[bytes]:
    """The blocks of a ceramic-one node, which may be running."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if (_BLOCKS,) in tables.fetchall():
                small = f"typeof(bytes) = 'blob' AND length(bytes) <= {MAX_CAR_SIZE}"
                left_out = 0
                for (block,) in database.execute(f"SELECT iif({small}, bytes, 0) FROM {_BLOCKS}"):
                    if block:
                        yield block
                    else:
                        left_out += 1
                if left_out:
                    text = (
                        f"{counted(left_out, 'row')} of {_BLOCKS} in {path}, which are not blocks"
                    )
                    echo(f"left out: {text} of events", err=True)
            elif not may_skip:
                raise CommandError(f"{path} is a database, but not that of a ceramic-one node")
    except sqlite3.Error as error:
        raise CommandError(f"{path} cannot be read: {error}") from None


def _of_car(file: BinaryIO) -> Iterator[bytes]:
    for section in sections(file, read_layout(file)):
        if section.size <= MAX_CAR_SIZE:
            file.seek(section.offset)
            yield file.read(section.size)
