"""Where tables are: a directory of this machine, or one in an object store; and the files there.

Theory of operation. Files are reached by their names relative to the location, which are the names
in a Delta log. A location can be sent to a worker, which opens the store itself. There are two
clients, made from the same Rust library, with one set of options and credentials, to S3, Google
Cloud and Azure alike:

- `file_system`, for large files: Arrow's interface, behind which is Arrow's own local file system,
  or the client of delta-rs. It asks for the size of a file before it reads it, and writes it in
  parts.
- *Objects*, by obstore: files of a few KB, for which that would take three times the requests, are
  read and written in one request each. And an entry of a table's log may be put only if it is
  absent: on a disk that is a link, which can be made once only, and in a store a conditional
  request.

The answer to a request may be lost. Then the object is put again, and if it is there already, with
our bytes, the earlier attempt succeeded. So nobody else may ever put the same bytes.

delta-rs takes credentials and settings from `options` and from the environment, as the tools of
each provider have them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_PROFILE, ...). Options may be
secrets: they are never part of a message or of `repr`.

Functions that open tables raise `TablesError` if there can be none, or the store does not answer.

Left to delta-rs alone (`has_objects`) are stores of S3's protocol where it is to commit in another
way, because they lack conditional requests, and credentials in a profile of Amazon's tools,
which obstore does not read.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import LocalStore, ObjectStore, from_url
from pyarrow.fs import (
    FileInfo,
    FileSelector,
    FileSystem,
    FileType,
    LocalFileSystem,
    PyFileSystem,
    SubTreeFileSystem,
)

from spark_sink.errors import TablesError, cannot_open

FAULTS: Final = (DeltaError, OSError, pa.ArrowException)
"""Exceptions of the disk, the store and the libraries that read and write tables."""
SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""The schemes of stores, as delta-rs knows them, without the name of a provider's account."""
_ENDPOINTS: Final = {
    **dict.fromkeys(("s3", "s3a"), ("AWS_ENDPOINT_URL", "AWS_ENDPOINT")),
    **dict.fromkeys(("az", "abfs", "abfss"), ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")),
    "gs": ("GOOGLE_BASE_URL",),
}
"""Variables with the address of a server that speaks a provider's protocol, by scheme. They are
options of delta-rs, too, in lower case."""
_SHORT_NAMES: Final = ("endpoint", "endpoint_url")
_CONDITION: Final = "aws_conditional_put"
# A request that fails is repeated for half a minute: a store restarts in less, and a wrong address
# is an error soon enough.
_RETRIES: Final = 12
_RETRY_SECONDS: Final = 30
_STORE_TIMEOUTS: Final = {
    "connect_timeout": "5s",
    "timeout": "60s",
    "max_retries": str(_RETRIES),
    "retry_timeout": f"{_RETRY_SECONDS}s",
    # Commits are put only if nobody else has put them: S3 and the like check that by ETag.
    _CONDITION: "etag",
}
_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")
_PATTERNS: Final = frozenset("*?[]{}=")
_ATTEMPTS: Final = 2
"""How often a request without an answer is made. What the store refuses for a while is repeated
within one."""
_OTHER_WAYS: Final = ("aws_s3_locking_provider", "aws_s3_allow_unsafe_rename", "aws_iam_role_arn")
"""Settings by which delta-rs commits to S3 in another way, or with other credentials."""
_KEYS: Final = ("aws_access_key_id", "access_key_id")
_PROFILES: Final = (
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "~/.aws/config"),
)
_REQUESTS: Final = 16
"""Requests to a store at the same time: it answers each in tens of milliseconds."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@contextmanager
def faults_as(described: Callable[[Exception], TablesError]) -> Iterator[None]:
    """Raise faults of the block as the error that a function, such as `cannot_read`, returns."""
    try:
        yield
    except FAULTS as error:
        raise described(error) from error


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A directory in an object store, such as s3://bucket/ceramic. Has a part of Path's methods.

    Attributes:
        url: without a slash at its end.
        options: of delta-rs for the store, beyond those of the environment.
    """

    url: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "StoreUrl":
        return replace(self, url=f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> "StoreUrl":
        """The directory above."""
        return replace(self, url=self.url.rpartition("/")[0])


Location = Path | StoreUrl


def location_of(text: str, options: Mapping[str, str]) -> Location:
    """Return the location that a path or a URL names.

    Args:
        text: a path, file:///path, or the URL of a store: s3://bucket/path, gs://..., az://...
        options: of delta-rs for the store.

    Raises:
        ValueError: it names none; the message says why.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(text)
    parts = urlsplit(text)
    if scheme == "file":
        return Path(unquote(parts.path))
    if scheme not in SCHEMES:
        raise ValueError(f"the URL of a store begins with {', '.join(s + '://' for s in SCHEMES)}")
    if not parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"the URL of a store has the form {scheme}://BUCKET/PATH")
    return StoreUrl(f"{scheme}://{rest.rstrip('/')}", tuple(sorted(options.items())))


def absolute(location: Location) -> Location:
    """Return a location that is the same in every process of this machine."""
    return location.absolute() if isinstance(location, Path) else location


def file_system(location: Location) -> FileSystem:
    """Return the files below a location, by their names relative to it."""
    if isinstance(location, Path):
        return SubTreeFileSystem(str(location.absolute()), LocalFileSystem())
    return _store(location)


@lru_cache(maxsize=64)
def _store(location: StoreUrl) -> FileSystem:
    return PyFileSystem(DeltaStorageHandler(location.url, storage_options(location)))


def storage_options(location: Location) -> dict[str, str] | None:
    """Return the options of delta-rs for a location; None for a directory.

    Raises:
        TablesError: the address of the store's server is not a URL: delta-rs would panic.
    """
    if isinstance(location, Path):
        return None
    options = dict(location.options)
    variables = _ENDPOINTS[location.url.partition("://")[0]]
    names = (*map(str.lower, variables), *_SHORT_NAMES)
    addresses = {name: os.environ[name] for name in variables if name in os.environ}
    addresses |= {name: value for name, value in options.items() if name.lower() in names}
    for name, address in addresses.items():
        if not address.startswith(("http://", "https://")):
            raise TablesError(
                f"{name} is {address!r}, which is not the URL of a store's server: write "
                "http://HOST:PORT or https://HOST:PORT"
            )
    if any(address.startswith("http://") for address in addresses.values()):
        options = {"allow_http": "true", **options}
    return {**_STORE_TIMEOUTS, **options}


def delta_uri(location: Location) -> str:
    """Return what delta-rs takes for the location of a table.

    Raises:
        TablesError: it would take it for another one: it decodes %20 in a path, whether that is
            encoded or not, and takes a backslash for a slash.
    """
    whole = os.path.realpath(location) if isinstance(location, Path) else str(location)
    if wrong := _MISREAD.search(whole):
        raise TablesError(
            f"the tables cannot be in {whole}: the library that writes them takes {wrong[0]!r} in "
            "a path for something else. Use another directory, or rename it"
        )
    return str(location)


def has_literal_path(location: Location) -> bool:
    """Return whether DuckDB takes a path as it is, without patterns and columns in it."""
    return isinstance(location, Path) and not _PATTERNS.intersection(os.path.realpath(location))


def is_delta(location: Location) -> bool:
    """Return whether there is a Delta table at a location."""
    return DeltaTable.is_deltatable(delta_uri(location), storage_options(location))


def find_delta_table(location: Location) -> DeltaTable | None:
    """Open the Delta table at a location; None if there is none."""
    with faults_as(partial(cannot_open, location)):
        return open_delta_table(location) if is_delta(location) else None


def open_delta_table(location: Location, version: int | None = None) -> DeltaTable:
    """Open the Delta table at a location; by default, its latest version."""
    options = storage_options(location)
    return DeltaTable(delta_uri(location), version=version, storage_options=options)


def move_file(name: str, origin: Location, target: Location) -> None:
    """Move a file from one location to another below the same parent, or deeper, by its name.

    In a store, it is copied there and deleted.
    """
    root = absolute(target).parent
    inner = str(absolute(origin)).removeprefix(str(root)).strip("/")
    files = file_system(root)
    files.create_dir(f"{target.name}/{name}".rpartition("/")[0])
    files.move(f"{inner}/{name}", f"{target.name}/{name}")


def files_below(location: Location, name: str = "") -> list[FileInfo]:
    """List the files below a directory at a location, with their directories' files."""
    selector = FileSelector(name, allow_not_found=True, recursive=True)
    infos = file_system(location).get_file_info(selector)
    return [file for file in infos if file.type is FileType.File]


def delete_below(location: Location, name: str) -> None:
    """Delete a directory at a location and its files, as far as that is possible."""
    with suppress(*FAULTS):
        file_system(location).delete_dir(name)


def concurrently(
    location: Location, function: Callable[[Item], Answer], items: Iterable[Item]
) -> list[Answer]:
    """Call a function for each item, at once if each waits for the requests of a store."""
    if isinstance(location, Path):
        return [function(item) for item in items]
    with ThreadPoolExecutor(_REQUESTS, "store") as pool:
        return list(pool.map(function, items))


def read_object(location: Location, name: str, start: int = 0, end: int | None = None) -> pa.Buffer:
    """Return bytes of a file, by its name below a location; raise OSError if that fails.

    This and the next two are for a location that `has_objects`.
    """
    store = _objects(absolute(location))
    with _faults():
        if end is None:
            return pa.py_buffer(obstore.get(store, name).bytes())
        return pa.py_buffer(obstore.get_range(store, name, start=start, end=end))


def put_object(location: Location, name: str, data: bytes) -> None:
    """Write a file, whole or not at all; raise OSError if that fails."""
    with _faults():
        obstore.put(_objects(absolute(location)), name, data)


def put_if_absent(location: Location, name: str, data: bytes) -> None:
    """Write a file that does not exist, whole or not at all; nobody else may put these bytes.

    Raises:
        FileExistsError: the file exists.
        OSError: it could not be written, as far as is known.
    """
    store = _objects(absolute(location))
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            obstore.put(store, name, data, mode="create")
            return
        except AlreadyExistsError as error:
            with suppress(FileNotFoundError):
                if read_object(location, name).to_pybytes() == data:  # an answer was lost
                    return
                raise FileExistsError(f"{location / name} exists") from error
            # S3 says so, too, while another request to put it has not ended, and may yet fail.
            if attempt == _ATTEMPTS:
                raise FileExistsError(f"{location / name} is being written") from error
        except BaseError as error:
            if attempt == _ATTEMPTS:
                raise OSError(str(error)) from error


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except BaseError as error:
        raise OSError(str(error)) from error


def has_objects(location: Location) -> bool:
    """Return whether files can be read and written here, rather than by delta-rs alone."""
    if isinstance(location, Path) or not location.url.startswith("s3"):
        return True
    options = _lower(storage_options(location) or {})
    given = _lower(os.environ) | options
    if options[_CONDITION] != "etag" or any(given.get(name) for name in _OTHER_WAYS):
        return False
    has_profile = "AWS_PROFILE" in os.environ or any(
        Path(os.environ.get(name) or default).expanduser().exists() for name, default in _PROFILES
    )
    return not has_profile or any(given.get(name) for name in _KEYS)


@lru_cache(maxsize=64)
def _objects(location: Location) -> ObjectStore:
    if isinstance(location, Path):
        return LocalStore(location)
    client: Any = {}
    config: Any = {}
    for name, value in _lower(storage_options(location) or {}).items():
        if _knows(location, ValueError, client_options={name: value}):  # it is asked for first
            client[name] = value
        elif _knows(location, UnknownConfigurationKeyError, config={name: value}):
            config[name] = value
    return from_url(
        location.url,
        config=config,
        client_options=client,
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
    )


def _knows(location: StoreUrl, unknown: type[Exception], **options: Any) -> bool:
    """Return whether obstore knows an option; if not, it raises `unknown`."""
    try:
        from_url(location.url, **options)
    except unknown:
        return False
    except (BaseError, ValueError):  # without the others
        return True
    return True


def _lower(values: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in values.items()}


def local_directory(location: Location) -> Path:
    """Return the directory for what belongs to tables but stays on this machine.

    That is the tables' own, or for those in a store, one in the user's directory for state.
    """
    if isinstance(location, Path):
        return location
    home = Path(os.environ.get("HOME") or "/")
    state = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", location.url)
    digest = hashlib.sha256(location.url.encode()).hexdigest()[:8]
    return state / "spark-sink" / f"{readable}-{digest}"
