"""The routes of the console, its endpoints, and the events that make open pages load themselves again."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from transactional.core.ports import Clock
from transactional.core.store import CoordinatorStore, DesiredState, StoreReader, TopologyStatus
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import OperatingError, TransactionalError
from transactional.operations.console import views
from transactional.operations.console.errors_page import sections
from transactional.operations.console.findings import run_examination
from transactional.operations.console.history import History
from transactional.operations.console.pace import pause_s
from transactional.operations.console.rendering import STATIC, render
from transactional.operations.console.slugs import id_of
from transactional.operations.doctor.examine import examine
from transactional.operations.doctor.repairs import repair
from transactional.operations.web.connections import LIMITS
from transactional.operations.web.guard import Access, Guard
from transactional.runtime.engine.clock import SystemClock
from transactional.topology.topology import Topology

LOOK_EVERY_S: Final = 1.0
"""How often an open page looks in the store whether anything has changed."""
LISTENERS_MAX: Final = LIMITS.connections // 2
"""The number of open pages that are live at once. Each keeps a connection open; the others are left for loading
pages."""
_CHANGED: Final = "event: changed\ndata:\n\n"
"""The event that makes a page load itself again."""
_TOO_MANY: Final = "retry: 10000\nevent: full\ndata: too many pages are live; this one is not\n\n"
WAIT_S_MAX: Final = 86_400
FORM_BYTES_MAX: Final = 4_096
_NUMBER_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Console:
    """The sources of the pages: the store, the topologies whose code is known, and who may see and change them."""

    store: StoreReader
    access: Access
    clock: Clock = field(default_factory=SystemClock)
    look_every_s: float = LOOK_EVERY_S
    writable: CoordinatorStore | None = None
    """The store that buttons write to, as the command line does, or None if pages have no buttons."""
    topologies: Mapping[str, Topology] = field(default_factory=dict)
    """The topologies whose code is loaded here, by id: their tables can be read and run_examination, too."""
    store_url: str | None = None
    """The URL of the store, for the doctor, which reads the rows by code of its own."""


class Refused(Exception):
    """Raised for an action that is not carried out; the text says why."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class NotFound(Exception):
    """Raised if the object of a URL does not exist; the text says which."""


def application(console: Console) -> ASGIApp:
    """Return the console as an ASGI application behind its guard."""
    pages = Pages(console)
    of_topology = [
        Route("/", pages.topology, name="topology"),
        Route("/attempts", pages.attempts, name="attempts"),
        Route("/transactions/{txid}", pages.transaction, name="transaction"),
        Route("/partitions", pages.partitions, name="partitions"),
        Route("/states", pages.states, name="states"),
        Route("/runs", pages.runs, name="runs"),
        Route("/configuration", pages.configuration, name="configuration"),
        Route("/letters", pages.letters, name="letters"),
        Route("/doctor", pages.doctor, name="doctor"),
        Route("/repairs", pages.repair, methods=["POST"], name="repair"),
        Route("/changes", pages.changes, name="changes"),
        Route("/desired", pages.desire, methods=["POST"], name="desire"),
    ]
    app = Starlette(
        routes=[
            Route("/", pages.home, name="home"),
            Route("/errors", pages.errors, name="errors"),
            Mount("/t/{slug}", routes=of_topology),
            Mount("/static", StaticFiles(directory=STATIC), name="static"),
        ],
        exception_handlers={
            404: _answer_not_found,
            NotFound: _answer_not_found,
            Refused: _answer_refused,
            TransactionalError: _answer_failed,
            Exception: _answer_failed,
        },
    )
    return Guard(app, console.access)


def _answer_not_found(_request: Request, error: Exception) -> Response:
    text = str(error) if isinstance(error, NotFound) else "There is no such page."
    return HTMLResponse(render("message.html", title="Not found", text=text, hint="", statuses=(), current=None), 404)


