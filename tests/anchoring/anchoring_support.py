"""What the tests of anchoring share."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from recon_node.anchoring.anchoring_service import Anchoring
from recon_node.ceramic import Network
from recon_node.store import Store

NETWORK = Network.local(7)
Opened = AbstractAsyncContextManager[tuple[Store, Anchoring]]
