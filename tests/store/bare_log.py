"""The event log alone, without a store's threads and memory."""

from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path

from store_helpers import NETWORK, QUICK, check_log_tables

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.store import StoreSettings, Verdict
from recon_node.store.admission.records import ProofVerdict
from recon_node.store.db.log import EventLog, commit_batch
from recon_node.store.db.settling import commit_proofs, commit_releases
from recon_node.store.kept_interests import key_ranges
from recon_node.store.reading import Reader
from recon_node.store.reading.single_events import read_pending_proofs
from recon_node.store.values import Submission
from recon_node.verification import check_event

EVERYTHING = tuple(key_ranges(NETWORK, ()))
checked = cache(check_event)


class BareLog(EventLog):
    """A log that finishes the releases of each commit at once."""

    def __init__(
        self, directory: Path, settings: StoreSettings = QUICK, *, guarded: bool = False
    ) -> None:
        super().__init__(directory, NETWORK, settings, lambda: 1_700_000_000, guarded=guarded)

    def offer(self, batch: Iterable[tuple[EventId | None, bytes]]) -> list[Verdict]:
        """Commit a batch alone, without the releases that it leaves. Without an EventId, an event
        is of the node's own clients."""
        submissions = [Submission(car, key, finding=checked(car)) for key, car in batch]
        return [*commit_batch(self, submissions, EVERYTHING).verdicts]

    def admit(self, batch: Iterable[tuple[EventId | None, bytes]]) -> list[Verdict]:
        verdicts = self.offer(batch)
        self.finish_releases()
        return verdicts

    def settle(self, proof: CID, verdict: ProofVerdict) -> None:
        commit_proofs(self, [(proof, verdict)])
        self.finish_releases()

    def finish_releases(self) -> None:
        while self.marks.has_releases:
            commit_releases(self)
        check_log_tables(self)

    @property
    def keys(self) -> list[bytes]:
        return list(self.load_keys())

    @property
    def feed(self) -> list[CID]:
        """The delivered events, in order."""
        sql = "SELECT cid FROM events WHERE position NOTNULL ORDER BY position"
        return [CID(cid) for (cid,) in self.connection.execute(sql)]

    @property
    def unsettled(self) -> list[CID]:
        """The proofs that are to be looked up."""
        reader = Reader(self._data_dir, NETWORK)
        with closing(reader.connection):
            return [proof.cid for proof in read_pending_proofs(reader, 1_000)]