def _answer_refused(_request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", error.status if isinstance(error, Refused) else 403)


def _answer_failed(_request: Request, error: Exception) -> Response:
    """Answer with an error of the framework as the command line reports it, and with status 503 if the store may be
    back soon. Any other error is a bug, or a store with records that no version of this framework has written."""
    code = error.code if isinstance(error, TransactionalError) else ""
    is_away = isinstance(error, OperatingError)
    hint = "Nothing was lost: load the page again once the store responds." if is_away else ""
    if not code:
        hint = "This page can't be made; the topology is not affected. Please report it."
    content = render(
        "message.html", title=f"{code} {type(error).__name__}", text=str(error), hint=hint, statuses=(), current=None
    )
    return HTMLResponse(content, 503 if is_away else 500, headers={"retry-after": "5"} if is_away else None)


class Pages:
    """The endpoints. The ones that read the store are called in threads."""

    def __init__(self, console: Console) -> None:
        self._console, self._store = console, console.store
        self._history = History()
        self._listeners = 0
        self._page_s = 0.0
        """The processor time that the last page took, in seconds."""

    def home(self, _request: Request) -> Response:
        """Show all topologies."""
        return self._page("home.html", None, **views.home(self._store, self._now_ms()))

    def errors(self, _request: Request) -> Response:
        """Show what each error code means, and what to do."""
        return self._page("errors.html", None, title="Errors", sections=sections())

    def topology(self, request: Request) -> Response:
        """Show the overview of a topology."""
        span = request.query_params.get("charts", "")

        def view(store: StoreReader, status: TopologyStatus, now_ms: int) -> Mapping[str, object]:
            return views.topology(store, status, now_ms, history=self._history, span=span)

        return self._topology_page(request, "topology.html", view)

    def attempts(self, request: Request) -> Response:
        """Show a page of the list of attempts, by phase."""
        older_than = _parse_number(request.query_params.get("before"))
        phase = request.query_params.get("phase", "")
        go_to = _parse_number(request.query_params.get("txid"))
        if go_to is not None:
            return self._redirect(request, "transaction", txid=go_to)
        return self._topology_page(
            request,
            "attempts.html",
            lambda store, status, _: views.attempts(
                store, status, None if older_than is None else AttemptId(older_than), phase
            ),
        )

    def transaction(self, request: Request) -> Response:
        """Show one transaction with all its attempts."""
        number = _parse_number(request.path_params["txid"])
        if number is None:
            raise NotFound("Transactions are numbered 1, 2, 3, …")
        txid = TxId(number)

        def view(store: StoreReader, status: TopologyStatus, now_ms: int) -> Mapping[str, object]:
            values = views.transaction(store, status, txid, now_ms)
            if values is None:
                raise NotFound(
                    f"The store has no attempt at transaction {txid} of {status.topology_id!r}: it has not been issued "
                    "yet, or its attempts were deleted, as keep_attempts_days and keep_attempts_max say."
                )
            return values

        return self._topology_page(request, "transaction.html", view)

    def partitions(self, request: Request) -> Response:
        """Show a page of the list of partitions."""
        page = _parse_number(request.query_params.get("page")) or 1
        return self._topology_page(
            request, "partitions.html", lambda store, status, _: views.partitions(store, status, page)
        )

    def states(self, request: Request) -> Response:
        """Show the states of the committers."""
        return self._topology_page(request, "states.html", views.states)

    def runs(self, request: Request) -> Response:
        """Show the last runs of a topology."""
        return self._topology_page(request, "runs.html", views.runs)

    def configuration(self, request: Request) -> Response:
        """Show the options as of one run, by default the last one."""
        epoch = _parse_number(request.query_params.get("run"))
        return self._topology_page(
            request, "configuration.html", lambda store, status, _: views.configuration(store, status, epoch)
        )

    def letters(self, request: Request) -> Response:
        """Show the dead letters of a topology."""
        return self._topology_page(
            request,
            "letters.html",
            lambda store, status, _: views.letters(store, status, self._console.topologies.get(status.topology_id)),
        )

    def doctor(self, request: Request) -> Response:
        """Show what is wrong; `?examine=1` first reads the whole history and all tables."""

        def view(store: StoreReader, status: TopologyStatus, now_ms: int) -> Mapping[str, object]:
            topology = self._console.topologies.get(status.topology_id)
            examines = request.query_params.get("examine") == "1"
            url = self._console.store_url
            report = run_examination(topology, store, status.topology_id, url) if examines else None
            return views.doctor(store, status, now_ms, topology, report)

        return self._topology_page(request, "doctor.html", view)

    async def repair(self, request: Request) -> Response:
        """Carry out the repairs that are safe, as `doctor --repair` does; then examine again."""
        writable, _ = await self._authorize_action(request)
        status = await run_in_threadpool(self._status, request)
        topology = self._console.topologies.get(status.topology_id)
        if topology is None:
            raise Refused(409, "This console does not know the topology's code: start it with --app MODULE:TOPOLOGY.")

        def carry_out() -> None:
            repair(topology, writable, examine(topology, writable, self._console.store_url))

        await run_in_threadpool(carry_out)
        return RedirectResponse(views.path_of(status) + "/doctor?examine=1", 303)

    async def changes(self, request: Request) -> Response:
        """Send an event for each change of the topology, for as long as the page is open."""
        status = await run_in_threadpool(self._status, request)
        return StreamingResponse(self._limit_listeners(request, status.topology_id), media_type="text/event-stream")

    async def _limit_listeners(self, request: Request, topology_id: str) -> AsyncIterator[str]:
        """Yield the events of a page, unless too many pages are live; then the browser tries again later."""
        if self._listeners >= LISTENERS_MAX:
            yield _TOO_MANY
            return
        self._listeners += 1
        try:
            async for events in self._events(request, topology_id):
                yield events
        finally:
            self._listeners -= 1

    async def _events(self, request: Request, topology_id: str) -> AsyncIterator[str]:
        sent_version: object = None
        while not await request.is_disconnected():
            try:
                version = await run_in_threadpool(views.read_version, self._store, topology_id, self._now_ms())
                # The first event is always sent: something may have changed since the page was loaded.
                events = _CHANGED if version != sent_version else ""
                sent_version = version
            except OperatingError:
                events = "event: away\ndata: the store does not respond\n\n"
            if events:
                yield events
            await asyncio.sleep(pause_s(self._console.look_every_s, self._page_s, self._listeners))

    async def desire(self, request: Request) -> Response:
        """Set the desired state of a topology, and redirect to its page."""
        writable, form = await self._authorize_action(request)
        wait_s = _parse_number(form.get("wait")) or 0
        try:
            state = DesiredState(form.get("state", ""))
        except ValueError:
            raise Refused(400, "There is no such state.") from None
        status = await run_in_threadpool(self._status, request)
        if state is DesiredState.KILLED and not status.is_leased:
            raise Refused(409, f"Topology {status.topology_id!r} is not running: there is nothing to kill.")
        wait_ms = 1_000 * min(wait_s, WAIT_S_MAX)
        await run_in_threadpool(lambda: writable.desire(status.topology_id, state, wait_ms=wait_ms))
        return RedirectResponse(views.path_of(status) + "/", 303)

    async def _authorize_action(self, request: Request) -> tuple[CoordinatorStore, Mapping[str, str]]:
        """Return the store that an action writes to, and the action's form. Raises `Refused`."""
        if self._console.writable is None:
            raise Refused(403, "This console was started without --allow-actions.")
        form = dict(parse_qsl((await _read_body(request)).decode("utf-8", "replace")))
        if not hmac.compare_digest(form.get("key", "").encode(), self._console.access.form_key.encode()):
            raise Refused(403, "The form is not of this console: load the page again.")
        return self._console.writable, form

    # --- details --------------------------------------------------------------------------------------------------

    def _topology_page(
        self,
        request: Request,
        template: str,
        view: Callable[[StoreReader, TopologyStatus, int], Mapping[str, object]],
    ) -> Response:
        began_s = time.thread_time()
        status, now_ms = self._status(request), self._now_ms()
        values = views.status_values(self._store, status, now_ms, self._form_key)
        page = self._page(template, status, **{**values, **view(self._store, status, now_ms)})
        self._page_s = time.thread_time() - began_s
        return page

    @property
    def _form_key(self) -> str | None:
        """The key that forms have to send back, or None if pages have no forms."""
        return self._console.access.form_key if self._console.writable else None

    def _page(self, template: str, current: TopologyStatus | None, **values: object) -> Response:
        statuses = values.pop("statuses", None) or self._store.status()
        return HTMLResponse(render(template, statuses=statuses, current=current, **values))

    def _redirect(self, request: Request, name: str, **values: object) -> Response:
        return RedirectResponse(request.url_for(name, slug=request.path_params["slug"], **values).path, 303)

    def _status(self, request: Request) -> TopologyStatus:
        topology_id = id_of(request.path_params["slug"])
        statuses = [] if topology_id is None else self._store.status(topology_id)
        if not statuses:
            raise NotFound(f"The store has no topology {topology_id or request.path_params['slug']!r}.")
        return statuses[0]

    def _now_ms(self) -> int:
        return self._console.clock.wall_ms()


async def _read_body(request: Request) -> bytes:
    """Read the body of a form, or nothing if it is longer than any form of ours."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            return b""
    return body


def _parse_number(text: str | None) -> int | None:
    """Parse a whole number above zero in a query; None for anything else."""
    if text is None or not text.isascii() or not text.isdecimal():
        return None
    return min(int(text.lstrip("0")[:20] or 0), _NUMBER_MAX) or None
