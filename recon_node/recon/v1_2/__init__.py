"""`/ceramic/recon/1.2.0`: coded symbols, for about a tenth of the bytes of 1.1.0."""

from typing import Final

from recon_node.recon.session import Version
from recon_node.recon.v1_2.codec import Message, decode_message, encode_message, weigh
from recon_node.recon.v1_2.session import Session12

RECON_1_2: Final[Version[Message]] = Version(
    "/ceramic/recon/1.2.0", Session12, encode_message, decode_message, weigh, keeps_stream=True
)
