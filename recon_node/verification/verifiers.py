"""A pool of processes that verify events; small batches are verified in this process.

Verifying (parse, hashes, signature) takes longer than everything that the log does with an event,
and Python threads would take turns at it. So long lists are cut into chunks, which a few processes
(`recon_node.verification.worker`) take one after another; short ones of small events are verified
at once in a thread of this process. The processes are started when they are first needed, and stay.

**A process that dies** (out of memory, killed) takes no event with it: its chunk is cut in half and
both halves are tried again in new processes, down to a single event. An event that kills two
processes while it is alone with them is refused and named, and so is one that keeps a process busy
beyond `CHUNK_TIMEOUT`. If no process can be started, events are verified in this one for a while.

**Findings are remembered** by the hash of the CAR, a bounded number of the latest: a bad event that
ten peers offer is verified once. A good one that comes alone is in the log afterwards. The CAR
counts, because only verifying it shows which event it holds. What is wrong with an event is
remembered by its CID elsewhere, in the log.

**The native core**, `recon-node-native` (native/), looks first where it is installed. It checks
many events at once, without the interpreter's lock, and says yes or nothing: what it does not
accept is looked at by `check_event`, which has all the rules and says what is wrong. So an event is
accepted by one exactly if it is by the other.
"""

import marshal
import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from typing import Final

import structlog
import trio

from recon_node.base.chunks import in_chunks
from recon_node.base.latest import Latest
from recon_node.ceramic import ALWAYS, CeramicError, InitHeader
from recon_node.ceramic.auth.did import Ed25519Key, public_key, same_did
from recon_node.ceramic.auth.envelope import parse_protected
from recon_node.ceramic.event import DATA, INIT
from recon_node.fairness.turns import Turns
from recon_node.ipld import CID, DagCborError, dag_cbor
from recon_node.processes.pool import CannotStartError, Processes
from recon_node.processes.process import ProcessDiedError
from recon_node.verification.facts import (
    Broken,
    Facts,
    Finding,
    Names,
    Unreadable,
    Wire,
    check_event,
    from_wire,
    to_wire,
)

try:
    import recon_node_native as core
except ImportError:
    core = None

NATIVE_VERSION: Final[str | None] = core and core.__VERSION__
"""Of the native core; None if it is not installed."""

_new_cid: Final[Callable[[type[CID], bytes], CID]] = bytes.__new__
"""Makes a CID of bytes that were checked."""


def check_events(cars: Sequence[bytes]) -> list[Facts | None]:
    """Return the facts of events that have nothing uncommon about them; None for all others."""
    checked = core.check([car if type(car) is bytes else b"" for car in cars], _signer)
    return [fields and _facts(car, *fields) for fields, car in zip(checked, cars, strict=True)]


def _facts(
    car: bytes,
    raw_cid: bytes,
    payload: bytes,
    signer: str,
    raw_init: bytes | None,
    links: tuple[bytes, ...],
    encoded_header: bytes | None,
) -> Facts | None:
    cid, names = _new_cid(CID, raw_cid), Names(_new_cid(CID, payload), None)
    kind, init, header = DATA, cid, None
    if raw_init is not None:
        init = _new_cid(CID, raw_init)
    elif encoded_header is not None:
        kind, header = INIT, _header(encoded_header, signer)
        if header is None:
            return None
    prevs = tuple([_new_cid(CID, link) for link in links])
    return Facts(cid, kind, init, prevs, header, names, None, None, signer, ALWAYS, None, car)


def _header(encoded: bytes, signer: str) -> InitHeader | None:
    """Return the header of an init event if it is right, and its controller has signed."""
    try:
        header = InitHeader.from_fields(dag_cbor.decode(encoded))
    except (CeramicError, DagCborError):
        return None
    return header if same_did(signer, header.controller) else None


@lru_cache(maxsize=1024)
def _signer(protected: bytes) -> tuple[bytes, str] | None:
    """Return the Ed25519 key and the DID that sign without a capability; None if others do."""
    try:
        header = parse_protected(protected)
        did = header["kid"].partition("#")[0]
        key = public_key(did)
    except CeramicError:
        return None
    if not isinstance(key, Ed25519Key) or header["alg"] != key.alg:
        return None
    return None if "crit" in header or "cap" in header else (bytes(key.verify_key), did)


logger = structlog.get_logger(__name__)

