"""What every operation of the client needs: who signs, and the models that are known.

Theory of operation. An operation is a generator: it yields a `Request`, is sent the `Answer`, and
returns its result. So each one is written once, as a function of a `Session`, and knows neither
httpx nor an event loop; the two clients (`clients`) only carry requests and answers back and forth.
Operations are composed with `yield from`.

The requests are those that a ceramic-one node has, too. What only this project's nodes have is
used where it helps, and missed without harm.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from recon_node.client.errors import InvalidArgumentError, NoKeyError
from recon_node.client.keys import Key
from recon_node.connection import Answer, Request
from recon_node.ipld import CID

T = TypeVar("T")
Steps: TypeAlias = Generator[Request, Answer, T]
"""An operation; see the module's text."""


@dataclass(slots=True)
class Session:
    """A client's key, and the models that it knows."""

    key: Key | None = None
    models: dict[CID, dict[CID, Any]] = field(default_factory=dict)
    """Definitions of models, by the CID of the model's init event, then by version."""

    def key_or(self, key: Key | None) -> Key:
        """Return the key of a call, or else the client's.

        Raises:
            NoKeyError: there is neither.
            InvalidArgumentError: it is something else.
        """
        chosen = key or self.key
        if chosen is None:
            raise NoKeyError
        if not isinstance(chosen, Key):
            raise InvalidArgumentError("`key` is a Key: Key.load(FILE) reads one from a file")
        return chosen
