"""Capabilities: what an account lets a key do in its name (CACAO, CAIP-74), and their files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from recon_node.ceramic import CeramicError
from recon_node.ceramic.auth.cacao import Cacao
from recon_node.ceramic.auth.signature import verified_capability
from recon_node.client.errors import InvalidArgumentError, KeyFileError
from recon_node.ipld import IpldError, multibase


@dataclass(frozen=True, slots=True)
class Capability:
    """What an account has signed: that a key may write in its name. It is not a secret.

    Raises:
        InvalidArgumentError: the block is not a CACAO that its issuer has signed.
    """

    block: bytes = field(repr=False)
    cacao: Cacao = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read and verify the block."""
        try:
            object.__setattr__(self, "cacao", verified_capability(self.block))
        except CeramicError as error:
            raise InvalidArgumentError(str(error)) from None

    @property
    def issuer(self) -> str:
        """The DID of the account."""
        return self.cacao.issuer

    @property
    def audience(self) -> str:
        """The did:key of the key that may write."""
        return self.cacao.audience

    @property
    def resources(self) -> tuple[str, ...]:
        """What it may write: `ceramic://*`, `ceramic://*?model=<StreamID>`, or single streams."""
        return self.cacao.resources

    @property
    def expires(self) -> datetime | None:
        """Until when it may; None means forever."""
        seconds = self.cacao.validity.expires
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a capability from a file: multibase text of its block.

        Raises:
            KeyFileError: the file cannot be read, or does not hold a capability.
        """
        try:
            return cls(multibase.decode(Path(path).read_text(encoding="ascii").strip()))
        except OSError as error:
            raise KeyFileError(f"the capability {path}: {error.strerror or error}") from None
        except (IpldError, ValueError) as error:
            raise KeyFileError(f"the capability {path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the capability to a file, over an earlier one.

        Raises:
            KeyFileError: the file cannot be written.
        """
        try:
            Path(path).write_text(multibase.encode(self.block) + "\n", encoding="ascii")
        except OSError as error:
            raise KeyFileError(f"the capability {path}: {error.strerror or error}") from None
