"""Small files below a location by obstore: read and written in one request each, or put if absent.

Theory of operation. delta-rs and obstore are made from the same Rust library. The client of
delta-rs, behind Arrow's interface (`tables.location`), is for large files: it asks for the size of
one before it reads it, and writes it in parts. Files of a few KB take three times the requests so.
And an entry of a table's log may be put only if it is absent: on a disk that is a link, which can
be made once only, and in a store a conditional request. delta-rs does that for its own entries.

The answer to a request may be lost. Then the file is put again, and if it is there already, with
our bytes, the earlier attempt succeeded. So nobody else may ever put the same bytes.

Left to delta-rs are stores of S3's protocol that it was told to commit to in another way, because
they lack conditional requests, and credentials in a profile of Amazon's tools, which obstore does
not read.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import LocalStore, ObjectStore, from_url

from spark_sink.tables.location import Location, StoreUrl, absolute, storage_options

# Of a request that got no answer. What the store refuses for a while is repeated within one.
_ATTEMPTS: Final = 2
_RETRIES: Final = 12
_RETRY_TIMEOUT: Final = timedelta(seconds=30)
_CONDITION: Final = "aws_conditional_put"
# By these, delta-rs commits to S3 in another way, or with other credentials.
_OTHER_WAYS: Final = ("aws_s3_locking_provider", "aws_s3_allow_unsafe_rename", "aws_iam_role_arn")
_KEYS: Final = ("aws_access_key_id", "access_key_id")
_PROFILES: Final = (
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "~/.aws/config"),
)


def read(location: Location, name: str) -> pa.Buffer:
    """Return the bytes of a file, by its name below a location.

    This and what follows is for a location that `has_objects`.

    Raises:
        OSError: it is missing, or cannot be read.
    """
    with _faults():
        return pa.py_buffer(obstore.get(_opened(absolute(location)), name).bytes())


def read_end(location: Location, name: str, size: int, most: int) -> pa.Buffer:
    """Return the last bytes of a file of `size` bytes, `most` at most.

    Raises:
        OSError: it is missing, or cannot be read.
    """
    store, start = _opened(absolute(location)), max(0, size - most)
    with _faults():
        return pa.py_buffer(obstore.get_range(store, name, start=start, end=size))


def write(location: Location, name: str, data: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    with _faults():
        obstore.put(_opened(absolute(location)), name, data)


def put_if_absent(location: Location, name: str, data: bytes) -> None:
    """Write a file that does not exist, whole or not at all; nobody else may put these bytes.

    Raises:
        FileExistsError: the file exists.
        OSError: it could not be written, as far as is known.
    """
    store = _opened(absolute(location))
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            obstore.put(store, name, data, mode="create")
            return
        except AlreadyExistsError as error:
            with suppress(FileNotFoundError):
                if read(location, name).to_pybytes() == data:  # an answer was lost
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
def _opened(location: Location) -> ObjectStore:
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
        retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
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
