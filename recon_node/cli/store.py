"""`recon-node store`: looking after the event log of a stopped node."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from recon_node.cli.complete_file import complete_file
from recon_node.cli.errors import CommandError
from recon_node.cli.output import make_console
from recon_node.cli.run import config_option, data_dir_option, read_settings

if TYPE_CHECKING:
    from recon_node.store import Interest
    from recon_node.store.maintenance import Intake, Repaired, Report
    from recon_node.store.maintenance.common import Progress

T = TypeVar("T")

_SHOWN = 20
"""Lines of each kind that a report prints; further ones are counted."""


@click.group()
def store() -> None:
    """Look after the event log of a stopped node: check it, compact it, export and import events.

    While a node runs on the data directory these commands refuse to work: stop it first.
    """


@store.command("info")
@config_option
@data_dir_option
def info(config: Path | None, data_dir: Path | None) -> None:
    """Print what the log holds.

    \b
    Example:
      recon-node store info --data-dir /var/lib/recon-node
    """
    from recon_node.store.maintenance import read_info

    with _the_log_of(config, data_dir) as directory:
        found = read_info(directory)
    rows = {
        "file": found.path,
        "network": found.network,
        "schema version": found.schema,
        "epoch": found.epoch,
        "events": f"{found.events:,}",
        "delivered (feed head)": f"{found.head:,}",
        "waiting for their history": f"{found.waiting:,}",
        "pending": f"{found.pending:,}",
        "shared blocks": f"{found.shared_blocks:,}",
        "remembered as refused": f"{found.refused:,}",
        "size": f"{_size(found.size)}, {_size(found.free)} of it free",
    }
    for name, value in rows.items():
        click.echo(f"{name:<26} {value}")


@store.command("check")
@config_option
@data_dir_option
@click.option(
    "--repair",
    is_flag=True,
    help="Make a sound log out of what can be read; the damaged file is kept.",
)
def check(config: Path | None, data_dir: Path | None, repair: bool) -> None:
    """Check that the log is sound: pages, indexes, every event, the order of the feed.

    Exit code 1 if anything is wrong. With --repair a sound log is made of all events that can be
    read, and the damaged file stays beside it under another name. Events that cannot be read are
    listed; peers send them again. If one of them stood in the feed, the log gets a new epoch:
    readers of the feed start anew, for a feed position never changes its event.

    \b
    Examples:
      recon-node store check
      recon-node store check --repair
    """
    from recon_node.store.maintenance import check_log

    with _the_log_of(config, data_dir) as directory, _progress() as progress:
        report = check_log(directory, progress)
        if repair and not report.clean:
            _tell_faults(report)
            _repair(directory, progress)
            report = check_log(directory, progress)
    _tell_faults(report)
    if not report.clean:
        if not repair:
            click.echo("run `recon-node store check --repair` to save what can be saved", err=True)
        sys.exit(1)
    click.echo(
        f"sound: {report.events:,} events ({_size(report.bytes)}), {report.delivered:,} delivered, "
        f"keys {report.sha256a}"
    )


@store.command("compact")
@config_option
@data_dir_option
def compact(config: Path | None, data_dir: Path | None) -> None:
    """Write the log anew without free pages and unused blocks.

    Needs as much free room on the disk as the log has. Feed and epoch stay as they are.
    """
    from recon_node.store.maintenance import compact_log

    with _the_log_of(config, data_dir) as directory, _progress() as progress:
        done = compact_log(directory, progress)
    click.echo(
        f"{_size(done.before)} before, {_size(done.after)} after; "
        f"{done.blocks_removed:,} unused blocks removed"
    )


@store.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@config_option
@data_dir_option
@click.option("--sort-value", metavar="VALUE", help="Only events of this sort value (a model).")
@click.option("--sort-key", metavar="KEY", default="model", show_default=True, help="Its kind.")
@click.option("--controller", metavar="DID", help="Of those, only this controller's.")
@click.option("--stream", metavar="STREAM_ID", help="Of those, only this stream's.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def export(
    file: Path, config: Path | None, data_dir: Path | None, force: bool, **interest: str | None
) -> None:
    """Write all events into FILE (- for standard output), as one CAR, in the order of the feed.

    Any CAR tool reads it: its root is a manifest that links to everything, each block is there
    once. `recon-node store import` takes it in.

    FILE appears when the export is complete. A file that exists is replaced only with --force, and
    never if there is nothing to export: that is an error.

    \b
    Examples:
      recon-node store export backup.car
      recon-node store export - --sort-value k... --controller did:key:z... | zstd > part.car.zst
    """
    from recon_node.store.maintenance import export_events

    wanted = _interests(**interest)
    with (
        _the_log_of(config, data_dir) as directory,
        complete_file(file, force=force) as out,
        _progress() as tell,
    ):
        events = export_events(directory, out, wanted, tell)
    click.echo(f"{events:,} events exported", err=True)


@store.command("import")
@click.argument("file", type=click.File("rb"))
@config_option
@data_dir_option
def import_(file: BinaryIO, config: Path | None, data_dir: Path | None) -> None:
    """Take in the events of FILE (- for standard input), which `recon-node store export` wrote.

    Each event is checked as if a peer had sent it. Events that are here are skipped: an import
    that was broken off is simply started again. Where there is no log yet, one is made.

    Exit code 1 if any event was refused.

    \b
    Examples:
      recon-node store import backup.car --data-dir /var/lib/recon-node
      zstd -d < part.car.zst | recon-node store import -
    """
    from recon_node.store import StoreError
    from recon_node.store.maintenance import import_events

    settings = read_settings(config, {"data_dir": data_dir})
    started = time.monotonic()
    try:
        with _progress() as progress:
            intake = _run(partial(import_events, settings.data_dir, file, progress=progress))
    except (StoreError, OSError) as error:
        raise CommandError(str(error)) from None
    _tell_intake(intake, time.monotonic() - started)
    if intake.counts["refused"]:
        sys.exit(1)


@contextmanager
def _the_log_of(config: Path | None, data_dir: Path | None) -> Iterator[Path]:
    """The data directory, locked; what goes wrong is told in one line."""
    from recon_node.store import StoreError
    from recon_node.store.lock import directory_lock
    from recon_node.store.maintenance.common import find_log

    directory = read_settings(config, {"data_dir": data_dir}).data_dir
    try:
        if not directory.is_dir():
            raise StoreError(f"there is no data directory {directory}: name it by --data-dir")
        with directory_lock(directory):
            find_log(directory)
            yield directory
    except (StoreError, OSError) as error:
        raise CommandError(str(error)) from None


def _interests(
    sort_key: str | None, sort_value: str | None, controller: str | None, stream: str | None
) -> list[Interest]:
    from recon_node.ceramic import StreamId
    from recon_node.store import Interest

    if sort_value is None:
        if controller is not None or stream is not None:
            raise click.UsageError("--controller and --stream narrow a --sort-value: give it, too")
        return []
    try:
        stream_id = None if stream is None else StreamId.parse(stream)
        return [Interest(sort_key or "", sort_value, controller, stream_id)]
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _repair(directory: Path, progress: Progress) -> None:
    from recon_node.store.maintenance import repair_log

    _tell_repaired(_run(partial(repair_log, directory, progress=progress)))


def _run(work: Any) -> Any:
    """Run a trio function; Ctrl-C ends it quietly."""
    import trio

    try:
        return trio.run(work)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt):
            raise click.Abort() from None
        raise


def _tell_faults(report: Report) -> None:
    for fault in report.faults[:_SHOWN]:
        click.echo(f"{fault.where}: {fault.message}", err=True)
    if report.fault_count > _SHOWN:
        click.echo(f"... and {report.fault_count - _SHOWN:,} more faults", err=True)
    if not report.clean:
        click.echo(f"damaged: {report.fault_count:,} faults", err=True)


def _tell_repaired(repaired: Repaired) -> None:
    for event_id in repaired.lost:
        click.echo(f"lost, peers will send it again: {event_id}")
    for name, reason in repaired.refused:
        click.echo(f"not valid, left out: {name or 'an event'}: {reason}")
    if repaired.nameless:
        click.echo(f"{repaired.nameless:,} rows could not be read at all")
    epoch = (
        "all feed positions are what they were"
        if repaired.epoch_kept
        else f"feed positions changed: the new epoch is {repaired.epoch}"
    )
    click.echo(
        f"repaired: {repaired.events:,} events saved, {len(repaired.lost):,} lost; {epoch}. "
        f"The damaged file is kept: {repaired.damaged_file}"
    )


def _tell_intake(intake: Intake, seconds: float) -> None:
    for event_id, reason in intake.refused[:_SHOWN]:
        click.echo(f"refused: {event_id}: {reason}", err=True)
    counts, total = intake.counts, intake.counts.total()
    if counts["refused"] > _SHOWN:
        click.echo(f"... and {counts['refused'] - _SHOWN:,} more were refused", err=True)
    click.echo(
        f"{total:,} events: {counts['new']:,} new, {counts['known']:,} known, "
        f"{counts['refused']:,} refused, in {seconds:.1f} s "
        f"({total / max(seconds, 1e-6):,.0f} a second)"
    )


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar on standard error, where that is a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = make_console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)

        def tell(step: str, done: int, total: int | None) -> None:
            bar.update(task, description=step, completed=done, total=total)

        yield tell


def _size(number: int) -> str:
    """Bytes, for people."""
    size, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
