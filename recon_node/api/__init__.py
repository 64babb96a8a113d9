"""The HTTP API.

It has the paths, bodies and status codes of a ceramic-one node (events, streams, feed, interests,
peers), and also the feed as Arrow, the state of Recon, metrics, the OpenAPI document, and pages for
people. `create_app` makes the ASGI application over `Services`; `serve` serves it with h11 on
trio. This room knows the store, and only the public names of the network side.

A name is imported when it is first used: the processes that compute streams (`evaluation_worker`)
need none of them, and start in half the time without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recon_node.api.app import create_app
    from recon_node.api.middleware.guard import Access
    from recon_node.api.server import Listener, ListenError, open_listener, serve
    from recon_node.api.services import Limits, Services
    from recon_node.api.settings import ApiSettings, split_host_port

__all__ = [
    "Access",
    "ApiSettings",
    "Limits",
    "ListenError",
    "Listener",
    "Services",
    "create_app",
    "open_listener",
    "serve",
    "split_host_port",
]
_MODULES = {
    "app": ("create_app",),
    "middleware.guard": ("Access",),
    "server": ("ListenError", "Listener", "open_listener", "serve"),
    "services": ("Limits", "Services"),
    "settings": ("ApiSettings", "split_host_port"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
