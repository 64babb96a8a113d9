"""The errors of this package. All of them are caused by bad input, hence `ValueError`.

Beside them, `required_for`: the client is also installed without some packages.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

INSTALL_ALL: Final = (
    "install the client with all that it can use, `pip install './config/client[full]'` in the "
    "directory of the project's source, or the wheel of a release with the extra `full`"
)
"""What to do about a package that is missing; the client is not on PyPI."""


class IpldError(ValueError):
    """Bytes or text that are not what they claim to be. The message is user-facing."""


class VarintError(IpldError):
    """Not an unsigned varint in its shortest form."""


class CidError(IpldError):
    """Not a CIDv1, or one that is not supported here."""


class DagCborError(IpldError):
    """Not strict DAG-CBOR, or a value that DAG-CBOR cannot hold."""


class DagPbError(IpldError):
    """Not strict DAG-PB."""


class LinksError(IpldError):
    """A block whose links cannot be read."""


class CarError(IpldError):
    """Not a CARv1, or one whose blocks do not match their CIDs."""


class MultibaseError(IpldError):
    """Not multibase text."""


@contextmanager
def required_for(purpose: str) -> Iterator[None]:
    """Say what to install if the client was installed without what a purpose needs.

    Raises:
        ModuleNotFoundError: a package cannot be imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{purpose} need the package {error.name}: {INSTALL_ALL}", name=error.name
        ) from None
