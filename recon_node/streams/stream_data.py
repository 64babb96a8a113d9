"""The data of a stream, and its JSON as ceramic-one writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from recon_node.streams.document_schema import dag_json


@dataclass(frozen=True, slots=True)
class StreamData:
    """Content and metadata of a stream at one of its events. Other events share parts of them, so
    they must not be changed."""

    content: Any
    """A JSON object; None if there is none yet."""
    metadata: Mapping[str, Any]
    weight: int = field(default=0, compare=False, repr=False)
    """Of the content, at most; see `recon_node.streams.json_patch`."""
    conforms: bool = field(default=True, compare=False, repr=False)
    """Whether the content was accepted; only that of a rejected init event was not."""
    _json: bytes | None = field(default=None, init=False, compare=False, repr=False)

    def to_json(self) -> bytes:
        """Return `data_json` of it, which is cached."""
        if self._json is None:
            object.__setattr__(self, "_json", data_json(dict(self.metadata), self.content))
        assert self._json is not None
        return self._json


def data_json(metadata: dict[str, Any], content: Any) -> bytes:
    """Return `{"metadata": ..., "content": ...}` as ceramic-one has it.

    Bytes and links are written as in DAG-JSON.
    """
    value = {"metadata": metadata, "content": content}
    try:
        return orjson.dumps(value, default=dag_json)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, or nested too deep for it
        return _ENCODER.encode(value).encode()


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":"), default=dag_json
)
