"""Traces: what has a span, that nothing has one by default, and that they reach a collector."""

import sys
from collections.abc import Iterator
from dataclasses import fields
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry, Histogram
from support import sdk_sample
from support.web_server import serving

from recon_node.api.app import create_app
from recon_node.api.endpoint import Services
from recon_node.base.timing import BOUNDS, Durations, TracesError, span, traced_by, traces
from recon_node.ceramic import Network
from recon_node.p2p.context import Counters
from recon_node.p2p.sync.sessions import SyncHistory, SyncReport
from recon_node.store import open_store


@given(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 100))))
def test_the_buckets_are_those_of_prometheus(seconds: list[float]) -> None:
    oracle = Histogram("h", "h", buckets=BOUNDS, registry=CollectorRegistry())
    durations = Durations()
    for duration in seconds:
        oracle.observe(duration)
        durations.observe(duration)
    [family] = oracle.collect()
    expected = [
        (sample.labels["le"], sample.value) for sample in family.samples if "le" in sample.labels
    ]
    assert durations.cumulative() == expected
    assert durations.count == len(seconds)
    assert durations.sum == pytest.approx(sum(seconds))


pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with traced_by(provider):
        yield exporter
    provider.shutdown()


async def test_a_request_and_its_transaction_have_spans(spans, tmp_path):
    car = sdk_sample.lines()[0]["car"]
    async with open_store(tmp_path, Network.local(7)) as store:
        transport = httpx.ASGITransport(create_app(Services(store=store)))
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as api:
            headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
            await api.post("/ceramic/events", json={"data": car}, headers=headers)
            await api.get("/ceramic/events/x")
    batch, post, get = spans.get_finished_spans()
    assert (batch.name, dict(batch.attributes or {})["recon.events"]) == ("batch of events", 1)
    assert (post.name, post.kind) == ("POST /ceramic/events", SpanKind.SERVER)
    assert f"{post.context.trace_id:x}" == TRACE, "it is in its client's trace"
    assert post.start_time is not None
    assert post.start_time <= batch.start_time
    assert get.name == "GET /ceramic/events/{event_id}"
    attributes: dict[str, Any] = dict(get.attributes or {})
    assert (attributes["url.path"], attributes["http.response.status_code"]) == (
        "/ceramic/events/x",
        400,
    )
    assert [span_.status.is_ok for span_ in (batch, post, get)] == [True] * 3


def report(outcome: str) -> SyncReport:
    numbers = {field.name: 3 for field in fields(SyncReport) if field.type == "int"}
    return SyncReport(
        peer="12D3KooW",
        role="initiator",
        protocol="/ceramic/recon/1.2.0",
        seconds=1.5,
        outcome=outcome,
        finished_at=0.0,
        **numbers,
    )


def test_a_sync_has_a_span_with_its_report(spans: InMemorySpanExporter) -> None:
    history = SyncHistory(Counters())
    history.add(report("agreed"))
    history.add(report("the peer broke the protocol"))
    good, bad = spans.get_finished_spans()
    attributes: dict[str, Any] = dict(good.attributes or {})
    assert (attributes["recon.peer"], attributes["recon.rounds"]) == ("12D3KooW", 3)
    assert good.start_time is not None
    assert good.end_time is not None
    assert good.end_time - good.start_time == 1_500_000_000
    assert (good.status.is_ok, bad.status.is_ok) == (True, False)
    assert bad.status.description == "the peer broke the protocol"


def test_without_traces_nothing_is_asked() -> None:
    def attributes() -> dict[str, str]:
        raise AssertionError("nobody wants to know")

    span("sync", 1.0, attributes)
    with traces("recon-node", on=False):
        span("sync", 1.0, attributes)


def test_they_are_sent_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[tuple[str, bytes]] = []

    def collect(handler: BaseHTTPRequestHandler) -> None:
        received.append((handler.path, handler.rfile.read(int(handler.headers["content-length"]))))
        handler.send_response(200)
        handler.end_headers()

    with serving(collect) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setattr("recon_node.base.timing.FLUSH", 60.0)
        with traces("spark-sink", on=True):
            span("pipeline batch", 0.5, lambda: {"recon.rows": 930})
    [(path, body)] = received
    assert path == "/v1/traces"
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    named = {
        attribute.key: attribute.value.string_value for attribute in resource.resource.attributes
    }
    assert named["service.name"] == "spark-sink"
    [sent] = resource.scope_spans[0].spans
    assert (sent.name, sent.attributes[0].value.int_value) == ("pipeline batch", 930)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with (
        pytest.raises(TracesError, match=r"pip install 'recon-node\[otel\]'"),
        traces("recon-node", on=True),
    ):
        pass
