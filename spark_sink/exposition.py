"""Metrics over HTTP, for Prometheus."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, disable_created_metrics, start_http_server

from spark_sink.errors import SinkError


@contextmanager
def served(registry: CollectorRegistry, address: str | None) -> Iterator[str | None]:
    """Serve the metrics at HOST:PORT during the block; yields the URL, or None without an address.

    Raises:
        SinkError: the address is invalid, or cannot be bound.
    """
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise SinkError(f"metrics are served at HOST:PORT, not at {address!r}")
    # Without this, each counter and histogram would have another series, of no use here.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, OverflowError) as error:
        raise SinkError(f"cannot serve metrics at {address}: {error}") from None
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
