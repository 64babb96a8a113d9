"""Object stores: values by name, wherever they are. All calls block; use them in threads.

A store is named by a URL: `file:///srv/snapshots`, `s3://bucket/prefix`, `gs://...`, `az://...`,
`memory://`, and, for reading, `https://host/path`. The library is obstore: one Rust extension
without further dependencies, whose calls release the interpreter lock, with bounded retries. The
operator of such a store is trusted not to fill this process's memory; that of a web server is not
(`web`). Credentials come from the environment, as the tools of each provider have it
(AWS_ACCESS_KEY_ID...).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import HTTPStore, LocalStore, MemoryStore, from_url

from recon_node.base.errors import plain, without_passwords
from recon_node.base.files import room_at
from recon_node.snapshot.web import WebServer

_FAILURES: Final = (BaseError, OSError, ValueError)
_METADATA: Final = re.compile(r"169\.254\.169\.254|metadata\.google|/latest/(api/token|meta-)")
"""In the URL of a cloud machine's metadata, where the library looks for credentials last."""
_MAX_REASON: Final = 300
"""Characters of a library's explanation."""
TIMEOUT: Final = 30.0
"""Seconds without a byte after which a request is given up."""
TOTAL_TIMEOUT: Final = 120.0
"""Seconds for one request, however steadily its answer trickles."""
FILE_TIMEOUT: Final = 86_400.0
"""Seconds for a request that is answered by a file as large as a log."""
RETRIES: Final = 3
_PART_BYTES: Final = 5 * 1024 * 1024
_MAX_PARTS: Final = 10_000
"""Parts that S3 takes of an object: those of a file of more than 48 GiB are larger."""
PARTS_AT_ONCE: Final = 4
"""Parts that are sent at the same time. One of 5 MiB is done in `TOTAL_TIMEOUT` at 1.4 Mbit/s."""
MAX_WHOLE: Final = 1024 * 1024
"""Bytes of an object that is read as a whole, at most: only root objects are."""
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AZURITE_BLOB_STORAGE_URL", "STORAGE_EMULATOR_HOST")
"""Variables with the address of a server that speaks a provider's protocol."""
_READ_BYTES: Final = 1024 * 1024
_MAX_FAULTS: Final = 1000
"""Faults that are listed; further ones are only counted."""


class ObjectError(Exception):
    """An object cannot be read or written; the message names it and says why."""


class MissingObjectError(ObjectError):
    """There is no object of that name."""


class UnavailableError(ObjectError):
    """The store did not answer, or not with the object."""


class UrlError(ObjectError):
    """A URL names no object store that can be used."""


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, in lower case; "" for a path.

    Raises:
        UrlError: it is not a URL.
    """
    try:
        return urlsplit(url).scheme
    except ValueError as error:
        raise UrlError(f"{without_passwords(url)!r} is not a URL: {error}") from None


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in a list."""

    name: str
    size: int
    """Bytes."""
    modified: datetime


@dataclass(slots=True)
class Traffic:
    """What was asked of a store."""

    requests: int = 0
    received: int = 0
    """Bytes of values."""
    sent: int = 0


