"""How much memory the pipeline may use, and whether the kernel killed it for using more.

A container's limit is that of a Linux control group: if its processes together exceed it, the
kernel kills one of them and counts that. Neither Java nor Python notices.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

NEEDED_BYTES: Final = 2 * 1024**3
"""Bytes that the pipeline needs with its default settings."""

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUP: Final = Path("/proc/self/cgroup")
# Version 1 of control groups shows about 2**63 bytes if there is no limit.
_NO_LIMIT: Final = 2**60
_HEAP_DIVISOR: Final = 4
"""What part of a small limit the heap gets. Python does most of the work and gets the rest."""
_MIN_HEAP_MIB: Final = 512  # MiB; Spark refuses less than 450
_MAX_HEAP_MIB: Final = 1024


@dataclass(frozen=True, slots=True)
class MemoryAllowance:
    """What a control group may use."""

    limit: int | None
    """Bytes for this process and its children together; None if there is no limit."""
    kills: int
    """How many processes of the group the kernel has killed for exceeding the limit."""


def allowance(groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> MemoryAllowance:
    """Return what this process may use, by the tightest of its control groups.

    Args:
        groups: where control groups are mounted, of version 1 or 2.
        own_group: the file that names those of this process.
    """
    limits, kills = [], 0
    for directory in _directories(groups, own_group):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(directory / name).strip()
            if text.isdecimal() and int(text) < _NO_LIMIT:
                limits.append(int(text))
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(directory / name).splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.isdecimal():
                    kills = max(kills, int(value))
    return MemoryAllowance(min(limits, default=None), kills)


def heap_within(limit: int | None) -> str:
    """Return the size of the Java heap, as Java writes it, for a limit in bytes."""
    if limit is None or limit >= _HEAP_DIVISOR * _MAX_HEAP_MIB * 1024**2:
        return f"{_MAX_HEAP_MIB}m"
    return f"{max(_MIN_HEAP_MIB, limit // _HEAP_DIVISOR // 1024**2)}m"


def tasks_within(limit: int | None) -> int:
    """Return the number of Python workers for such a limit."""
    return 2 if limit is None or limit >= NEEDED_BYTES else 1


def why_killed(before: MemoryAllowance, now: MemoryAllowance, java_exit: int | None) -> str | None:
    """Return an error message if the kernel killed a part of the pipeline; None if it did not.

    Args:
        before: `allowance` when the pipeline started.
        now: `allowance` after a failure.
        java_exit: exit code of Spark's Java, as in `subprocess`; None if it is running.
    """
    if now.kills > before.kills:
        limit = "" if now.limit is None else f" of {now.limit / 1024**2:,.0f} MiB"
        what = f"the kernel killed a process of the pipeline, beyond its memory limit{limit}"
    elif java_exit in (-9, 137):
        what = "Spark's Java was killed, probably because the memory of the machine was full"
    else:
        return None
    return (
        f"{what}. The pipeline needs {NEEDED_BYTES // 1024**3} GiB: allow more, or use less with "
        "--master local[1], a smaller --driver-memory and a smaller --max-rows-per-batch. "
        "Nothing is lost: start again"
    )


def _directories(groups: Path, own_group: Path) -> list[Path]:
    """Return the directories of the process's control groups and their parents.

    In a container, its own group appears as the root, whatever its name on the host.
    """
    directories = [groups, groups / "memory"]
    for line in _read(own_group).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        directory = groups / controllers if controllers else groups
        for part in Path(path).parts[1:]:
            directory /= part
            directories.append(directory)
    return directories


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
