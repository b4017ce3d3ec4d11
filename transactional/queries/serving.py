"""`/drpc/<name>/<values>`: queries over HTTP, answered as JSON, one line for each request.

Storm's DRPC server has the same addresses. Who may send a request is decided before, by `transactional.web.guard`.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from transactional.errors import ConfigError, QueryFailed, TransactionalError
from transactional.queries.client import QueryClient
from transactional.queries.texts import plain, values_of
from transactional.web.guard import Access, Guard

_DRPC: Final = b"/drpc/"


def application(client: QueryClient, access: Access) -> ASGIApp:
    """The application that answers with a client's queries."""

    def known(_: Request) -> Response:
        queries = {
            each.name: {"fields": str(each.fields), "returns": str(each.returns)} for each in client.queries.values()
        }
        return _json(200, {"queries": queries})

    async def drpc(request: Request) -> Response:
        return await run_in_threadpool(_answered, client, request.scope["raw_path"])

    return Guard(Starlette(routes=[Route("/", known), Route("/drpc/{rest:path}", drpc)]), access)


def _answered(client: QueryClient, raw_path: bytes) -> Response:
    """Each part of the path is a value: an encoded slash is part of one."""
    try:
        name, *texts = [
            unquote_to_bytes(part).decode("utf-8") for part in raw_path.partition(b"?")[0][len(_DRPC) :].split(b"/")
        ]
    except UnicodeDecodeError:
        return _json(400, {"error": "the address is not UTF-8", "code": ConfigError.code})
    query = client.queries.get(name)
    if query is None:
        shown = ", ".join(client.queries) or "(none)"
        return _json(404, {"error": f"there is no query {name[:100]!r}; there are: {shown}", "code": ConfigError.code})
    try:
        answer = client.execute(name, *values_of(query, texts))
    except TransactionalError as error:
        status = 400 if isinstance(error, ConfigError) else 500 if isinstance(error, QueryFailed) else 503
        return _json(status, {"error": str(error).splitlines()[0], "code": error.code})
    return _json(200, {"txid": answer.txid, "rows": plain(answer.table.to_pylist())})


def _json(status: int, content: dict[str, Any]) -> Response:
    text = json.dumps(content, ensure_ascii=False) + "\n"
    return Response(text.encode("utf-8", "replace"), status, media_type="application/json")
