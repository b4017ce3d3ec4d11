"""The files below a Delta table's folder, in any storage that delta-rs opens, while other threads run.

delta-rs' own handler holds the interpreter's lock while a store keeps it waiting: no other thread gets on, neither the
one that renews the lease nor the one that answers /livez. What it holds it for is done by obstore, which is made of the
same crate (`object_store`) and lets go of it. The options are delta-rs' own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store
from pyarrow import parquet
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from transactional.model.errors import ConfigError
from transactional.model.plumbing.redaction import redacted_reason

WHOLE_BYTES_MAX = 8 * 1024 * 1024
"""So large an object of rows is brought by one request: its parts would take longer."""
REQUESTS_AT_ONCE = 16
"""So many objects are looked at side by side, where there are more: a start looks at each file of a table."""
_AZURE = ("abfs", "abfss", "adl", "az", "azure")
_STORES: Mapping[str, Any] = {
    **dict.fromkeys(("s3", "s3a"), S3Store),
    **dict.fromkeys(("gs", "gcs"), GCSStore),
    **dict.fromkeys(_AZURE, AzureStore),
}
"""By scheme; of others, such as HDFS, delta-rs' handler is left as it is."""
_LOGINS: Mapping[Any, str] = {
    S3Store: "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    GCSStore: "GOOGLE_SERVICE_ACCOUNT, the path of a service account's JSON file",
    AzureStore: "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, the key in base64 as the portal shows it",
}
"""By client: the options that are a login, which are environment variables, too."""
_MACHINES = "//169.254.169.254/"
"""Where a machine of a cloud has its login from, if nobody has given one."""
_OF_CLIENT = {
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only"),
    *("http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only"),
    *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes"),
    *("randomize_addresses", "read_timeout", "timeout", "user_agent"),
}
"""Options of the HTTP client, which obstore wants apart."""
_PREFIX = re.compile("^(aws|azure|google)_")
_BY_PROFILE = frozenset({"aws_profile", "aws_iam_role_arn", "aws_s3_assume_role_arn"})
"""Ways to get at keys that delta-rs has of Amazon's own library, and obstore has not."""
_OF_SYSTEM = re.compile(r'code: (\d+),\s+kind: \w+,\s+message: "([^"\n]+)"')
_REASON = re.compile(r'error: "([^"\n]+)"')
_TIME = re.compile(r"(\d+)\s*(ms|s|m|h)[a-z]*", re.IGNORECASE)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


def storage_at(uri: str, options: Mapping[str, str]) -> FileSystem:
    """What is stored below a table's folder, an absolute path or a URI: paths are as its log has them.

    Raises `ConfigError` for options that are no login, such as a key that is none.
    """
    scheme = urlsplit(uri).scheme.lower()
    if len(scheme) < 2:  # one letter is a drive on Windows
        return SubTreeFileSystem(uri, LocalFileSystem())
    said = {name.lower(): value for name, value in options.items()}
    if _STORES.get(scheme) is S3Store:
        given = {_PREFIX.sub("", name) for name in said}
        around = {name.lower(): value for name, value in os.environ.items() if name.startswith("AWS_")}
        said = {**{name: around[name] for name in around if name.removeprefix("aws_") not in given}, **said}
    try:
        return _storage_at(scheme, uri, tuple(sorted(said.items())))
    except BaseError as error:
        reason = redacted_reason(OSError(_in_one_line(str(error))), options)
        raise ConfigError(f"the storage of {uri} can't be opened: {reason}; {login_advice(scheme)}") from None


def login_advice(scheme: str) -> str:
    """How one logs in to a storage, as part of a sentence."""
    names = _LOGINS.get(_STORES.get(scheme), "what it takes")
    return f"pass storage_options with {names}; or set the environment variables of these names"


def is_machines_login(reason: str) -> bool:
    """Whether a storage's error is that of a machine that no cloud gives a login, and where no other one is given."""
    return _MACHINES in reason


