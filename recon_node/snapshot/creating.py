"""Write a snapshot: what the newest one in the store lacks, then a new root object.

All calls block; run them in a thread. The events come from a `Source`: a running node's store
(`sources.StoreSource`), or the log on disk, beside a running node or not (`sources.LogSource`).

With a snapshot to build on, only the leaves that differ are read, and only new events, the nodes on
their way to the root, and the root object are written. Everything goes into new packs; old packs
are never changed. So a snapshot costs what is new, but packs gather what later snapshots no longer
use. When that is more than what they use, or there are too many packs, the next snapshot starts
afresh: that costs no more than what was written since.

The store has a snapshot once its root object is there, which is written last. If a process dies
before, the packs that it wrote stay unused; the next one finds those that it would write again by
their names, and `collect` deletes the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from nacl.signing import SigningKey

from recon_node.ceramic.auth.did import controller_of
from recon_node.snapshot.faults import SnapshotError
from recon_node.snapshot.objects import MissingObjectError, Objects
from recon_node.snapshot.root import (
    LATEST,
    RootError,
    RootObject,
    decode_root,
)
from recon_node.snapshot.writing import (
    Created,
    DamagedBaseError,
    Progress,
    SnapshotWriter,
    Source,
)

PACK_BYTES: Final = 8 * 1024 * 1024
"""Size at which a pack is written."""
_CLOCKS_DIFFER: Final = 86400.0
"""Seconds that a snapshot may be from the future."""
MAX_PACKS: Final = 256
"""Packs more than the events need, at which a snapshot starts afresh."""


__all__ = [
    "MAX_PACKS",
    "PACK_BYTES",
    "Created",
    "DamagedBaseError",
    "Progress",
    "Source",
    "create_snapshot",
]


def create_snapshot(
    source: Source,
    objects: Objects,
    key: SigningKey,
    progress: Progress,
    *,
    now: Callable[[], float] = time.time,
    pack_bytes: int = PACK_BYTES,
    afresh: bool = False,
) -> Created:
    """Write a snapshot of a source, and return it.

    Args:
        source: of the events.
        objects: where to.
        key: signs it; only a snapshot that it has signed is built on.
        progress: see `Progress`.
        now: Unix seconds.
        pack_bytes: see `PACK_BYTES`.
        afresh: do not build on another snapshot.

    Raises:
        DamagedBaseError: the snapshot to build on is damaged.
        SnapshotError: what is at `latest.car` is something else.
        ObjectError: the store does not take it.
    """
    latest = _latest(source, objects, now())
    base = None
    if latest is not None and not afresh and _can_build_on(latest, source, key, pack_bytes):
        base = latest
    # Snapshots are ordered by their time, so no two have the same.
    created = max(int(now()), 0 if latest is None else latest.manifest.created + 1)
    return SnapshotWriter(source, objects, key, progress, pack_bytes, base).run(created)


def _latest(source: Source, objects: Objects, now: float) -> RootObject | None:
    """Return the newest snapshot."""
    try:
        root = decode_root(objects.get(LATEST))
    except MissingObjectError:
        return None
    except RootError as error:
        raise SnapshotError(
            f"{LATEST} in {objects.url} is not a root object ({error}): delete it, or choose "
            "another place"
        ) from None
    found = root.manifest
    if found.created > now + _CLOCKS_DIFFER:
        raise SnapshotError(
            f"{LATEST} in {objects.url} is of {found.created_text}, which is in the future: set "
            "the clock, or delete that snapshot, because newer ones would seem older"
        )
    if found.network != source.network:
        raise SnapshotError(
            f"{objects.url} has snapshots of the network {found.network.name}, but the events are "
            f"of {source.network.name}: choose another place"
        )
    return root


def _can_build_on(root: RootObject, source: Source, key: SigningKey, pack_bytes: int) -> bool:
    found = root.manifest
    if root.signer != controller_of(key) or tuple(found.ranges) != tuple(source.ranges):
        return False  # others may have left out something that their trees name
    size = sum(size for _, size in found.packs)
    too_many = len(found.packs) > MAX_PACKS + 2 * size // pack_bytes
    return not too_many and found.live * 2 >= size
