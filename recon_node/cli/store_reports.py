"""What the commands of `recon-node store` found and did, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from recon_node.cli.output import counted
from recon_node.store.maintenance import ImportResult, LogInfo, Repaired, Report
from recon_node.terminal_text import echo

_SHOWN: Final = 20
"""Lines of each kind that a report prints; the rest is only counted."""


def info_facts(found: LogInfo) -> dict[str, Any]:
    """Return a log in a few numbers, as JSON."""
    return {
        "file": str(found.path),
        "network": found.network.name,
        "schema_version": found.schema,
        "epoch": found.epoch,
        "events": found.events,
        "head": found.head,
        "waiting": found.waiting,
        "pending": found.pending,
        "shared_blocks": found.shared_blocks,
        "refused": found.refused,
        "bytes": found.size,
        "bytes_free": found.free,
    }


def print_faults(report: Report) -> None:
    """Print the first faults to standard error, and their number."""
    for fault in report.faults[:_SHOWN]:
        echo(f"{fault.where}: {fault.message}", err=True)
    if report.fault_count > _SHOWN:
        echo(f"... and {report.fault_count - _SHOWN:,} more faults", err=True)
    if not report.clean:
        echo(f"damaged: {counted(report.fault_count, 'fault')}", err=True)


def check_facts(report: Report, repaired: Repaired | None) -> dict[str, Any]:
    """Return the result of a check as JSON: the log as it is now, and what a repair did."""
    return {
        "sound": report.clean,
        "events": report.events,
        "delivered": report.delivered,
        "bytes": report.bytes,
        "sha256a": report.sha256a,
        "fault_count": report.fault_count,
        "faults": [{"where": each.where, "message": each.message} for each in report.faults],
        "repaired": None if repaired is None else _repair_facts(repaired),
    }


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


def repair_lines(repaired: Repaired) -> Iterator[str]:
    """Yield what a repair did."""
    for event_id in repaired.lost:
        yield f"lost, but peers will send it again: {event_id}"
    for name, reason in repaired.refused:
        yield f"invalid, left out: {name or 'an event'}: {reason}"
    if repaired.nameless:
        yield f"{counted(repaired.nameless, 'row')} could not be read at all"
    epoch = (
        "all feed positions are unchanged"
        if repaired.epoch_kept
        else f"feed positions changed: the new epoch is {repaired.epoch}"
    )
    yield (
        f"repaired: {counted(repaired.events, 'event')} saved, {len(repaired.lost):,} lost; "
        f"{epoch}. The damaged file is kept as {repaired.damaged_file}"
    )


def print_refusals(intake: ImportResult) -> None:
    """Print the first refused events of an import to standard error."""
    for event, reason in intake.refused[:_SHOWN]:
        echo(f"refused: {event}: {reason}", err=True)
    if intake.counts["refused"] > _SHOWN:
        echo(f"... and {intake.counts['refused'] - _SHOWN:,} more were refused", err=True)


def intake_facts(intake: ImportResult, seconds: float) -> dict[str, Any]:
    """Return the result of an import as JSON."""
    return {
        "events": intake.counts.total(),
        **{verdict: intake.counts[verdict] for verdict in ("new", "known", "refused")},
        "refusals": [
            {"event_id": str(event), "reason": reason} for event, reason in intake.refused
        ],
        "seconds": round(seconds, 3),
    }


def intake_text(intake: ImportResult, seconds: float) -> str:
    """Return the result of an import in one line."""
    counts, total = intake.counts, intake.counts.total()
    return (
        f"{counted(total, 'event')}: {counts['new']:,} new, {counts['known']:,} known, "
        f"{counts['refused']:,} refused, in {seconds:.1f} s "
        f"({total / max(seconds, 1e-6):,.0f} per second)"
    )
