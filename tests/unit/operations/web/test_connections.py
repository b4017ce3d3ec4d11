"""How many connections there may be, and how long each may keep a server waiting: real sockets on loopback."""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from tests.unit.operations.console.browsing import TOKEN
from transactional.operations.telemetry.serving import serving_metrics
from transactional.operations.web.connections import LIMITS, Connection, ConnectionLimits
from transactional.operations.web.guard import Access, Guard
from transactional.operations.web.server import Address, WebServer, bind, serving_in_thread

WAIT_S = 20
MINE = f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
STRANGE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Slow:
    """An application whose answers to `/slow` begin, and end when they may."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Semaphore(0), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["path"] == "/slow":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
            self.begun.release()
            await asyncio.to_thread(self.may_end.wait, WAIT_S)
            await send({"type": "http.response.body", "body": b"late"})
        else:
            await PlainTextResponse("mine")(scope, receive, send)


@contextmanager
def served(
    limits: ConnectionLimits, app: ASGIApp | None = None, listening: socket.socket | None = None
) -> Iterator[int]:
    """A guarded server beside the test, and its port."""
    guarded = Guard(app or Slow(), Access(TOKEN))
    with closing(listening or bind(Address(port=0))) as at, serving_in_thread(guarded, at, limits=limits):
        yield at.getsockname()[1]


def connected(port: int, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    made.sendall(sent)
    return made


def rest(connection: socket.socket) -> bytes:
    """What is received until the other side ends it."""
    found = bytearray()
    try:
        while part := connection.recv(65_536):
            found += part
    except ConnectionResetError:
        pass
    return bytes(found)


def is_open(connection: socket.socket) -> bool:
    return not select.select([connection], [], [], 0)[0]


def answered(port: int) -> bool:
    """Whether a person with the token gets a page, over a connection that is kept."""
    with connected(port, MINE) as person:
        return person.recv(65_536).startswith(b"HTTP/1.1 200 OK")


def test_idle_connections_make_room_for_new_ones_the_oldest_first(caplog: pytest.LogCaptureFixture) -> None:
    with served(ConnectionLimits(connections=4)) as port, ExitStack() as opened:
        idle = [opened.enter_context(connected(port)) for _ in range(30)]
        assert answered(port)
        assert [rest(each) for each in idle[:27]] == [b""] * 27
        assert all(map(is_open, idle[-3:]))
    [line] = caplog.messages
    assert line == (
        "a server of this process reports: it has 4 connections, and ends the one that has waited longest for each new "
        "one; it has ended 1 so far"
    )


def test_an_answer_that_goes_on_is_never_ended_for_a_new_connection(caplog: pytest.LogCaptureFixture) -> None:
    app = Slow()
    with served(ConnectionLimits(connections=2), app) as port, ExitStack() as opened:
        slow = MINE.replace(b"/ ", b"/slow ")[:-2] + b"Connection: close\r\n\r\n"
        held = [opened.enter_context(connected(port, slow)) for _ in range(2)]
        for _ in held:
            assert app.begun.acquire(timeout=WAIT_S)
        for _ in range(9):
            assert rest(opened.enter_context(connected(port))) == b""
        app.may_end.set()
        assert [rest(each)[-4:] for each in held] == [b"late", b"late"]
        assert answered(port)
    assert [line for line in caplog.messages if "all in use" in line] == caplog.messages
    assert len(caplog.messages) == 1


def trickled(connection: socket.socket) -> None:
    """Send a byte now and then until the other side ends it."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        try:
            if select.select([connection], [], [], 0.02)[0] and not connection.recv(65_536):
                return
            connection.sendall(b"x")
        except OSError:
            return
    raise AssertionError("it is never ended")


@pytest.mark.parametrize(
    "sent",
    [b"G", STRANGE[:-2] + b"X-Slow: ", MINE + b"G", MINE[:-2] + b"X-Slow: ", b"POST" + MINE[3:-2] + b"X-Slow: "],
)
def test_bytes_now_and_then_hold_no_connection(sent: bytes) -> None:
    with served(ConnectionLimits(request_s=0.1)) as port, connected(port, sent) as slow:
        trickled(slow)
        assert answered(port)


@pytest.mark.parametrize("sent", [b"", MINE])
def test_what_is_idle_is_ended(sent: bytes) -> None:
    with served(ConnectionLimits(request_s=0.1)) as port, connected(port, sent) as idle:
        assert rest(idle).endswith(b"mine" if sent else b"")


def test_who_has_no_access_gets_one_answer_and_keeps_no_connection() -> None:
    with served(LIMITS) as port, connected(port, STRANGE) as stranger:
        answer = rest(stranger)
        assert (answer[:13], b"\r\nconnection: close\r\n" in answer) == (b"HTTP/1.1 401 ", True)
    with served(LIMITS) as port, connected(port, STRANGE.replace(b"127.0.0.1", b"evil.example")) as stranger:
        assert rest(stranger).startswith(b"HTTP/1.1 421 ")


def test_a_peer_that_says_it_is_done_before_it_has_asked_is_gone() -> None:
    with served(LIMITS) as port, connected(port, b"GET / HT") as half:
        half.shutdown(socket.SHUT_WR)
        assert rest(half) == b""


def test_a_peer_that_takes_nothing_of_its_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, connection_lost = threading.Event(), Connection.connection_lost

    def noted(connection: Connection, error: Exception | None) -> None:
        connection_lost(connection, error)
        lost.set()

    monkeypatch.setattr(Connection, "connection_lost", noted)
    body = "x" * 32_000_000
    with served(ConnectionLimits(request_s=0.1), PlainTextResponse(body)) as port, connected(port, MINE) as deaf:
        assert lost.wait(WAIT_S)
        assert len(rest(deaf)) < len(body), "it was sent what fits into the buffers of the two systems"


