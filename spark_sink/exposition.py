"""Metrics over HTTP, for Prometheus."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from platform import python_version
from socket import SHUT_RDWR
from threading import BoundedSemaphore, Timer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from recon_node import __version__
from recon_node.base.program import bind_advice
from spark_sink.errors import SinkError


def new_registry(build_info: str, **versions: str) -> CollectorRegistry:
    """Return a registry with the metrics of the process, and of its versions.

    Args:
        build_info: the name of the metric with the versions.
        versions: more of them than our own and Python's, by label.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    labels = {"version": __version__, "python_version": python_version(), **versions}
    build = Gauge(build_info, "Always 1. The versions that run.", labels, registry=registry)
    build.labels(**labels).set(1)
    return registry


@contextmanager
def served(registry: CollectorRegistry, address: str | None) -> Iterator[str | None]:
    """Serve the metrics at HOST:PORT during the block; yields the URL, or None without an address.

    Raises:
        SinkError: the address cannot be bound.
    """
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    # Without this, each counter and histogram would have another series, of no use here.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        advice = bind_advice(error, int(port), "--metrics")
        raise SinkError(f"cannot serve metrics at {address}: {error.strerror}. {advice}") from None
    server.RequestHandlerClass = _Handler
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(WSGIRequestHandler):
    """Few at once, and none for long: each has a thread and a file of the process."""

    timeout = 5.0
    places = BoundedSemaphore(16)

    def handle(self) -> None:
        """Answer a request, or hang up, as on a client that is silent, slow or gone."""
        if not self.places.acquire(blocking=False):
            return
        end = Timer(self.timeout, self._end)
        end.start()
        try:
            with suppress(OSError):
                super().handle()
        finally:
            end.cancel()
            self.places.release()

    def _end(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
