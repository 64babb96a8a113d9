"""What goes wrong on this floor. All of it is bad input, hence `ValueError`."""


class IpldError(ValueError):
    """Bytes or text that are not what they claim to be. The message is for people."""


class VarintError(IpldError):
    """Not an unsigned varint in its shortest form."""


class CidError(IpldError):
    """Not a CIDv1, or one that this library cannot work with."""


class DagCborError(IpldError):
    """Not strict DAG-CBOR, or a value that DAG-CBOR cannot hold."""


class DagPbError(IpldError):
    """Not strict DAG-PB."""


class UnixFsError(IpldError):
    """Not UnixFS, or a kind of it that cannot be used here."""


class CarError(IpldError):
    """Not a CARv1, or one whose blocks do not match their CIDs."""


class MultibaseError(IpldError):
    """Not multibase text."""
