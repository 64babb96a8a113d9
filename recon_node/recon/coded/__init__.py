"""`/ceramic/recon/1.2.0`: coded symbols, ids in the place of keys, and short bounds.

In reading order: `coded_session`, `messages`, `coded_reply`, `salted`, `estimates`,
`encoding`.
"""

from typing import Final

from recon_node.recon.coded.coded_session import CodedSession
from recon_node.recon.coded.encoding import decode_message, encode_message
from recon_node.recon.coded.messages import Message, weigh
from recon_node.recon.session import Version

RECON_1_2: Final[Version[Message]] = Version(
    "/ceramic/recon/1.2.0",
    CodedSession,
    encode_message,
    decode_message,
    weigh,
    keeps_stream=True,
    tells_left_out=True,
)
