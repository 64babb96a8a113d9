"""Floor 6: the HTTP API.

The paths, bodies and codes of a ceramic-one node (events, streams, feed, interests, peers), and
beside them the feed as Arrow, the state of Recon, metrics, the OpenAPI document of all this, and
pages for people. `create_app` makes the ASGI application over `Services`; `serve` serves it with
hypercorn on trio. This floor knows the store, and the network side only as `Peers`.
"""

from recon_node.api.app import create_app
from recon_node.api.middleware.access import Access
from recon_node.api.server import Listener, ListenError, open_listener, serve
from recon_node.api.services import Limits, Peers, Services

__all__ = [
    "Access",
    "Limits",
    "ListenError",
    "Listener",
    "Peers",
    "Services",
    "create_app",
    "open_listener",
    "serve",
]
