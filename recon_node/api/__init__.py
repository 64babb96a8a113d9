"""The HTTP API.

It has the paths, bodies and status codes of a ceramic-one node (events, streams, feed, interests,
peers), and also the feed as Arrow, the state of Recon, metrics, the OpenAPI document, and pages for
people. It knows the store, and only the public names of the network side. In reading order:

    listener           where it listens
    server             serves the application on trio: connections, and HTTP/1.1 in them
    middleware         what every request passes: counting, who may send it, time and size
    app                the application: all endpoints, and which one a request is for
    endpoint           how an endpoint is declared, and what of the node its handler may use
    routes/            the endpoints
    models             how bodies and parameters are read and written
    errors             how errors are answered
    evaluation         computes streams in other processes
    evaluation_worker  such a process
    metrics/           what Prometheus is shown
    openapi            the OpenAPI document
    settings           the address, who may use the API, and the bounds of requests

A name is imported when it is first used: the processes that compute streams (`evaluation_worker`)
need none of them, and start in half the time without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recon_node.api.app import create_app
    from recon_node.api.endpoint import Services
    from recon_node.api.listener import Listener, ListenError, open_listener
    from recon_node.api.server import serve
    from recon_node.api.settings import Access, ApiSettings, Limits, split_host_port

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
    "endpoint": ("Services",),
    "listener": ("ListenError", "Listener", "open_listener"),
    "server": ("serve",),
    "settings": ("Access", "ApiSettings", "Limits", "split_host_port"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
