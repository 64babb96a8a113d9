"""What models say, as those who compute the states of their documents need it.

A model is a stream like any other: it can come after its documents, and say something else later.
A step goes from one feed position to another; what a model says is taken at the step's end, and
compared with what it said at its beginning: where it is another content, all documents change.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from recon_node.lattice import StreamData
from spark_sink.derive.streams import Stream, read_streams
from spark_sink.tables.raw_files import RawFiles

# More are forgotten all at once, and read again when they are needed.
_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Model:
    content: Any
    changed: bool


_UNKNOWN: Final = _Model(None, False)


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
            cid: _Model(model.content, changed=False)
            for cid, model in self._models.items()
            if cid not in touched
        }

    def load(self, streams: Iterable[Stream]) -> None:
        """Read the models of these documents, and these models, all at once."""
        wanted = {s.cid if s.is_model else s.model for s in streams} - self._models.keys()
        if not wanted:
            return
        self._models |= dict.fromkeys(wanted, _UNKNOWN)
        for model in read_streams(self._raw.events_of(wanted, self._upto), models_only=True):
            before = model.upto(self._after)
            was, now = _data(before) if before else None, _data(model)
            content = None if now is None else now.content
            self._models[model.cid] = _Model(content, changed=_text(was) != _text(now))

    def of(self, stream: Stream) -> Any:
        """The content of a document's model, which was loaded; None when it is not known, and for
        models themselves."""
        return None if stream.is_model else self._models[stream.model].content

    def has_changed(self, model: bytes) -> bool:
        """Whether the content of a model, which was loaded, is another one than before the step."""
        return self._models[model].changed


def _data(model: Stream) -> StreamData | None:
    return model.data(model.states())


def _text(data: StreamData | None) -> bytes:
    """Content to compare; for Python, true equals 1."""
    return b"" if data is None else data.to_json()
