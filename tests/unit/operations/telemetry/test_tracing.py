"""Which traces the environment wants, what a receiver gets, and that one which is down costs no transaction."""

from __future__ import annotations

import gzip
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tests.unit.command_line import RUN, Command
from transactional.operations.telemetry import tracing as traces
from transactional.operations.telemetry.trace_ids import trace_id_of
from transactional.operations.telemetry.tracing import exporter_name, make_exporter, tracing


class Receiver(ThreadingHTTPServer):
    """An OTLP collector on this machine."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.resources.append({each.key: each.value.string_value for each in resource.resource.attributes})
            for scope in resource.scope_spans:
                self.server.spans.extend(scope.spans)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *given: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, None),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, None),
    ],
)
def test_the_environment_says_which_exporter(environ: dict[str, str], name: str | None) -> None:
    assert exporter_name(environ) == name


def test_a_real_receiver_gets_the_traces_of_a_run(
    command: Command, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    done = command(*RUN, "{m}:topology")
    assert (done.code, done.err) == (0, "")
    assert {int.from_bytes(span.trace_id) for span in receiver.spans} == {
        trace_id_of("words", 1),
        trace_id_of("words", 2),
    }
    assert {"transaction words", "plan", "process", "commit"} <= {span.name for span in receiver.spans}
    assert {resource["service.name"] for resource in receiver.resources} == {"transactional"}


def test_without_a_word_in_the_environment_nothing_is_imported(command: Command) -> None:
    before = {name for name in sys.modules if name.startswith("opentelemetry")}
    with tracing("words", {}) as observers:
        assert observers == []
    assert {name for name in sys.modules if name.startswith("opentelemetry")} == before


def test_a_receiver_that_is_down_loses_no_transaction(
    command: Command, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setattr(traces, "FLUSH_S", 2.0)
    done = command(*RUN, "{m}:topology")
    assert (done.code, done.out.splitlines()[-1]) == (0, "2 transactions committed, the last is 2; 0 attempts failed")
    complaints = [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert len(complaints) == 1
    assert complaints[0].exc_info is None


class Hangs(SpanExporter):
    """Never answers, until the test is over."""

    over, was_waited_for = threading.Event(), threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.shutdown()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        if not self.over.wait(5):
            self.was_waited_for.set()


def test_an_exporter_that_hangs_keeps_no_run_from_ending(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "make_exporter", lambda name, environ: Hangs())
    monkeypatch.setattr(traces, "FLUSH_S", 0.1)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    done = command(*RUN, "{m}:topology")
    assert (done.code, done.out.splitlines()[-1][:14]) == (0, "2 transactions")
    assert not Hangs.was_waited_for.is_set()
    Hangs.over.set()


@pytest.mark.parametrize(
    ("name", "environ", "says"),
    [
        ("nowhere", {}, "no package has an exporter"),
        ("otlp", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "'grpc' is wanted"),
    ],
)
def test_what_can_not_be_made_is_one_warning(
    name: str, environ: dict[str, str], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=says):
        make_exporter(name, environ)
    with tracing("words", {"OTEL_TRACES_EXPORTER": name, **environ}) as observers:
        assert observers == []
    [record] = caplog.records
    assert (record.levelno, says in record.getMessage()) == (logging.WARNING, True)


def test_without_its_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [
        each
        for each in sys.modules
        if each.startswith(("opentelemetry.exporter", "transactional.operations.telemetry.spans"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with tracing("words", {"OTEL_TRACES_EXPORTER": "otlp"}) as observers:
        assert observers == []
    assert "pip install 'transactional-topologies[otel]'" in caplog.text
