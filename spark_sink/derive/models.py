"""The definitions of models, which the states of their documents depend on.

A model is a stream like any other: it, or the version that a document names, can arrive after the
document. A step goes from one feed position to another and uses each model as of its end. If the
step has brought a model, or a version of it, the documents that lacked it are recomputed. Other
events of a model change nothing for its documents, so that its author cannot have them computed
again and again.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from recon_node.ipld import CID
from recon_node.streams import Definitions, definitions_of
from spark_sink.derive.mark import computing
from spark_sink.derive.streams import (
    NOT_OF_A_STREAM,
    FeedStream,
    ModelSetAsideError,
    read_streams,
    reason_of,
)
from spark_sink.tables.raw_files import RawFiles

# With more models than this the cache is cleared.
_MAX_CACHED: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Model:
    """The definitions of a model: of its first version, and of those that documents name.

    `positions` are those of its init event and of the others that documents name; `fault` says why
    the model cannot be computed.
    """

    definitions: Definitions | None
    asked: frozenset[CID]
    positions: Mapping[CID, int] = field(default_factory=dict)
    fault: str | None = None


class Models:
    """The models of a step, and of the next one."""

    def __init__(self) -> None:
        self._raw = RawFiles(())
        self._upto = 0
        self._without: Collection[bytes] = ()
        self._models: dict[bytes, _Model] = {}

    def move(
        self,
        raw: RawFiles,
        after: int,
        upto: int,
        touched: Collection[bytes],
        without: Collection[bytes] = (),
    ) -> None:
        """Continue with a step.

        Args:
            raw: the events.
            after: where the step before ended.
            upto: where this one ends.
            touched: the streams that get events in it.
            without: those that are set aside: they are not read, and their documents are told so.
        """
        if self._upto not in (after, upto) or len(self._models) > _MAX_CACHED:
            self._models.clear()
        self._raw, self._upto, self._without = raw, upto, without
        for cid in {*touched, *without}.intersection(self._models):
            del self._models[cid]

    def load(self, streams: Iterable[FeedStream]) -> None:
        """Read the models of these documents, and those among the streams, at once."""
        asked: dict[bytes, set[CID]] = {}
        for stream in streams:
            cid = stream.cid if stream.is_model else stream.model
            if cid is not None:
                asked.setdefault(cid, set()).update(stream.stream.versions)
        wanted: dict[bytes, frozenset[CID]] = {}
        for cid, versions in asked.items():
            known = self._models.get(cid)
            if known is None or not known.asked.issuperset(versions):
                wanted[cid] = frozenset(versions).union(known.asked if known else ())
        if not wanted:
            return
        for cid, named in wanted.items():
            fault = "it is set aside" if cid in self._without else None
            self._models[cid] = _Model(None, named, fault=fault)
        found = self._raw.events_of(wanted.keys() - set(self._without), self._upto)
        for model in read_streams(found, models_only=True):
            with computing(model.cid, model.size):
                self._models[model.cid] = _read(model, wanted[model.cid])

    def of(self, stream: FeedStream) -> Definitions | None:
        """Return the definitions of a document's model, which must have been loaded.

        None if they are unknown, for models themselves, and for streams without a model.

        Raises:
            ModelSetAsideError: the model cannot be computed.
        """
        if stream.is_model or stream.model is None:
            return None
        model = self._models[stream.model]
        if model.fault is not None:
            raise ModelSetAsideError(f"its model cannot be computed: {model.fault}")
        return model.definitions

    def last_change(self, stream: FeedStream) -> int:
        """Return the position of the last event of a document's model that matters to it.

        That is one of the versions that it names, or the init event. 0 if there is none.
        """
        if stream.is_model or stream.model is None:
            return 0
        positions = self._models[stream.model].positions
        named = (CID(stream.model), *stream.stream.versions)
        return max(positions.get(version, 0) for version in named)


def _read(model: FeedStream, named: frozenset[CID]) -> _Model:
    init = CID(model.cid)
    positions = _positions(model, named)
    try:
        return _Model(definitions_of(model.stream.states.all(), init, named), named, positions)
    except NOT_OF_A_STREAM:
        raise
    except Exception as error:  # its documents are set aside, and it is
        return _Model(None, named, positions, reason_of(error))


def _positions(model: FeedStream, named: frozenset[CID]) -> dict[CID, int]:
    matter = {model.cid, *named}
    return {e.event.cid: e.position for e in model.entries if e.event.cid in matter}
