"""`/drpc/<name>/<values>`: queries over HTTP, answered as JSON, one line for each request.

Storm's DRPC server has the same addresses. `transactional.operations.web` refuses requests without the token before
they come here. Only `/livez` needs no token: a supervisor learns from it whether the process has to be restarted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from transactional.model.errors import ConfigError, QueryFailed, TransactionalError
from transactional.operations.queries.client import QueryClient
from transactional.operations.queries.slots import QuestionSlots, SlotsLost
from transactional.operations.queries.texts import parse_values, to_json_value
from transactional.operations.web.guard import Access, Guard

_DRPC: Final = b"/drpc/"


def application(client: QueryClient, access: Access, slots: QuestionSlots) -> ASGIApp:
    """Return the application that answers a client's queries, each of which takes a slot."""

    def list_queries(_: Request) -> Response:
        queries = {
            query.name: {"fields": str(query.fields), "returns": str(query.returns)}
            for query in client.queries.values()
        }
        return _json_response(200, {"queries": queries})

    async def drpc(request: Request) -> Response:
        try:
            return await slots.run(partial(_answer, client, request.scope["raw_path"]))
        except TimeoutError:
            text = f"no answer within {slots.timeout_s:g} s, which is the --timeout-s of this server"
            return _json_response(504, {"error": text, "code": QueryFailed.code})
        except SlotsLost:
            return _json_response(503, {"error": _describe_lost_slots(slots), "code": QueryFailed.code})

    def livez(_: Request) -> Response:
        status, text = (503, _describe_lost_slots(slots)) if slots.has_given_up_too_many else (200, "answering")
        return PlainTextResponse(f"{text}\n", status, {"cache-control": "no-store", "connection": "close"})

    guarded = Guard(Starlette(routes=[Route("/", list_queries), Route("/drpc/{rest:path}", drpc)]), access)
    return Starlette(routes=[Route("/livez", livez), Mount("/", guarded)])


def _describe_lost_slots(slots: QuestionSlots) -> str:
    return (
        f"{slots.given_up} questions have taken longer than {slots.timeout_s:g} s, and still run in functions of their "
        "queries: no question is answered until some of them end, or `transactional serve` is restarted"
    )


def _answer(client: QueryClient, raw_path: bytes, is_given_up: Callable[[], bool]) -> Response:
    """Answer the question in a path. Each part of the path is a value, so an encoded slash is part of a value."""
    try:
        name, *texts = [
            unquote_to_bytes(part).decode("utf-8") for part in raw_path.partition(b"?")[0][len(_DRPC) :].split(b"/")
        ]
    except UnicodeDecodeError:
        return _json_response(400, {"error": "the address is not UTF-8", "code": ConfigError.code})
    query = client.queries.get(name)
    if query is None:
        names = ", ".join(client.queries) or "(none)"
        return _json_response(
            404, {"error": f"there is no query {name[:100]!r}; there are: {names}", "code": ConfigError.code}
        )
    try:
        answer = client.execute_many(name, [parse_values(query, texts)], is_given_up=is_given_up)
    except TransactionalError as error:
        status = 400 if isinstance(error, ConfigError) else 500 if isinstance(error, QueryFailed) else 503
        return _json_response(status, {"error": str(error).splitlines()[0], "code": error.code})
    return _json_response(200, {"txid": answer.txid, "rows": to_json_value(answer.table.to_pylist())})


def _json_response(status: int, content: dict[str, Any]) -> Response:
    text = json.dumps(content, ensure_ascii=False) + "\n"
    return Response(text.encode("utf-8", "replace"), status, media_type="application/json")
