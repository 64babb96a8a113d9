"""`/ceramic/recon/1.0.0`: the messages of CIP-124, for peers that speak nothing newer.

In reading order:

    cip124_session  a session
    cip124_reply    an answer, as it is written
    cip124_codec    the messages, and their bytes
"""

from typing import Final

from recon_node.recon.cip124.cip124_codec import (
    Cip124Message,
    decode_message,
    encode_message,
    weigh,
)
from recon_node.recon.cip124.cip124_session import Cip124Session
from recon_node.recon.session import Version

RECON_1_0: Final[Version[Cip124Message]] = Version(
    "/ceramic/recon/1.0.0", Cip124Session, encode_message, decode_message, weigh
)
