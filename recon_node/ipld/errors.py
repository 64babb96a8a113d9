"""The errors of this room. All of them are caused by bad input, hence `ValueError`."""


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