class Objects:
    """The objects below a URL.

    Its methods raise `ObjectError` if an object is missing, or the store fails or refuses.

    Attributes:
        url: of the store, as messages have it: without a password.

    Args:
        url: of the store; see the module.
        store: of the library.
        web: what objects are read from instead.
    """

    def __init__(self, url: str, store: Any, web: WebServer | None = None) -> None:
        self.url = without_passwords(url)
        self._web = web
        self.traffic = Traffic()
        self._lock = threading.Lock()
        self._store = store

    @classmethod
    def open(
        cls,
        url: str,
        timeout: float = TIMEOUT,
        *,
        make: bool = False,
        total_timeout: float = TOTAL_TIMEOUT,
    ) -> Objects:
        """Return the store that a URL names. Nothing is asked of it yet.

        `url` may be a path of the file system, too. With `make`, it is written to, and the
        directory is made if there is none. A request is given up after `timeout` seconds without a
        byte of its answer, or after `total_timeout`; if it may have to send much first, only then.

        Raises:
            UrlError: no such store can be used.
        """
        if not url:  # as of "$NOT_SET"; it would be the working directory
            raise UrlError("the name of the directory or store is empty")
        try:
            scheme = scheme_of(url)
            if scheme == "memory":
                return cls(url, MemoryStore())
            if scheme in ("", "file"):
                path = unquote(urlsplit(url).path) if scheme else url
                directory = Path(path).expanduser().absolute()
                if not make and not directory.is_dir():
                    raise UrlError(f"the directory {directory} does not exist")
                return cls(url, LocalStore(directory, mkdir=True))
            total = max(timeout, total_timeout)
            client: Any = {
                "timeout": timedelta(seconds=total),
                "read_timeout": timedelta(seconds=total if make else timeout),
                "connect_timeout": timedelta(seconds=timeout),
            }
            endpoints = [url, *(os.environ.get(name, "") for name in _ENDPOINTS)]
            if any(endpoint.startswith("http://") for endpoint in endpoints):
                client["allow_http"] = True
            retries: Any = {
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=total * (RETRIES + 1)),
            }
            store = from_url(url, client_options=client, retry_config=retries)
            web = WebServer(url, timeout, total, RETRIES)
            return cls(url, store, web if isinstance(store, HTTPStore) else None)
        except _FAILURES as error:
            raise UrlError(
                f"cannot use the object store {without_passwords(url)!r}: {_reason(error)}. Use a "
                "URL such as file:///srv/snapshots, s3://bucket/path, gs://bucket/path or https://host/path"
            ) from None

    def get(self, name: str) -> bytes:
        """Return an object of at most `MAX_WHOLE` bytes."""
        data = self._read(name, MAX_WHOLE)
        if len(data) > MAX_WHOLE:
            raise ObjectError(
                f"{name} in {self.url} has more than {MAX_WHOLE} bytes: it is not a root object"
            )
        return data

    def get_range(self, name: str, start: int, size: int) -> bytes:
        """Return `size` bytes of an object."""
        data = self._read(name, size, start)
        if len(data) != size:
            raise ObjectError(
                f"{name} in {self.url} is truncated: it has no {size} bytes at byte {start}"
                if len(data) < size
                else f"{name} in {self.url}: more came than the {size} bytes from byte {start}"
            )
        return data

    def _read(self, name: str, most: int, start: int | None = None) -> bytes:
        """Return the bytes of an answer; if there are more than `most`, a few more than that."""
        data = b""
        read = self._read_store if self._web is None else self._web.read
        try:
            with self._explained(name, "read"):
                data = read(name, most, start)
        finally:
            self._count(received=len(data))
        return data

    def _read_store(self, name: str, most: int, start: int | None) -> bytes:
        """Read an answer in pieces: nothing keeps a server from sending without end."""
        options: Any = {} if start is None else {"range": (start, start + most)}
        parts: list[bytes] = []
        size = 0
        for part in self._get(name, options).stream(min_chunk_size=min(_READ_BYTES, most + 1)):
            parts.append(bytes(part))
            size += len(part)
            if size > most:
                break
        return b"".join(parts)

    def _get(self, name: str, options: Any) -> Any:
        if isinstance(self._store, LocalStore) and self._store.prefix is not None:
            path = Path(self._store.prefix) / name
            if path.exists() and not path.is_file():  # nobody may ever write to a pipe
                raise ValueError("it is not a file")
        return obstore.get(self._store, name, options=options)

    def fetch(self, name: str, path: Path) -> None:
        """Write an object to a new file, piece by piece, if the disk has room for it.

        Raises:
            OSError: the file cannot be written.
        """
        most = room_at(path.parent)
        with path.open("xb") as file:
            with self._explained(name, "read"):
                parts = iter(self._get(name, {}).stream(min_chunk_size=_READ_BYTES))
            while True:
                with self._explained(name, "read"):
                    part = next(parts, None)
                if part is None:
                    break
                if file.tell() + len(part) > most:
                    raise ObjectError(f"there is no room for {name} of {self.url} in {path.parent}")
                file.write(part)
            self._count(received=file.tell())

    def put(self, name: str, data: bytes | Path) -> None:
        """Write an object, or a file as one; others see it whole or not at all."""
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        part = max(_PART_BYTES, -(-size // _MAX_PARTS))
        with self._explained(name, "written"):
            obstore.put(self._store, name, data, chunk_size=part, max_concurrency=PARTS_AT_ONCE)
        self._count(sent=size)

    def put_missing(self, name: str, data: bytes) -> None:
        """Write an object whose name follows from its bytes, unless it is there.

        One of another size is written again: a server that lost power may have kept a part of it.
        """
        try:
            with self._explained(name, "looked up"):
                is_whole = obstore.head(self._store, name)["size"] == len(data)
        except MissingObjectError:
            is_whole = False
        finally:
            self._count()
        if not is_whole:
            self.put(name, data)

    def list(self, prefix: str) -> list[ListedObject]:
        """Return the objects below a prefix, by name; plain web servers cannot list them."""
        with self._explained(f"the objects below {prefix}", "listed"):
            entries = list(chain.from_iterable(obstore.list(self._store, prefix)))
        self._count()
        objects = (ListedObject(e["path"], e["size"], e["last_modified"]) for e in entries)
        return sorted(objects, key=lambda entry: entry.name)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; it does not matter if some are missing."""
        for name in names:
            with suppress(MissingObjectError), self._explained(name, "deleted"):
                obstore.delete(self._store, name)
            self._count()

    def _count(self, received: int = 0, sent: int = 0) -> None:
        with self._lock:
            self.traffic.requests += 1
            self.traffic.received += received
            self.traffic.sent += sent

    @contextmanager
    def _explained(self, name: str, what: str) -> Iterator[None]:
        try:
            if self._web is not None and what != "read":  # not by the library, as `web` has it
                raise ValueError("a web server can only be read")
            yield
        except FileNotFoundError:
            raise MissingObjectError(f"{name} is missing in {self.url}") from None
        except _FAILURES as error:
            reason = _reason(error)
            raise UnavailableError(f"{name} in {self.url} cannot be {what}: {reason}") from None


def _reason(error: Exception) -> str:
    """Return the library's explanation without its dump of internals."""
    text = plain(without_passwords(str(error).partition("\n\nDebug source")[0]))
    if _METADATA.search(text):
        return (
            "there are no credentials for the store: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or what its provider has instead, in the environment"
        )
    return text[:_MAX_REASON] or type(error).__name__


class SnapshotError(Exception):
    """A snapshot cannot be read, written or trusted. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class SnapshotFault:
    """Something of a snapshot that cannot be used."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


@dataclass(slots=True)
class Faults:
    """What cannot be used: there may be millions of faults, and each may be a stranger's."""

    faults: list[SnapshotFault] = field(default_factory=list)
    """The first 1000."""
    fault_count: int = 0

    def note(self, fault: SnapshotFault) -> None:
        """Note something that cannot be used."""
        self.fault_count += 1
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(fault)


OnFault = Callable[[SnapshotFault], None]