@dataclass
class Transport:
    """A peer that has taken all but so many bytes."""

    unsent: list[int]
    aborted: bool = False
    known: dict[str, object] = field(default_factory=dict)

    def get_write_buffer_size(self) -> int:
        """As asyncio's."""
        return self.unsent.pop(0)

    def abort(self) -> None:
        """As asyncio's."""
        self.aborted = True

    def is_closing(self) -> bool:
        """As asyncio's."""
        return self.aborted

    def get_extra_info(self, name: str) -> object:
        """As asyncio's."""
        return self.known.get(name)


class Loop:
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.timers = list[Callable[[], object]]()

    def time(self) -> float:
        """As asyncio's."""
        return 0.0

    def call_later(self, _: float, callback: Callable[[], object]) -> Any:
        """As asyncio's."""
        self.timers.append(callback)
        return Timer()


class Timer:
    """Nobody looks whether it was canceled."""

    def cancel(self) -> None:
        """As asyncio's."""


@pytest.mark.parametrize(("unsent", "looks"), [([0], 1), ([9, 9], 2), ([9, 8, 7, 0], 4), ([9, 8, 8], 3)])
def test_a_peer_that_takes_its_answer_slowly_gets_all_of_it(
    unsent: list[int], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, transport = Loop(), Transport([*unsent])
    monkeypatch.setattr("asyncio.get_event_loop", lambda: loop)
    connection = Connection(uvicorn.Config(Slow(), log_config=None), ServerState(), LIMITS, dict)
    connection.connection_made(transport)  # type: ignore[arg-type]
    for _ in range(looks):
        assert not transport.aborted
        loop.timers.pop()()
    assert (transport.aborted, loop.timers, transport.unsent) == (True, [], [])


class WebSockets(asyncio.Protocol):
    """Takes a connection over for a web socket, as the packages do that uvicorn finds by itself."""

    def __init__(self, **_: object) -> None:
        """Nothing is set up."""


def test_who_asks_for_a_web_socket_gets_an_answer_of_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a package for web sockets is installed: a connection that it took over would count for good."""
    monkeypatch.setattr("uvicorn.protocols.websockets.auto.AutoWebSocketsProtocol", WebSockets)
    upgrade = (
        b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with serving_metrics("words", "127.0.0.1:0") as (_, url), served(LIMITS) as ui:
        for port, status, connections in ((urlsplit(url).port or 0, b"200", 16), (ui, b"401", LIMITS.connections)):
            for _ in range(connections + 1):
                with connected(port, upgrade) as connection:
                    assert rest(connection).split()[:2] == [b"HTTP/1.1", status]


class Exhausted(socket.socket):
    """A listening socket in a process that has no file descriptor left for the next so many connections."""

    failures = 0
    asked = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """As the system's."""
        self.asked += 1
        if self.asked > 1 and self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def exhausted(failures: int) -> Exhausted:
    listening = Exhausted()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    listening.failures = failures
    return listening


def test_without_descriptors_those_that_wait_give_theirs_back_and_nothing_spins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listening, app = exhausted(99), Slow()
    with served(ConnectionLimits(retry_s=WAIT_S), app, listening) as port, connected(port) as first:
        first.sendall(MINE)
        while not first.recv(65_536).endswith(b"mine"):
            pass
        with connected(port) as second:
            assert rest(first) == b""
            assert listening.asked == 2
            assert is_open(second), "the system keeps it until there is a descriptor"
    [line] = caplog.messages
    assert "it can't accept connections (Too many open files), and ends those that wait; it has ended 1" in line


def test_once_there_are_descriptors_the_next_are_served_and_the_log_has_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listening = exhausted(20)
    with served(ConnectionLimits(retry_s=0.001), None, listening) as port, connected(port):
        assert answered(port)
    assert listening.asked >= 22
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_log_line_is_due_again_after_a_while_and_counts_all(caplog: pytest.LogCaptureFixture) -> None:
    with served(ConnectionLimits(connections=1, log_every_s=0)) as port, ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(connected(port))
        assert answered(port)
    assert [line.rpartition("ended ")[2] for line in caplog.messages] == [f"{count} so far" for count in (1, 2, 3, 4)]


def test_a_peer_whose_machine_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[list[int]]()

    def made(connection: Connection, transport: asyncio.Transport) -> None:
        accepted = transport.get_extra_info("socket")
        options = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
        asked.append([accepted.getsockopt(*each) for each in options])
        asyncio.Protocol.connection_made(connection, transport)
        transport.close()

    monkeypatch.setattr(Connection, "connection_made", made)
    with served(LIMITS) as port, connected(port) as peer:
        assert rest(peer) == b""
    assert asked == [[1, 60]]


def test_all_servers_have_the_limits() -> None:
    assert WebServer(Slow()).limits == LIMITS
    assert LIMITS.connections <= 64


def test_metrics_are_scraped_however_many_connect_and_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with serving_metrics("words", "127.0.0.1:0") as (_, url), ExitStack() as opened:
        port = int(url.removesuffix("/metrics").rpartition(":")[2])
        idle = [opened.enter_context(connected(port)) for _ in range(40)]
        with connected(port, STRANGE.replace(b"/ ", b"/metrics ")) as scraper:
            assert rest(scraper).startswith(b"HTTP/1.1 200 OK")
        assert [rest(each) for each in idle[:25]] == [b""] * 25
        assert sum(map(is_open, idle)) == 15
    assert len(caplog.messages) == 1
