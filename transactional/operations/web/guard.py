"""An ASGI middleware in front of every page, which refuses requests without access and adds security headers.

A page shows texts that other people wrote, and a browser runs whatever other sites send it. A request therefore has to
name a host of ours (DNS could rebind another name to this address), have the token, and not come from another site. No
answer may load or run anything else, or be embedded in it. A program sends the token in a header, which no other site
can make a browser send.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transactional.model.errors import ConfigError
from transactional.operations.web.server import Address

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_TOKEN_MIN: Final = 16

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Access:
    """The token and the hosts that requests must have. `hosts` are names as in a Host header, without the port, because
    a proxy has a port of its own."""

    token: str = field(repr=False)
    hosts: Collection[str] = LOOPBACK
    cookie: str = "transactional"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", frozenset(map(normalize_host, self.hosts)))

    def is_token(self, text: str) -> bool:
        """Return whether a text is the token, in a time that does not depend on where they differ."""
        return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), self.token.encode())

    @property
    def form_key(self) -> str:
        """The key that a form has to send back, derived from the token, which no page contains."""
        return hmac.new(self.token.encode(), b"transactional console form", hashlib.sha256).hexdigest()


def make_access(
    address: Address, token_file: Path | None, host_names: Collection[str], *, server: str = "the console"
) -> Access:
    """Return the token and the host names to accept; `server` is the name of the server in messages.

    Raises `ConfigError` for an address that others can reach without a token of the operator's own.
    """
    if not address.is_loopback and token_file is None:
        raise ConfigError(
            f"{server} would be reachable by others at {address.host}: pass --token-file FILE with a token of at "
            f"least {_TOKEN_MIN} characters that they are given, or leave out --host"
        )
    token = secrets.token_urlsafe(24) if token_file is None else _read_token(token_file)
    for name in host_names:
        if not normalize_host(name) or set(name) & set("/@ "):
            raise ConfigError(
                f"{name!r} is no host name: pass it as it stands in an address, such as topologies.example"
            )
    return Access(token, {*LOOPBACK, address.host, *host_names})


def _read_token(file: Path) -> str:
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token file {file} can't be read: {error}") from error
    if len(token) < _TOKEN_MIN or not all(" " < letter < "\x7f" for letter in token):
        raise ConfigError(f"the token file {file} must contain one line of at least {_TOKEN_MIN} printable characters")
    return token


class Guard:
    """Refuses requests without access, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request with access on to the application, and refuse any other."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, header in HEADERS.items():
                    headers[name] = header
            await send(message)

        if scope["type"] == "lifespan":  # the server's own start and end, which nobody sends over a connection
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"a server of HTTP was given a scope of the type {scope['type']!r}")
        answer = self._refuse_or_redirect(scope)
        if answer is not None and answer.status_code >= 400:
            answer.headers["connection"] = "close"  # whoever has no access holds no connection, either
        await (answer or self._app)(scope, receive, guarded)

    def _refuse_or_redirect(self, scope: Scope) -> Response | None:
        """Return a refusal, or a redirect for a token in the address. None if the request has access."""
        headers = Headers(scope=scope)
        if normalize_host(headers.get("host", "")) not in self._access.hosts:
            return PlainTextResponse(
                "This server was not started for this host name; --host-name NAME adds one.\n", 421
            )
        scheme, _, bearer = str(headers.get("authorization", "")).partition(" ")
        if scheme.lower() == "bearer" and self._access.is_token(bearer.strip()):
            return None
        if _is_foreign(scope["method"], headers):
            return PlainTextResponse("Requests from another site are refused.\n", 403)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [parameter for name, parameter in query if name == "token"]
        if tokens and self._access.is_token(tokens[0]):
            return self._redirect_with_cookie(
                scope["path"], [(name, parameter) for name, parameter in query if name != "token"]
            )
        if not self._access.is_token(cookie_parser(headers.get("cookie", "")).get(self._access.cookie, "")):
            return PlainTextResponse(
                "Open the address that `transactional` printed when it started, with its token.\n", 401
            )
        return None

    def _redirect_with_cookie(self, path: str, other_parameters: list[tuple[str, str]]) -> Response:
        """Redirect to a path, with the token in a cookie: it leaves the address bar and the history."""
        target = "/" + path.lstrip("/\\")  # never //host
        answer = RedirectResponse(target + (f"?{urlencode(other_parameters)}" if other_parameters else ""), 303)
        answer.set_cookie(self._access.cookie, self._access.token, httponly=True, samesite="strict")
        return answer


def normalize_host(host: str) -> str:
    """Return the name in a Host header or of a host that an operator names: without port, in lower case, IPv6 as
    browsers write it."""
    name, colon, port = host.rpartition(":")
    name = name if colon and port.isdecimal() and (":" not in name or name.endswith("]")) else host
    try:
        address = ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name.lower()
    return f"[{address.compressed}]" if address.version == 6 else address.compressed


def _is_foreign(method: str, headers: Headers) -> bool:
    """Return whether another site has caused a request. A link to a page may be followed, because it has no cookie."""
    site = str(headers.get("sec-fetch-site", ""))
    if method not in ("GET", "HEAD"):
        return site != "same-origin"
    return site in ("cross-site", "same-site") and str(headers.get("sec-fetch-dest", "document")) != "document"
