"""The errors of this package. All of them are caused by bad input, hence `ValueError`."""


class CeramicError(ValueError):
    """Input that breaks Ceramic's rules. The message is user-facing."""


class NetworkError(CeramicError):
    """Not the name or id of a Ceramic network."""


class StreamIdError(CeramicError):
    """Not a StreamID."""


class EventIdError(CeramicError):
    """Not an EventId of CIP-124."""


class DidError(CeramicError):
    """Not a DID, or not one that contains its key."""


class InvalidEventError(CeramicError):
    """Not a Ceramic event that this node accepts."""


class InvalidSignatureError(InvalidEventError):
    """The event lacks the signature that it needs, or the signature is wrong."""


class UnsupportedSignatureError(InvalidEventError):
    """A kind of signature that this node cannot check and therefore refuses."""
