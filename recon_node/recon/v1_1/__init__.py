"""`/ceramic/recon/1.1.0`: the protocol of this project, which new nodes speak with each other."""

from typing import Final

from recon_node.recon.session import Version
from recon_node.recon.v1_1.codec import Message, encode_message, weigh
from recon_node.recon.v1_1.reader import decode_message
from recon_node.recon.v1_1.session import Session11

RECON_1_1: Final[Version[Message]] = Version(
    "/ceramic/recon/1.1.0", Session11, encode_message, decode_message, weigh, keeps_stream=True
)