MIN_BATCH: Final = 16
"""Fewer events than this are verified faster in this process."""
MAX_BYTES_HERE: Final = 64 * 1024
"""Bytes of events that are verified in this process: to decode a megabyte may take half a second,
in which nothing else runs."""
MAX_BYTES_NOW: Final = 4096
"""Bytes of an event that is verified at once if it comes alone."""
CHUNK_EVENTS: Final = 48
"""Events that a process gets at a time: some milliseconds of work."""
CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of these events, unless one has more."""
CHUNK_TIMEOUT: Final = 30.0
"""Seconds for a chunk. A process that takes longer is killed."""
RETRY_AFTER: Final = 600.0
"""Seconds until a process is started again after that has failed, which may have taken a minute."""
CACHED_FINDINGS: Final = 16_384
"""Findings that are remembered, the latest."""
MAX_CACHED_SIZE: Final = 4096
"""Bytes of a finding that is remembered: strangers cannot fill the memory."""

_COMMAND: Final = (sys.executable, "-P", "-m", "recon_node.verification.worker")
"""Starts a process. -P: no modules are taken from the working directory."""

_Raw = Wire | Broken


class Verifiers:
    """Verifies lists of events, for one task at a time, and single large ones beside that.

    There are `count` processes at most, started by `command`; with 0, everything is verified in
    this process. With `native`, the native core looks first (decision 23).
    """

    def __init__(
        self, count: int, command: Sequence[str] = _COMMAND, *, native: bool = False
    ) -> None:
        self._count = count
        self._paused_until = -math.inf
        self._native = native
        self._processes = Processes(command, count)
        self._memory = Latest[bytes, Wire](CACHED_FINDINGS)
        self._reading = Turns(1)
        self.verified_total = 0
        """Events that were verified; those whose findings were remembered do not count."""

    async def verify(self, cars: Sequence[bytes]) -> list[Finding]:
        """Return what is found out about some CARs, in their order."""
        if len(cars) == 1 and len(cars[0]) <= MAX_BYTES_NOW:
            return [self.verify_now(cars[0])]
        if not self._native or not cars:
            return await self._find(cars)
        accepted = await self._processes.in_thread(check_events, cars)
        left = [car for car, facts in zip(cars, accepted, strict=True) if facts is None]
        self.verified_total += len(cars) - len(left)
        findings = iter(await self._find(left) if left else ())
        return [next(findings) if facts is None else facts for facts in accepted]

    def verify_now(self, car: bytes) -> Finding:
        """Return what is found out about a CAR of at most `MAX_BYTES_NOW` bytes: to wait for a
        thread takes longer."""
        if self._native and (facts := check_events([car])[0]) is not None:
            self.verified_total += 1
            return facts
        digest = sha256(car).digest()
        if (raw := self._memory.use(digest)) is not None:
            return from_wire(raw, car)
        self.verified_total += 1
        finding = _check(car)
        if isinstance(finding, Unreadable) or (isinstance(finding, Facts) and finding.refusal):
            self._remember(digest, to_wire(finding, car))  # others may offer it, too
        return finding

    async def _find(self, cars: Sequence[bytes]) -> list[Finding]:
        digests = [sha256(car).digest() for car in cars]
        known = {digest: raw for digest in digests if (raw := self._memory.use(digest)) is not None}
        unknown = {
            digest: car for digest, car in zip(digests, cars, strict=True) if digest not in known
        }
        examined = dict(zip(unknown, await self._examine(list(unknown.values())), strict=True))
        self.verified_total += len(unknown)
        for digest, new in examined.items():
            self._remember(digest, new)
        findings = examined | known
        in_order = [findings[digest] for digest in digests]
        if len(cars) < MIN_BATCH:  # some microseconds, where another thread takes a hundred
            return _unpack(in_order, cars)
        return await self._processes.in_thread(_unpack, in_order, cars)

    def _remember(self, digest: bytes, finding: _Raw) -> None:
        if not isinstance(finding, Broken) and len(marshal.dumps(finding)) <= MAX_CACHED_SIZE:
            self._memory[digest] = finding

    async def read(self, car: bytes) -> Finding:
        """Return what is found out about a CAR that is too large to be read in this process; those
        of all peers in turn. It is remembered for when it is to be verified."""
        async with self._reading.taken():
            [finding] = await self.verify([car])
            return finding

    async def close(self) -> None:
        """End the processes."""
        self._count = 0
        await self._processes.close()

    async def _examine(self, cars: list[bytes]) -> list[_Raw]:
        is_small = len(cars) < MIN_BATCH and sum(map(len, cars)) <= MAX_BYTES_HERE
        if is_small or not self._has_processes():
            return await self._processes.in_thread(_examine_here, cars) if cars else []
        chunks = deque(enumerate(in_chunks(cars, len, CHUNK_BYTES, CHUNK_EVENTS)))
        findings: list[list[_Raw]] = [[] for _ in chunks]

        async def work() -> None:
            while chunks:
                at, chunk = chunks.popleft()
                findings[at] = await self._examine_chunk(chunk)

        async with trio.open_nursery() as nursery:
            for _ in range(min(self._count, len(chunks))):
                nursery.start_soon(work)
        return list(chain.from_iterable(findings))

    def _has_processes(self) -> bool:
        return self._count > 0 and trio.current_time() >= self._paused_until

    async def _examine_chunk(self, cars: list[bytes], attempt: int = 1) -> list[_Raw]:
        """Have a process examine a few events, or what is left of them after it died."""
        try:
            return await self._ask(cars)
        except CannotStartError as error:
            if self._has_processes():  # the first chunk to fail
                logger.error("Events are verified in the node's own process", reason=str(error))
            self._paused_until = trio.current_time() + RETRY_AFTER
            return await self._processes.in_thread(_examine_here, cars)
        except ProcessDiedError as error:
            logger.error("A verifier process died", events=len(cars), reason=str(error))
        if len(cars) > 1:
            half = len(cars) // 2
            first = await self._examine_chunk(cars[:half])
            return first + await self._examine_chunk(cars[half:])
        if attempt == 1:
            return await self._examine_chunk(cars, attempt=2)
        return [Broken("two processes of this node died while checking it; see the node's log")]

    async def _ask(self, cars: list[bytes]) -> list[_Raw]:
        answer = await self._processes.ask(cars, CHUNK_TIMEOUT)
        return [finding if good else _bug(finding) for good, finding in answer]


def _examine_here(cars: Sequence[bytes]) -> list[_Raw]:
    findings = zip(map(_check, cars), cars, strict=True)
    return [found if isinstance(found, Broken) else to_wire(found, car) for found, car in findings]


def _check(car: bytes) -> Finding:
    try:
        return check_event(car)
    except Exception as error:
        logger.exception("An event could not be verified")
        return _bug(repr(error))


def _bug(error: object) -> Broken:
    return Broken(f"this node failed to check the event ({error}): a bug in this node")


def _unpack(findings: Sequence[_Raw], cars: Sequence[bytes]) -> list[Finding]:
    return [
        finding if isinstance(finding, Broken) else from_wire(finding, car)
        for finding, car in zip(findings, cars, strict=True)
    ]
