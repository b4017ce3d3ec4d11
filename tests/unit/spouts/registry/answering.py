"""An HTTP server with answers that a test chooses: what a real registry gives only when something is wrong with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Answer = tuple[int, Any]
"""A status, and what is sent as JSON; bytes as they are."""


class Answering:
    """`answer` gives the answer to a path. `asked` are the requests so far: paths, and headers of authorization."""

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        self.asked = list[tuple[str, str | None]]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers["Authorization"]))
                status, given = answer(self.path)
                data = given if isinstance(given, bytes) else json.dumps(given).encode()
                self.send_response(status)
                if status in (301, 302):
                    self.send_header("Location", given)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
