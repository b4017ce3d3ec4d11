"""`/metrics`, `/livez` and `/readyz` over HTTP, in threads of the run's process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from transactional.engine.history.observing import Observer
from transactional.errors import ConfigError
from transactional.telemetry.health import Health
from transactional.telemetry.metrics import Metrics
from transactional.telemetry.softly import Softly

_TEXT: Final = "text/plain; charset=utf-8"
_SLOW_S: Final = 5
_PORT_MAX: Final = 65_535


class _Handler(BaseHTTPRequestHandler):
    """Answers one client. It knows nothing but the three pages."""

    server: _Server
    timeout = _SLOW_S

    def do_GET(self) -> None:
        """Answer a request."""
        status, content_type, body = self.server.page(self.path.partition("?")[0], self.headers)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """What answers, without versions."""
        return "transactional"

    do_HEAD = do_GET  # noqa: N815 (http.server's name)

    def log_message(self, format: str, *given: Any) -> None:
        """A scrape is not worth a line."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: Health) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.registry, self.health = registry, health
        super().__init__((host, port), _Handler)

    def page(self, path: str, headers: Mapping[str, str] | Any) -> tuple[int, str, bytes]:
        """Status, content type and content."""
        match path:
            case "/metrics":
                encode, content_type = choose_encoder(headers.get("Accept", ""))
                return 200, content_type, encode(self.registry)
            case "/livez" | "/readyz":
                is_well, text = self.health.live() if path == "/livez" else self.health.ready()
                return 200 if is_well else 503, _TEXT, f"{text}\n".encode()
        return 404, _TEXT, b"there are /metrics, /livez and /readyz\n"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is none of our business."""


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPv6]:PORT`. Raises `ConfigError`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not host or not port.isdecimal() or int(port) > _PORT_MAX or (":" in host) != text.startswith("["):
        raise ConfigError(f"{text!r} is no address to listen on: use HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464")
    return host, int(port)


@contextmanager
def serving_metrics(
    topology_id: str, address: str, components: Collection[str] = (), *, is_traced: bool = False
) -> Iterator[tuple[list[Observer], str]]:
    """Serve the metrics and the health of a run; gives its observers, and the URL of the metrics. `components` and
    `is_traced` as in `Metrics`.

    Port 0: any that is free. Raises `ConfigError` if the address is taken, or none of this machine's.
    """
    host, port = address_of(address)
    metrics, health = Metrics(topology_id, components, is_traced=is_traced), Health()
    try:
        server = _Server(host, port, metrics.registry, health)
    except OSError as error:
        raise ConfigError(
            f"metrics can't be served at {address}: {error.strerror or error}. Another process may be listening there: "
            "choose another port, or 0 for any that is free"
        ) from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics", daemon=True)
    thread.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield [Softly(metrics, "metrics"), health], f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
