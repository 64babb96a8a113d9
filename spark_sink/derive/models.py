"""The definitions of models, which the states of their documents depend on.

A model is a stream like any other: it, or the version that a document names, can arrive after the
document. A step goes from one feed position to another and uses each model as of its end. If the
step has brought new events to a model, all its documents are recomputed.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from recon_node.ipld import CID
from recon_node.streams import Definitions, definitions_of
from spark_sink.derive.aside import NOT_OF_A_STREAM, ModelSetAsideError, reason_of
from spark_sink.derive.streams import FeedStream, read_streams
from spark_sink.tables.raw_files import RawFiles

# With more models than this the cache is cleared.
_MAX_CACHED: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Model:
    """The definitions of a model: of its first version, and of those that documents name.

    `last` is the position of its last event, 0 if there is none; `fault` says why the model cannot
    be computed.
    """

    definitions: Definitions | None
    asked: frozenset[CID]
    last: int = 0
    fault: str | None = None


class Models:
    """The models of a step, from the position `after` to `upto` of `raw`.

    Those among `without` were set aside: they are not computed again for each of their documents.
    """

    def __init__(
        self, raw: RawFiles, after: int, upto: int, without: Collection[bytes] = ()
    ) -> None:
        self._raw = raw
        self._after = after
        self._upto = upto
        self._without = without
        self._models: dict[bytes, _Model] = {}

    def move(
        self,
        raw: RawFiles,
        after: int,
        upto: int,
        touched: Collection[bytes],
        without: Collection[bytes] = (),
    ) -> None:
        """Continue with the step from `after` to `upto`, in which streams `touched` get events."""
        self._without = without
        if self._upto != after or len(self._models) > _MAX_CACHED:
            self._models.clear()
        self._raw, self._after, self._upto = raw, after, upto
        self._models = {cid: m for cid, m in self._models.items() if cid not in touched}

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
        self._models |= {cid: _Model(None, named) for cid, named in wanted.items()}
        found = self._raw.events_of(wanted.keys(), self._upto)
        for model in read_streams(found, models_only=True):
            named = wanted[model.cid]
            if model.cid in self._without:
                self._models[model.cid] = _unread(model, named, "it is set aside")
            else:
                self._models[model.cid] = _read(model, named)

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

    def has_changed(self, model: bytes | None) -> bool:
        """Return whether the step brought events to a model, which must have been loaded."""
        return self.last_position(model) > self._after

    def last_position(self, model: bytes | None) -> int:
        """Return the position of the last event of a model, which must have been loaded.

        0 if there is none.
        """
        return 0 if model is None else self._models[model].last


def _read(model: FeedStream, named: frozenset[CID]) -> _Model:
    last = model.entries[-1].position
    try:
        return _Model(definitions_of(model.stream.states.all(), CID(model.cid), named), named, last)
    except NOT_OF_A_STREAM:
        raise
    except Exception as error:  # its documents are set aside, and it is
        return _unread(model, named, reason_of(error))


def _unread(model: FeedStream, named: frozenset[CID], fault: str) -> _Model:
    return _Model(None, named, model.entries[-1].position, fault)
