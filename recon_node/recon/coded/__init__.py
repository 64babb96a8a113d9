"""`/ceramic/recon/1.2.0`: coded symbols, ids in the place of keys, and short bounds.

In reading order:

    coded_session  a session: the theory, what may answer what, and the peer's turn
    messages       what a message has, and its bytes
    coded_answers  the answer where the sides differ
    coded_reply    writes our turn
    salted         fingerprints that nobody could prepare for
    estimates      how many keys differ, and whether symbols or ranges show which
"""

from typing import Final

from recon_node.recon.coded.coded_session import CodedSession
from recon_node.recon.coded.messages import Message, decode_message, encode_message, weigh
from recon_node.recon.session import Version

RECON_1_2: Final[Version[Message]] = Version(
    "/ceramic/recon/1.2.0",
    CodedSession,
    encode_message,
    decode_message,
    weigh,
    keeps_stream=True,
    reports_left_out=True,
)
