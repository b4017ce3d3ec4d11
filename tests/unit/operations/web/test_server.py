"""Where the console listens, and what it asks for there."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
from contextlib import closing
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest
from starlette.responses import PlainTextResponse

from transactional.errors import ConfigError
from transactional.operations.web.guard import make_access
from transactional.operations.web.server import (
    Address,
    WebServer,
    bind,
    bind_or_take_any_port,
    serve_alone,
    serving_in_thread,
    url_of,
)


def test_the_token_is_new_with_each_start() -> None:
    tokens = {make_access(Address(), None, ()).token for _ in range(9)}
    assert len(tokens) == 9
    assert min(map(len, tokens)) >= 32


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "console.example"])
def test_others_need_a_token_of_the_operators_own(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pass --token-file"):
        make_access(Address(host), None, ())
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    access = make_access(Address(host), file, ["Console.Example"])
    assert access.token == "0123456789abcdef"
    assert "console.example" in access.hosts


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_alone_needs_none(host: str) -> None:
    assert make_access(Address(host), None, ()).token


@pytest.mark.parametrize("content", [b"short", b"", b"0123456789 abcdef", b"\xff" * 20, "ä".encode() * 20])
def test_a_token_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="token file"):
        make_access(Address(), file, ())
    with pytest.raises(ConfigError, match="can't be read"):
        make_access(Address(), tmp_path / "none", ())


def test_a_port_that_is_taken_is_one_clear_line() -> None:
    with bind(Address(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"can't listen on 127.0.0.1:{port}: .*choose another port, or 0"):
            bind(Address(port=port))


def test_another_port_is_taken_only_if_the_usual_one_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with bind(Address(port=0)) as first:
        port = first.getsockname()[1]
        with bind_or_take_any_port(Address(port=port)) as second:
            assert second.getsockname()[1] not in (0, port)

    class Forbidding(socket.socket):
        """A machine on which this process may use no port but those that the system chooses."""

        def bind(self, address: tuple[str, int]) -> None:  # type: ignore[override]
            if address[1]:
                raise PermissionError(errno.EACCES, "Permission denied")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Forbidding)
    with pytest.raises(ConfigError, match=r"can't listen on 127\.0\.0\.1:8787: Permission denied; choose another addr"):
        bind_or_take_any_port(Address())


def test_the_address_to_open_has_the_token() -> None:
    access = make_access(Address(), None, ())
    with bind(Address(port=0)) as listening:
        port = listening.getsockname()[1]
        assert url_of(listening, access.token) == f"http://127.0.0.1:{port}/?token={access.token}"
        assert listening.family == socket.AF_INET


def test_an_address_is_known_as_browsers_write_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    assert "[2001:db8::1]" in make_access(Address("2001:DB8:0::0:1"), file, ()).hosts
    assert "[::1]" in make_access(Address("0:0:0:0:0:0:0:1"), None, ()).hosts


def test_a_server_that_nobody_asks_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not even look whether it has to end: that wakes it."""

    def sleep(*_: object) -> None:
        raise AssertionError("it looks again and again")

    with closing(bind(Address(port=0))) as listening, serving_in_thread(PlainTextResponse("served"), listening):
        opener = build_opener(ProxyHandler({}))
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", sleep)
            for _ in range(2):
                with opener.open(url_of(listening), timeout=10) as answer:
                    assert answer.read() == b"served"


def test_a_process_that_only_serves_keeps_what_it_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = list[int]()
    monkeypatch.setattr(WebServer, "run", lambda self, sockets: frozen.append(gc.get_freeze_count()))
    with bind(Address(port=0)) as listening:
        try:
            serve_alone(PlainTextResponse("here"), listening)
        finally:
            gc.unfreeze()
    assert frozen[0] > 10_000
