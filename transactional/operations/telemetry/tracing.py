"""Makes traces as OpenTelemetry's environment variables say; its packages are imported only if there is an exporter."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from transactional.model.names import DISTRIBUTION
from transactional.operations.telemetry.guarded_observer import GuardedObserver
from transactional.operations.telemetry.run_log import LOGGER
from transactional.runtime.engine.history.observing import Observer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
FLUSH_S: Final = 5.0
"""The time for which the end of a run waits for spans to be sent."""
COMPLAIN_EVERY_S: Final = 60.0
_log: Final = logging.getLogger(LOGGER)


def exporter_name(environ: Mapping[str, str]) -> str | None:
    """Return the exporter named by the environment, `otlp`, `console` or that of a package, or None for no traces."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    default = "otlp" if any(environ.get(name) for name in ENDPOINTS) else "none"
    name = environ.get("OTEL_TRACES_EXPORTER", "").strip() or default
    return None if name == "none" else name


@contextmanager
def tracing(topology_id: str, environ: Mapping[str, str] = os.environ) -> Iterator[list[Observer]]:
    """Yield the observers that make traces of a run, if the environment has an exporter. Traces that can't be made are
    a warning."""
    name = exporter_name(environ)
    if name is None:
        yield []
        return
    try:
        exporter = make_exporter(name, environ)
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from transactional.operations.telemetry.spans import Traces

        traces = Traces(topology_id, BatchSpanProcessor(exporter))
    except ModuleNotFoundError as error:
        text = "no traces are made: %s; they need more packages: pip install '%s[otel]'"
        _log.warning(text, error, DISTRIBUTION, extra={"_event": "no_traces"})
        yield []
        return
    except Exception as error:
        _log.warning("no traces are made: %s", error, extra={"_event": "no_traces"})
        yield []
        return
    complaints = logging.getLogger("opentelemetry")
    rate_limit = _RateLimit()
    for handler in _with_descendants(complaints):
        handler.addFilter(rate_limit)
    try:
        yield [GuardedObserver(traces, "traces")]
    finally:
        # An exporter may hang; the end of a run does not wait for it for long.
        closing = threading.Thread(target=traces.close, name="traces", daemon=True)
        closing.start()
        closing.join(FLUSH_S)
        for handler in _with_descendants(complaints):
            handler.removeFilter(rate_limit)


def make_exporter(name: str, environ: Mapping[str, str]) -> SpanExporter:
    """Return the exporter of this name. Raises `ValueError` if there is none."""
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if name in ("otlp", "otlp_proto_http"):
        protocol = next((environ[variable] for variable in PROTOCOLS if environ.get(variable)), "http/protobuf")
        if protocol != "http/protobuf":
            raise ValueError(f"they are sent by OTLP over HTTP (http/protobuf), and {protocol!r} is wanted")
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    for entry_point in entry_points(group="opentelemetry_traces_exporter", name=name):
        exporter: Any = entry_point.load()()
        return exporter
    raise ValueError(f"OTEL_TRACES_EXPORTER is {name!r}, and no package has an exporter of that name")


def _with_descendants(parent: logging.Logger) -> list[logging.Logger]:
    """Return a logger and those below it, because a filter sees only the records of its own logger."""
    descendants = [
        logger for name, logger in logging.root.manager.loggerDict.items() if name.startswith(f"{parent.name}.")
    ]
    return [parent, *(logger for logger in descendants if isinstance(logger, logging.Logger))]


class _RateLimit(logging.Filter):
    """Lets one complaint through a minute: an exporter that is down has one for each batch of spans."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged, and take away its traceback."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + COMPLAIN_EVERY_S
        record.exc_info = record.exc_text = None
        return True
