"""`/metrics`, `/livez` and `/readyz` over HTTP, in a thread of the run's process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from transactional.operations.telemetry.guarded_observer import GuardedObserver
from transactional.operations.telemetry.health import Health
from transactional.operations.telemetry.metrics import Metrics
from transactional.operations.web.connections import ConnectionLimits
from transactional.operations.web.server import bind, parse_address, serving_in_thread, url_of
from transactional.runtime.engine.history.observing import Observer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_TEXT: Final = "text/plain; charset=utf-8"
_LIMITS: Final = ConnectionLimits(connections=16)


class _Answers:
    """An ASGI application with the three pages. A connection gets one answer, because scrapers come rarely."""

    def __init__(self, registry: CollectorRegistry, health: Health) -> None:
        self._registry, self._health = registry, health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and close its connection."""
        request_headers = {name.decode("latin-1"): header.decode("latin-1") for name, header in scope["headers"]}
        status, content_type, body = self._page(scope["method"], scope["path"], request_headers)
        headers = {
            "content-type": content_type,
            "content-length": str(len(body)),
            "cache-control": "no-store",
            "connection": "close",
        }
        encoded = [(name.encode(), header.encode("latin-1")) for name, header in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})

    def _page(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str, bytes]:
        """Return the status, the content type and the content of a page."""
        if method not in ("GET", "HEAD"):
            return 405, _TEXT, b"pages are read with GET\n"
        match path:
            case "/metrics":
                encode, content_type = choose_encoder(headers.get("accept", ""))
                return 200, content_type, encode(self._registry)
            case "/livez" | "/readyz":
                is_well, text = self._health.live() if path == "/livez" else self._health.ready()
                return 200 if is_well else 503, _TEXT, f"{text}\n".encode()
        return 404, _TEXT, b"there are /metrics, /livez and /readyz\n"


@contextmanager
def serving_metrics(
    topology_id: str, address: str, components: Collection[str] = (), *, is_traced: bool = False
) -> Iterator[tuple[list[Observer], str]]:
    """Serve the metrics and the health of a run, and yield its observers and the URL of the metrics.

    `components` and `is_traced` are passed to `Metrics`. Port 0 takes any that is free. Raises `ConfigError` if the
    port is in use, or the address is not one of this machine's.
    """
    metrics, health = Metrics(topology_id, components, is_traced=is_traced), Health()
    answers = _Answers(metrics.registry, health)
    with (
        closing(bind(parse_address(address, server="metrics"), server="metrics")) as listening,
        serving_in_thread(answers, listening, name="metrics", limits=_LIMITS),
    ):
        yield [GuardedObserver(metrics, "metrics"), health], f"{url_of(listening)}metrics"
