"""How much memory the pipeline may take, and whether it was killed for taking more.

A container's bound is that of a control group of Linux: the kernel kills a process of the group
when all of them together exceed it, and counts that. Neither Java nor Python hears of it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Bytes that the pipeline needs with its default settings, to be sure.
NEEDED: Final = 2 * 1024**3

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUP: Final = Path("/proc/self/cgroup")
# Version 1 writes a bound of about 2**63 where there is none.
_NO_BOUND: Final = 2**60
# Of a small bound: Python, which has most of the work, gets the rest.
_HEAP_SHARE: Final = 4
_LEAST_HEAP: Final = 512  # Spark refuses less than 450
_MOST_HEAP: Final = 1024


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a control group may take."""

    limit: int | None
    """Bytes for this process and those that it starts together; None: no bound of their own."""
    kills: int
    """Processes of the group that the kernel has killed for exceeding it."""


def allowance(groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> Allowance:
    """What this process may take, from the control group that bounds it most.

    Args:
        groups: where control groups are mounted, of version 1 or 2.
        own_group: the file that names those of this process.
    """
    limits, kills = [], 0
    for place in _places(groups, own_group):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(place / name).strip()
            if text.isdecimal() and int(text) < _NO_BOUND:
                limits.append(int(text))
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(place / name).splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.isdecimal():
                    kills = max(kills, int(value))
    return Allowance(min(limits, default=None), kills)


def heap_within(limit: int | None) -> str:
    """The Java heap to take, as Java writes it, within a bound of so many bytes in all."""
    if limit is None or limit >= _HEAP_SHARE * _MOST_HEAP * 1024**2:
        return f"{_MOST_HEAP}m"
    return f"{max(_LEAST_HEAP, limit // _HEAP_SHARE // 1024**2)}m"


def tasks_within(limit: int | None) -> int:
    """How many of Spark's Python workers to have at once within such a bound."""
    return 2 if limit is None or limit >= NEEDED else 1


def why_killed(before: Allowance, now: Allowance, java_exit: int | None) -> str | None:
    """What to tell people if the kernel killed a part of the pipeline; None: it did not.

    Args:
        before: what `allowance` gave when the pipeline started.
        now: what it gives after a failure.
        java_exit: how Spark's Java ended, as `subprocess` has it; None: it runs.
    """
    if now.kills > before.kills:
        limit = "" if now.limit is None else f" of {now.limit / 1024**2:,.0f} MiB"
        what = f"the kernel killed a process of the pipeline, beyond its memory limit{limit}"
    elif java_exit in (-9, 137):
        what = "Spark's Java was killed, probably because the memory of the machine was full"
    else:
        return None
    return (
        f"{what}. The pipeline needs {NEEDED // 1024**3} GiB: allow it more, or take less with "
        "--master local[1], a smaller --driver-memory and a smaller --max-rows-per-batch. "
        "Nothing is lost: start again"
    )


def _places(groups: Path, own_group: Path) -> list[Path]:
    """The directories of the process's control groups, and of those above them.

    A container sees its own group as the root, whatever its name on the host is.
    """
    places = [groups, groups / "memory"]
    for line in _read(own_group).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        place = groups / controllers if controllers else groups
        for part in Path(path).parts[1:]:
            place /= part
            places.append(place)
    return places


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