def can_create(storage: FileSystem) -> bool:
    """Whether the log's next entry can be made here without replacing another writer's: by a link, or by `create`."""
    return _is_on_disk(storage) or isinstance(storage.handler, _Objects)


def create(storage: FileSystem, path: str, data: bytes) -> None:
    """Put an object in an object store, where there is none of this name. Raises `FileExistsError`, `OSError`."""
    storage.handler.create(path, data)


def delete(storage: FileSystem, paths: Iterable[str]) -> None:
    """Delete files, of which some may not be there. Raises `OSError`."""
    for path in paths:
        with suppress(FileNotFoundError):
            storage.delete_file(path)


def opened_parquet(storage: FileSystem, path: str, size_bytes: int) -> parquet.ParquetFile:
    """A file of rows on a disk, or in a store by as few requests as possible. Raises `OSError`, `ArrowException`."""
    if _is_on_disk(storage):
        return parquet.ParquetFile(path, filesystem=storage, coerce_int96_timestamp_unit="us")
    source = storage.handler.opened(path, size_bytes)
    return parquet.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us")


def _is_on_disk(storage: FileSystem) -> bool:
    return isinstance(storage, SubTreeFileSystem)


@lru_cache(maxsize=100)
def _storage_at(scheme: str, uri: str, options: tuple[tuple[str, str], ...]) -> FileSystem:
    """A client is dear to make: it reads the certificates that it trusts."""
    kind, said = _STORES.get(scheme), dict(options)
    if kind is None or (kind is S3Store and _is_by_profile(said)):
        return PyFileSystem(DeltaStorageHandler(uri, said))
    known = uri.replace("gcs:", "gs:", 1) if scheme == "gcs" else uri  # obstore has one name for it
    return PyFileSystem(_Objects(uri, said, _store_at(kind, known, said)))


