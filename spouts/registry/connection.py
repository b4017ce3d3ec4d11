"""How a registry is reached: its addresses, credentials and deadline; and one question to it."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from transactional.model.errors import ConfigError, SourceUnavailable
from transactional.model.plumbing.redaction import REDACTED, redact_secrets

_PAUSE_S, _PAUSE_MAX_S = 0.05, 1.0
_ANSWER_BYTES_MAX = 64 * 2**20
_NOT_FOUND = 404
_REFUSED = (401, 403)
_WRONG = (400, 409, 422)
"""A document that is refused: it is incompatible with earlier ones, or no schema."""
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class RegistryConnection:
    """The addresses of one registry, which are tried in turn, and what it takes to query them. `authorization` is a
    header, `ca` certificates as PEM. Its text has no secrets; its pickle has, as executors query it too."""

    urls: tuple[str, ...]
    timeout_ms: int
    authorization: str = field(default="", repr=False)
    ca: str = field(default="", repr=False)

    def get(self, path: str) -> Any | None:
        """Return the answer, parsed; None if there is no such thing.

        Raises `SourceUnavailable` if no address gives an answer within `timeout_ms`, `ConfigError` for credentials that
        are refused.
        """
        return self._request(path, None)

    def post(self, path: str, document: Mapping[str, Any]) -> Any:
        """Send a document, and return the answer, parsed. Raises as `get`, and `ConfigError` if it is refused."""
        answer = self._request(path, json.dumps(document).encode())
        if answer is None:
            raise ConfigError(f"the schema registry at {self.urls[0]} has no {path}: check its URL")
        return answer

    def _request(self, path: str, content: bytes | None) -> Any | None:
        deadline, pause_s = time.monotonic() + self.timeout_ms / 1000, _PAUSE_S
        reason = ""
        while True:
            for number, url in enumerate(self.urls):
                now_s = time.monotonic()
                share_s = (deadline - now_s) / (
                    len(self.urls) - number
                )  # one that never answers leaves time for others
                try:
                    return self._answer(f"{url}/{path}", now_s + share_s, content)
                except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                    reason = f"{url}: {self._reason(error)}"
            if time.monotonic() + pause_s >= deadline:
                raise SourceUnavailable(
                    f"no schema registry gives an answer within {self.timeout_ms} ms for {path}; the last one, {reason}"
                    ". Check that it is running, and that this is its address"
                )
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _answer(self, url: str, deadline: float, content: bytes | None) -> Any | None:
        headers = {"Accept": _MEDIA_TYPE} if content is None else {"Accept": _MEDIA_TYPE, "Content-Type": _MEDIA_TYPE}
        request = urllib.request.Request(url, data=content, headers=headers)
        if self.authorization:
            # Not sent on to where a redirection leads.
            request.add_unredirected_header("Authorization", self.authorization)
        left_s = max(deadline - time.monotonic(), 0.001)
        context = ssl.create_default_context(cadata=self.ca) if self.ca else None
        try:
            with urllib.request.urlopen(request, timeout=left_s, context=context) as answer:
                return json.loads(_read(answer, deadline))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NOT_FOUND:
                    return None
                if error.code in _REFUSED:
                    raise ConfigError(
                        f"the schema registry at {url} refuses the credentials (HTTP {error.code}): check auth or token"
                    ) from None
                if content is not None and error.code in _WRONG:
                    reason = error.read(1_000).decode(errors="replace")
                    raise ConfigError(
                        f"the schema registry refuses what {url} got (HTTP {error.code}): {reason}"
                    ) from None
                raise

    def _reason(self, error: Exception) -> str:
        text = str(error.reason) if isinstance(error, urllib.error.URLError) else str(error)
        if isinstance(error, ValueError):
            text = f"the answer is not JSON ({text})"
        if isinstance(error, urllib.error.HTTPError):
            text = f"HTTP {error.code} {text}"
        return redact_secrets([self.authorization, self.authorization.partition(" ")[2]], text or type(error).__name__)


def connection_of(
    urls: list[str], auth: tuple[str, str] | None, token: str | None, ca: str, timeout_ms: int
) -> RegistryConnection:
    """The connection of these options; a login in a URL is taken out of it. Raises `ConfigError` for what is no URL,
    for two ways to log in, and for certificates that can't be read."""
    plain = []
    for url in urls:
        bare, login = _without_login(url)
        plain.append(bare)
        if login and auth and login != auth:
            raise ConfigError(f"the schema registry {bare} has two logins: one in its URL, and auth")
        auth = login or auth
    _check_auth(auth)
    if auth is not None and token is not None:
        raise ConfigError("a schema registry takes auth (user and password) or token, not both")
    if token is not None and not (token.isascii() and token.isprintable()):
        # Not quoted: what refuses it later would.
        raise ConfigError("the token for a schema registry has a line break, or what else no header may have: strip it")
    authorization = f"Bearer {token}" if token is not None else _basic(auth) if auth is not None else ""
    return RegistryConnection(tuple(plain), timeout_ms, authorization, _certificates(ca))


def _check_auth(auth: Any) -> None:
    if auth is None or (isinstance(auth, tuple) and len(auth) == 2 and all(isinstance(part, str) for part in auth)):
        return
    raise ConfigError("auth is a pair of texts, the user and the password: auth=('user', '…')")


def _without_login(url: str) -> tuple[str, tuple[str, str] | None]:
    try:
        parts = urlsplit(url)
    except ValueError:  # which would quote what may have a password in it
        raise ConfigError("a URL of a schema registry can't be read; one is 'https://registry:8081'") from None
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigError(
            f"{parts._replace(netloc=host, query='', fragment='').geturl()!r} is not the URL of a schema registry, "
            "such as 'https://registry:8081'"
        )
    login = (unquote(parts.username), unquote(parts.password or "")) if parts.username is not None else None
    return parts._replace(netloc=host).geturl().rstrip("/"), login


def _basic(auth: tuple[str, str]) -> str:
    user, password = auth
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _certificates(path: str) -> str:
    """Return the text of certificates; executors need not have the file."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the certificates (ca) in {path!r} can't be read: {error}") from error
    return text


def _read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read the whole answer. A server that sends a byte now and then gets no longer than others."""
    parts, size = [], 0
    while part := answer.read1(2**16):
        parts.append(part)
        size += len(part)
        if time.monotonic() > deadline:
            raise TimeoutError("the answer took too long")
        if size > _ANSWER_BYTES_MAX:
            raise OSError(f"the answer has more than {_ANSWER_BYTES_MAX} bytes")
    return b"".join(parts)


def text_of(connection: RegistryConnection) -> str:
    """Return the connection as text for a repr, without secrets."""
    urls = connection.urls[0] if len(connection.urls) == 1 else list(connection.urls)
    return f"{urls!r}" + (f", authorization={REDACTED!r}" if connection.authorization else "")
