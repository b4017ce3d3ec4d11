"""What is answered over HTTP, at which address."""

from __future__ import annotations

import socket
import urllib.request
from urllib.error import HTTPError

import pytest

from transactional.errors import ConfigError
from transactional.operations.telemetry.serving import serving_metrics
from transactional.operations.web.server import Address, parse_address


def get(url: str, path: str = "", **headers: str) -> tuple[int, str, str]:
    """Status, content type, content."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url.removesuffix("/metrics") + path, headers=headers)
        ) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_metrics_and_health_are_answered_and_nothing_else() -> None:
    with serving_metrics("wörds", "127.0.0.1:0") as (_, url):
        status, content_type, text = get(url, "/metrics")
        assert (status, content_type.partition(";")[0]) == (200, "text/plain")
        assert 'transactional_leading{topology="wörds"} 0.0' in text
        assert "openmetrics" in get(url, "/metrics?x", Accept="application/openmetrics-text; version=1.0.0")[1]
        assert get(url, "/livez") == (200, "text/plain; charset=utf-8", "starting\n")
        assert get(url, "/readyz")[0] == 503
        assert {get(url, path)[0] for path in ("/", "/metrics/", "/../etc/passwd", "/livez/x")} == {404}
    with pytest.raises(OSError, match="refused"):
        get(url, "/livez")


def test_a_port_that_is_taken_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"metrics can't listen on {address}: .*choose another port"):
            serving_metrics("words", address).__enter__()


def test_another_machines_address_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"can't listen on 192\.0\.2\.1:9464"):
        serving_metrics("words", "192.0.2.1:9464").__enter__()


def test_ipv6_has_brackets() -> None:
    assert parse_address("[::1]:9464") == Address("::1", 9464)
    assert parse_address("metrics.example:0") == Address("metrics.example", 0)


@pytest.mark.parametrize("text", ["", "9464", "host:", "host:port", "::1:9464", "host:65536", "host:-1", "[::1]"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(text)


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    with serving_metrics("words", "127.0.0.1:0") as (_, url):
        port = int(url.rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)):
            assert get(url, "/livez")[0] == 200
