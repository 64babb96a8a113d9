"""What models say, as those who compute the states of their documents need it.

A model is a stream like any other: it, or the version of it that a document names, can come after
the document. A step goes from one feed position to another; what a model says is taken at the
step's end. Where the step has brought new events to it, all its documents are computed anew.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from recon_node.ipld import CID
from recon_node.streams import Definitions, definitions_of
from spark_sink.derive.streams import Stream, read_streams
from spark_sink.tables.raw_files import RawFiles

# More are forgotten all at once, and read again when they are needed.
_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Model:
    """What a model says in its first version and in those that were asked for."""

    definitions: Definitions | None
    asked: frozenset[CID]
    changed: bool


class Models:
    """The models of a step, from the position `after` to `upto` of `raw`."""

    def __init__(self, raw: RawFiles, after: int, upto: int) -> None:
        self._raw = raw
        self._after = after
        self._upto = upto
        self._models: dict[bytes, _Model] = {}

    def move(self, raw: RawFiles, after: int, upto: int, touched: Collection[bytes]) -> None:
        """Go on to the step from `after` to `upto`, in which these streams get events."""
        if self._upto != after or len(self._models) > _REMEMBERED:
            self._models.clear()
        self._raw, self._after, self._upto = raw, after, upto
        self._models = {
            cid: _Model(model.definitions, model.asked, changed=False)
            for cid, model in self._models.items()
            if cid not in touched
        }

    def load(self, streams: Iterable[Stream]) -> None:
        """Read the models of these documents, and these models, all at once."""
        asked: dict[bytes, set[CID]] = {}
        for stream in streams:
            cid = stream.cid if stream.is_model else stream.model
            if cid is not None:
                asked.setdefault(cid, set()).update(stream.versions)
        wanted: dict[bytes, frozenset[CID]] = {}
        for cid, versions in asked.items():
            known = self._models.get(cid)
            if known is None or not known.asked.issuperset(versions):
                wanted[cid] = frozenset(versions).union(known.asked if known else ())
        if not wanted:
            return
        self._models |= {cid: _Model(None, named, changed=False) for cid, named in wanted.items()}
        found = self._raw.events_of(wanted.keys(), self._upto)
        for model in read_streams(found, models_only=True):
            named = wanted[model.cid]
            self._models[model.cid] = _Model(
                definitions_of(model.states().all(), CID(model.cid), named),
                named,
                changed=model.entries[-1].position > self._after,
            )

    def of(self, stream: Stream) -> Definitions | None:
        """What a document's model says, which was loaded; None when it is not known, for models
        themselves, and for streams without a model."""
        if stream.is_model or stream.model is None:
            return None
        return self._models[stream.model].definitions

    def has_changed(self, model: bytes | None) -> bool:
        """Whether the step has brought events to a model, which was loaded."""
        return model is not None and self._models[model].changed