class _Objects(DeltaStorageHandler):
    """delta-rs' handler, but for what it holds the interpreter's lock for. Raises `OSError`."""

    def __init__(self, uri: str, options: Mapping[str, str], store: Any) -> None:
        self._uri, self._options, self.store = uri, dict(options), store

    @cached_property
    def _handler(self) -> Any:  # type: ignore[override]
        """delta-rs' own, for what is rare: of S3 it looks for a region and a role as soon as it is made."""
        return DeltaStorageHandler(self._uri, self._options)._handler

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        if len(paths) <= REQUESTS_AT_ONCE:
            return [self._info(path) for path in paths]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, "objects") as pool:
            return list(pool.map(self._info, paths))

    def _info(self, path: str) -> FileInfo:
        try:
            with _as_os_error():
                return _described(obstore.head(self.store, path))
        except FileNotFoundError:
            return FileInfo(path, FileType.NotFound)

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        with _as_os_error():
            if selector.recursive:
                found = [each for page in obstore.list(self.store, selector.base_dir) for each in page]
            else:
                found = list(obstore.list_with_delimiter(self.store, selector.base_dir)["objects"])
        if not found and not selector.allow_not_found:
            raise FileNotFoundError(f"there is nothing in {selector.base_dir}")
        return list(map(_described, found))

    def create(self, path: str, data: bytes) -> None:
        with _as_os_error():
            try:
                obstore.put(self.store, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                # A request that is tried again, since its answer was lost, finds what it has written itself.
                if bytes(obstore.get(self.store, path).bytes()) != data:
                    raise FileExistsError(_in_one_line(str(error))) from None

    def delete_file(self, path: str) -> None:
        with _as_os_error():
            obstore.delete(self.store, path)

    def opened(self, path: str, size_bytes: int) -> pa.NativeFile:
        if size_bytes > WHOLE_BYTES_MAX:
            return pa.PythonFile(_Read(self.store, path, size_bytes), mode="r")
        with _as_os_error():
            return pa.BufferReader(bytes(obstore.get(self.store, path).bytes()))

    def open_input_file(self, path: str) -> pa.PythonFile:
        with _as_os_error():
            size_bytes = int(obstore.head(self.store, path)["size"])
        return pa.PythonFile(_Read(self.store, path, size_bytes), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: Mapping[str, str] | None = None) -> pa.PythonFile:
        return pa.PythonFile(_Written(obstore.open_writer(self.store, path)), mode="w")


def _described(found: Any) -> FileInfo:
    return FileInfo(found["path"], FileType.File, size=found["size"], mtime=found["last_modified"])


class _Read:
    """A file at any place of which can be read."""

    closed = False

    def __init__(self, store: Any, path: str, size_bytes: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size_bytes, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin, left = self._at, max(0, self._size - self._at)
        many = left if size < 0 else min(size, left)
        if not many:
            return b""
        with _as_os_error():
            data = bytes(obstore.get_range(self._store, self._path, start=begin, length=many))
        self._at = begin + len(data)
        return data

    def close(self) -> None:
        self.closed = True


class _Written:
    """A file that is there as soon as it is closed."""

    closed = False

    def __init__(self, writer: Any) -> None:
        self._writer, self._written = writer, 0

    def write(self, data: bytes) -> int:
        with _as_os_error():
            self._writer.write(bytes(data))
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Nothing: it is written as a whole."""

    def close(self) -> None:
        self.closed = True
        with _as_os_error():
            self._writer.close()


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except (BaseError, FileNotFoundError) as error:
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
        raise kind(_in_one_line(str(error))) from None


def _in_one_line(text: str) -> str:
    """What an error of obstore says, and the reason that it has in the lines below."""
    said, _, below = text.partition("\n")
    if found := _OF_SYSTEM.search(below):
        return f"{said}: {found[2]} (os error {found[1]})"
    reason = "operation timed out" if "TimedOut" in below else next(iter(_REASON.findall(below)), "")
    return f"{said}: {reason}" if reason else said


def _store_at(kind: Any, uri: str, options: Mapping[str, str]) -> Any:
    """obstore's client of a folder."""
    config, client, retry = dict[str, str](), dict[str, str](), dict[str, str]()
    for name, value in options.items():
        if (plain := _PREFIX.sub("", name)) in _OF_CLIENT:
            client[plain] = value
        elif plain in ("max_retries", "retry_timeout") or plain.startswith("backoff_config."):
            retry[plain] = value
        elif _is_known(kind, name):
            config[name] = value
    return kind.from_url(uri, config=config, client_options=client or None, retry_config=_retries(retry))


def _is_by_profile(said: Mapping[str, str]) -> bool:
    """Whether the keys of S3 are had from a profile or a role of Amazon's library."""
    if not _BY_PROFILE.isdisjoint(said):
        return True
    has_keys = any(name.endswith(("access_key_id", "web_identity_token_file", "skip_signature")) for name in said)
    files = (
        said.get("aws_shared_credentials_file", "~/.aws/credentials"),
        said.get("aws_config_file", "~/.aws/config"),
    )
    return not has_keys and any(Path(file).expanduser().exists() for file in files)


@lru_cache(maxsize=1_000)
def _is_known(kind: Any, name: str) -> bool:
    """Whether obstore has an option of this name: as with delta-rs, others are none of its business."""
    try:
        kind("any", config={name: "any"})
    except UnknownConfigurationKeyError:
        return False
    except (BaseError, ValueError, TypeError):
        return True
    return True


def _retries(said: Mapping[str, str]) -> Any:
    """How often and how long is tried again; None: as obstore does."""
    retry, backoff = dict[str, Any](), dict[str, Any]()
    for name, value in said.items():
        plain = name.removeprefix("backoff_config.")
        number = float(value) if plain == "base" else int(value) if plain == "max_retries" else _time(value)
        (retry if plain == name else backoff)[plain] = number
    return {**retry, **({"backoff": backoff} if backoff else {})} or None


def _time(text: str) -> timedelta:
    """`30s`, `3 minutes`, `1m 30s`."""
    return sum((timedelta(**{_UNITS[u.lower()]: int(n)}) for n, u in _TIME.findall(text)), timedelta())
