"""An object store on loopback that answers S3's requests from memory, until it is told to keep everybody waiting.

What a real one does (conditional puts under load, listings of many pages) is for `tests/proof/object_store.py`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

BUCKET = "tables"
FIRST_S = 1_700_000_000


class StandingS3:
    """What is stored, by key; each put is a second later than the one before."""

    def __init__(self) -> None:
        self.stored = dict[str, tuple[bytes, int]]()
        self.asked = list[str]()
        """What was asked for since the store stands still: method and key."""
        self.refuses = ""
        """Requests whose method and key have this in them are answered by an error of the server."""
        self._parts = dict[str, dict[int, bytes]]()
        self._lock = threading.Lock()
        self._goes_on, self._met = threading.Event(), threading.Event()
        self._goes_on.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _answering(self))
        self._server.daemon_threads = True

    @property
    def options(self) -> dict[str, str]:
        """The storage options of its tables."""
        return {
            "aws_access_key_id": "transactional",
            "aws_secret_access_key": "only-on-loopback",
            "aws_region": "us-east-1",
            "aws_endpoint_url": f"http://127.0.0.1:{self._server.server_port}",
            "aws_allow_http": "true",
        }

    def holds(self, folder: Path, prefix: str) -> None:
        """Take over the files of a folder."""
        for number, file in enumerate(sorted(folder.rglob("*"))):
            if file.is_file():
                key = f"{prefix}/{file.relative_to(folder).as_posix()}"
                self.stored[key] = (file.read_bytes(), FIRST_S + number)

    def stand_still(self) -> None:
        """Accept and never answer, from now on."""
        self.asked.clear()
        self._met.clear()
        self._goes_on.clear()

    def await_request(self, within_s: float = 20) -> None:
        """Until somebody waits for an answer."""
        assert self._met.wait(within_s), "nobody has asked the store for anything"

    def go_on(self) -> None:
        """Answer again, also those who wait."""
        self._goes_on.set()

    @contextmanager
    def serving(self) -> Iterator[StandingS3]:
        """While it serves."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.go_on()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def answer(self, method: str, url: str, headers: Any, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a request."""
        parts = urlsplit(url)
        key, asked = unquote(parts.path).removeprefix(f"/{BUCKET}").strip("/"), parse_qs(parts.query, True)
        said = f"{method} {key or asked.get('prefix', [''])[0]}"
        if not self._goes_on.is_set():
            self.asked.append(said)
            self._met.set()
            self._goes_on.wait()
        if self.refuses and self.refuses in said:
            return 503, {}, b"<Error><Code>SlowDown</Code><Message>planted</Message></Error>"
        with self._lock:
            if method in ("GET", "HEAD"):
                return self._listed(asked) if "list-type" in asked else self._got(key, headers.get("Range"))
            return self._changed(method, key, asked, headers, body)

    def _changed(
        self, method: str, key: str, asked: dict[str, list[str]], headers: Any, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if method == "DELETE":
            self.stored.pop(key, None)
            return 204, {}, b""
        if method == "POST" and "delete" in asked:
            gone = [each.text or "" for each in ElementTree.fromstring(body).iter() if each.tag.endswith("Key")]
            for each in gone:
                self.stored.pop(each, None)
            told = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in gone)
            return 200, {}, f"<DeleteResult>{told}</DeleteResult>".encode()
        if method == "POST" and "uploads" in asked:
            self._parts[key] = {}
            told = f"<InitiateMultipartUploadResult><UploadId>{len(self._parts)}</UploadId>"
            return 200, {}, f"{told}</InitiateMultipartUploadResult>".encode()
        if method == "PUT" and "partNumber" in asked:
            self._parts[key][int(asked["partNumber"][0])] = body
            return 200, {"ETag": _tag(body)}, b""
        if headers.get("If-None-Match") == "*" and key in self.stored:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        if method == "POST":
            body = b"".join(part for _, part in sorted(self._parts.pop(key).items()))
        self.stored[key] = (body, FIRST_S + len(self.stored))
        tag = _tag(body)
        done = f"<CompleteMultipartUploadResult><ETag>{escape(tag)}</ETag></CompleteMultipartUploadResult>"
        return 200, {"ETag": tag}, done.encode() if method == "POST" else b""

    def _got(self, key: str, wanted: str | None) -> tuple[int, dict[str, str], bytes]:
        if key not in self.stored:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        body, at_s = self.stored[key]
        told = {"ETag": _tag(body), "Last-Modified": formatdate(at_s, usegmt=True)}
        if wanted is None:
            return 200, told, body
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(len(body) - int(last), 0)
        end = min(int(last) + 1, len(body)) if first and last else len(body)
        return 206, {**told, "Content-Range": f"bytes {begin}-{end - 1}/{len(body)}"}, body[begin:end]

    def _listed(self, asked: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        prefix, after = asked.get("prefix", [""])[0], asked.get("start-after", [""])[0]
        delimiter = asked.get("delimiter", [""])[0]
        files, folders = list[str](), set[str]()
        for key in sorted(self.stored):
            if not key.startswith(prefix) or key <= after:
                continue
            first, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                folders.add(prefix + first + delimiter)
            else:
                files.append(key)
        told = "".join(f"<Contents>{self._described(key)}</Contents>" for key in files)
        told += "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders))
        return 200, {}, f"<ListBucketResult><IsTruncated>false</IsTruncated>{told}</ListBucketResult>".encode()

    def _described(self, key: str) -> str:
        body, at_s = self.stored[key]
        minutes, seconds = divmod(at_s - FIRST_S, 60)
        at = f"2023-11-14T{22 + minutes // 60:02}:{minutes % 60:02}:{seconds:02}.000Z"
        tag = f"<ETag>{escape(_tag(body))}</ETag>"
        return f"<Key>{escape(key)}</Key><LastModified>{at}</LastModified>{tag}<Size>{len(body)}</Size>"


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _answering(store: StandingS3) -> type[BaseHTTPRequestHandler]:
    class Answering(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                status, headers, answer = store.answer(self.command, self.path, self.headers, body)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)
            except OSError:
                self.close_connection = True  # whoever asked has given up

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    return Answering
