"""How long things take: histograms for the metrics, and OpenTelemetry traces.

Histograms need no metrics library here; `recon_node.api.metrics` writes them down for Prometheus.

Traces are spans of requests, syncs, transactions and the pipeline's batches. They are off unless
the setting `traces` is on, and then the only part that imports OpenTelemetry, which is installed by
the extra `otel`. A span is made when its work has ended, from what is counted and logged of it
anyway. So spans have no children here, but a request that carries a `traceparent` (W3C Trace
Context) has its span in its client's trace. Where spans go, by which name, and how many of them, is
up to OpenTelemetry's own environment variables (OTEL_*).
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from recon_node import __version__

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets, in seconds, unless others are given."""


class Durations:
    """Counts durations in seconds.

    Args:
        bounds: the upper bounds of the buckets, ascending. The last bucket has none.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        """The sum of all durations, in seconds."""

    def observe(self, seconds: float) -> None:
        """Count one duration. One that equals a bound belongs to the bucket below it."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each upper bound, and how many durations were not longer; the last is `+Inf`."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(map(float, self._counts)), strict=True))


if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Attributes: TypeAlias = Mapping[str, str | bool | int | float]
Kind: TypeAlias = Literal["INTERNAL", "SERVER", "CLIENT"]

FLUSH: Final = 1.0
"""Seconds to send the last spans at the end."""


class TracesError(Exception):
    """Traces are on, and OpenTelemetry is not installed. The message is user-facing."""


_add: Final[list[Callable[[str, float, Attributes, Kind, str | None, str | None], None]]] = []
"""What adds spans; nothing: traces are off."""


def span(
    name: str,
    seconds: float,
    attributes: Callable[[], Attributes],
    *,
    kind: Kind = "INTERNAL",
    error: str | None = None,
    caller: Callable[[], str | None] = lambda: None,
) -> None:
    """Add a span that ends now. Without traces, this does nothing, and calls neither function.

    `name` is one of few. `caller` returns the `traceparent` of the trace that it belongs to, if
    somebody sent one.
    """
    for add in _add:
        add(name, seconds, attributes(), kind, error, caller())


@contextmanager
def traced_by(provider: TracerProvider) -> Iterator[None]:
    """Have spans made by a provider of tracers while the block runs."""
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer = provider.get_tracer("recon_node", __version__)
    extract = TraceContextTextMapPropagator().extract

    def add(
        name: str,
        seconds: float,
        attributes: Attributes,
        kind: Kind,
        error: str | None,
        caller: str | None,
    ) -> None:
        end = time.time_ns()
        start = end - int(seconds * 1e9)
        context = extract({"traceparent": caller}) if caller else None
        made = tracer.start_span(name, context, SpanKind[kind], attributes, start_time=start)
        if error is not None:
            made.set_status(StatusCode.ERROR, error)
        made.end(end)

    _add.append(add)
    try:
        yield
    finally:
        _add.remove(add)


@contextmanager
def traces(service: str, *, on: bool) -> Iterator[None]:
    """Send spans by OTLP over HTTP while the block runs, if they are on.

    OTEL_SERVICE_NAME overrides `service`.

    Raises:
        TracesError: OpenTelemetry is not installed.
    """
    if not on:
        yield
        return
    provider = _exporting(os.environ.get("OTEL_SERVICE_NAME", service))
    try:
        with traced_by(provider):
            yield
    finally:  # a collector that does not answer must not hold the shutdown
        end = threading.Thread(target=provider.shutdown, daemon=True)
        end.start()
        end.join(FLUSH)


def _exporting(service: str) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracesError(
            f"traces are on, and OpenTelemetry is not installed ({error.name}): "
            "pip install 'recon-node[otel]', or switch them off"
        ) from None
    resource = Resource.create({"service.name": service, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
