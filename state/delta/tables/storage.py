"""The files in a Delta table's folder, in any storage that delta-rs opens, without blocking other threads.

delta-rs' own handler holds the interpreter's lock while it waits for a store. Meanwhile no other thread runs, neither
the one that renews the lease nor the one that answers /livez. So requests are made by obstore, which is built on the
same crate (`object_store`) and releases the lock. Its options are those of delta-rs.
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
"""Largest object that is read as a whole by one request, since requests for parts of it would take longer."""
REQUESTS_AT_ONCE = 16
"""Number of objects whose metadata is requested in parallel. A start requests that of every file of a table."""
_AZURE = ("abfs", "abfss", "adl", "az", "azure")
_STORES: Mapping[str, Any] = {
    **dict.fromkeys(("s3", "s3a"), S3Store),
    **dict.fromkeys(("gs", "gcs"), GCSStore),
    **dict.fromkeys(_AZURE, AzureStore),
}
"""The client class by URI scheme. For other schemes, such as HDFS, delta-rs' own handler is used."""
_LOGINS: Mapping[Any, str] = {
    S3Store: "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    GCSStore: "GOOGLE_SERVICE_ACCOUNT, the path of a service account's JSON file",
    AzureStore: "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, the key in base64 as the portal shows it",
}
"""The options of a login by client class. They are environment variables as well."""
_METADATA_SERVICE = "//169.254.169.254/"
"""The address from which a machine in a cloud gets its login, if none is configured."""
_CLIENT_OPTIONS = {
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only"),
    *("http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only"),
    *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes"),
    *("randomize_addresses", "read_timeout", "timeout", "user_agent"),
}
"""Options of the HTTP client, which are a separate argument of obstore."""
_PREFIX = re.compile("^(aws|azure|google)_")
_PROFILE_OPTIONS = frozenset({"aws_profile", "aws_iam_role_arn", "aws_s3_assume_role_arn"})
"""Options by which delta-rs gets keys from Amazon's own library, which obstore can't."""
_SYSTEM_ERROR = re.compile(r'code: (\d+),\s+kind: \w+,\s+message: "([^"\n]+)"')
_REASON = re.compile(r'error: "([^"\n]+)"')
_TIME = re.compile(r"(\d+)\s*(ms|s|m|h)[a-z]*", re.IGNORECASE)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


def open_file_system(uri: str, options: Mapping[str, str]) -> FileSystem:
    """Return the file system of a table's folder, which is an absolute path or a URI. Paths are those of its log.

    Raises `ConfigError` for options that are no valid login, such as a malformed key.
    """
    scheme = urlsplit(uri).scheme.lower()
    if len(scheme) < 2:  # one letter is a drive on Windows
        return SubTreeFileSystem(uri, LocalFileSystem())
    settings = {name.lower(): text for name, text in options.items()}
    if _STORES.get(scheme) is S3Store:
        names = {_PREFIX.sub("", name) for name in settings}
        environment = {name.lower(): text for name, text in os.environ.items() if name.startswith("AWS_")}
        defaults = {name: text for name, text in environment.items() if name.removeprefix("aws_") not in names}
        settings = {**defaults, **settings}
    try:
        return _open_cached_file_system(scheme, uri, tuple(sorted(settings.items())))
    except BaseError as error:
        reason = redacted_reason(OSError(_summarize_error(str(error))), options)
        raise ConfigError(f"the storage of {uri} can't be opened: {reason}; {describe_login(scheme)}") from None


def describe_login(scheme: str) -> str:
    """Return how to log in to the storage of a URL scheme: the end of a message, without a capital or a full stop."""
    names = _LOGINS.get(_STORES.get(scheme), "the options of a login")
    return f"pass storage_options with {names}; or set the environment variables of these names"


def lacks_cloud_login(reason: str) -> bool:
    """True for the error of a storage without a configured login, on a machine to which no cloud gives one."""
    return _METADATA_SERVICE in reason


def can_create_exclusively(storage: FileSystem) -> bool:
    """True if a log entry can be written without replacing another writer's: by a link, or by `create_object`."""
    return _is_on_disk(storage) or isinstance(storage.handler, _ObjectStoreHandler)


def create_object(storage: FileSystem, path: str, content: bytes) -> None:
    """Put an object in an object store that has none of this name. Raises `FileExistsError`, `OSError`."""
    storage.handler.create_object(path, content)


def delete_files(storage: FileSystem, paths: Iterable[str]) -> None:
    """Delete files. Missing ones are ignored. Raises `OSError`."""
    for path in paths:
        with suppress(FileNotFoundError):
            storage.delete_file(path)


def open_parquet(storage: FileSystem, path: str, size_bytes: int) -> parquet.ParquetFile:
    """Open a Parquet file, in a store by as few requests as possible. Raises `OSError`, `ArrowException`."""
    if _is_on_disk(storage):
        return parquet.ParquetFile(path, filesystem=storage, coerce_int96_timestamp_unit="us")
    source = storage.handler.open_with_size(path, size_bytes)
    return parquet.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us")


def _is_on_disk(storage: FileSystem) -> bool:
    return isinstance(storage, SubTreeFileSystem)


@lru_cache(maxsize=100)
def _open_cached_file_system(scheme: str, uri: str, options: tuple[tuple[str, str], ...]) -> FileSystem:
    """Return a cached file system. A client takes long to create, since it reads the certificates that it trusts."""
    kind, settings = _STORES.get(scheme), dict(options)
    if kind is None or (kind is S3Store and _needs_profile(settings)):
        return PyFileSystem(DeltaStorageHandler(uri, settings))
    store_uri = uri.replace("gcs:", "gs:", 1) if scheme == "gcs" else uri  # obstore has one name for it
    return PyFileSystem(_ObjectStoreHandler(uri, settings, _open_client(kind, store_uri, settings)))


class _ObjectStoreHandler(DeltaStorageHandler):
    """delta-rs' handler, with all requests made by obstore. Raises `OSError`."""

    def __init__(self, uri: str, options: Mapping[str, str], store: Any) -> None:
        self._uri, self._options, self.store = uri, dict(options), store

    @cached_property
    def _handler(self) -> Any:  # type: ignore[override]
        """delta-rs' own handler, for rare requests. It is created late, since for S3 it looks up a region and a
        role."""
        return DeltaStorageHandler(self._uri, self._options)._handler

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        if len(paths) <= REQUESTS_AT_ONCE:
            return [self._read_file_info(path) for path in paths]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, "objects") as pool:
            return list(pool.map(self._read_file_info, paths))

    def _read_file_info(self, path: str) -> FileInfo:
        try:
            with _as_os_error():
                return _build_file_info(obstore.head(self.store, path))
        except FileNotFoundError:
            return FileInfo(path, FileType.NotFound)

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        with _as_os_error():
            if selector.recursive:
                objects = [meta for page in obstore.list(self.store, selector.base_dir) for meta in page]
            else:
                objects = list(obstore.list_with_delimiter(self.store, selector.base_dir)["objects"])
        if not objects and not selector.allow_not_found:
            raise FileNotFoundError(f"there is nothing in {selector.base_dir}")
        return list(map(_build_file_info, objects))

    def create_object(self, path: str, content: bytes) -> None:
        with _as_os_error():
            try:
                obstore.put(self.store, path, content, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                # A request that is retried, since its answer was lost, finds the object that it has created.
                if bytes(obstore.get(self.store, path).bytes()) != content:
                    raise FileExistsError(_summarize_error(str(error))) from None

    def delete_file(self, path: str) -> None:
        with _as_os_error():
            obstore.delete(self.store, path)

    def open_with_size(self, path: str, size_bytes: int) -> pa.NativeFile:
        if size_bytes > WHOLE_BYTES_MAX:
            return pa.PythonFile(_ObjectReader(self.store, path, size_bytes), mode="r")
        with _as_os_error():
            return pa.BufferReader(bytes(obstore.get(self.store, path).bytes()))

    def open_input_file(self, path: str) -> pa.PythonFile:
        with _as_os_error():
            size_bytes = int(obstore.head(self.store, path)["size"])
        return pa.PythonFile(_ObjectReader(self.store, path, size_bytes), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: Mapping[str, str] | None = None) -> pa.PythonFile:
        return pa.PythonFile(_ObjectWriter(obstore.open_writer(self.store, path)), mode="w")


def _build_file_info(meta: Any) -> FileInfo:
    return FileInfo(meta["path"], FileType.File, size=meta["size"], mtime=meta["last_modified"])


class _ObjectReader:
    """A file to read an object by ranges, from any position."""

    closed = False

    def __init__(self, store: Any, path: str, size_bytes: int) -> None:
        self._store, self._path, self._size, self._position = store, path, size_bytes, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        begin, remaining_bytes = self._position, max(0, self._size - self._position)
        length = remaining_bytes if size < 0 else min(size, remaining_bytes)
        if not length:
            return b""
        with _as_os_error():
            content = bytes(obstore.get_range(self._store, self._path, start=begin, length=length))
        self._position = begin + len(content)
        return content

    def close(self) -> None:
        self.closed = True


class _ObjectWriter:
    """A file to write an object, which exists once the file is closed."""

    closed = False

    def __init__(self, writer: Any) -> None:
        self._writer, self._size = writer, 0

    def write(self, content: bytes) -> int:
        with _as_os_error():
            self._writer.write(bytes(content))
        self._size += len(content)
        return len(content)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: the object is written as a whole."""

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
        raise kind(_summarize_error(str(error))) from None


def _summarize_error(text: str) -> str:
    """Return the first line of an obstore error, with the reason from its later lines."""
    first_line, _, details = text.partition("\n")
    if match := _SYSTEM_ERROR.search(details):
        return f"{first_line}: {match[2]} (os error {match[1]})"
    reason = "operation timed out" if "TimedOut" in details else next(iter(_REASON.findall(details)), "")
    return f"{first_line}: {reason}" if reason else first_line


def _open_client(kind: Any, uri: str, options: Mapping[str, str]) -> Any:
    """Return obstore's client of a folder."""
    config, client, retry = dict[str, str](), dict[str, str](), dict[str, str]()
    for name, text in options.items():
        if (plain := _PREFIX.sub("", name)) in _CLIENT_OPTIONS:
            client[plain] = text
        elif plain in ("max_retries", "retry_timeout") or plain.startswith("backoff_config."):
            retry[plain] = text
        elif _is_client_option(kind, name):
            config[name] = text
    return kind.from_url(uri, config=config, client_options=client or None, retry_config=_parse_retry_options(retry))


def _needs_profile(settings: Mapping[str, str]) -> bool:
    """True if the keys of S3 come from a profile or a role of Amazon's library."""
    if not _PROFILE_OPTIONS.isdisjoint(settings):
        return True
    has_keys = any(name.endswith(("access_key_id", "web_identity_token_file", "skip_signature")) for name in settings)
    files = (
        settings.get("aws_shared_credentials_file", "~/.aws/credentials"),
        settings.get("aws_config_file", "~/.aws/config"),
    )
    return not has_keys and any(Path(file).expanduser().exists() for file in files)


@lru_cache(maxsize=1_000)
def _is_client_option(kind: Any, name: str) -> bool:
    """True if obstore has an option of this name. Other options are ignored, as by delta-rs."""
    try:
        kind("any", config={name: "any"})
    except UnknownConfigurationKeyError:
        return False
    except (BaseError, ValueError, TypeError):
        return True
    return True


def _parse_retry_options(settings: Mapping[str, str]) -> Any:
    """Return how often and for how long requests are retried, or None for obstore's defaults."""
    retry, backoff = dict[str, Any](), dict[str, Any]()
    for name, text in settings.items():
        plain = name.removeprefix("backoff_config.")
        number = float(text) if plain == "base" else int(text) if plain == "max_retries" else _parse_duration(text)
        (retry if plain == name else backoff)[plain] = number
    return {**retry, **({"backoff": backoff} if backoff else {})} or None


def _parse_duration(text: str) -> timedelta:
    """Parse a duration such as `30s`, `3 minutes` or `1m 30s`."""
    return sum((timedelta(**{_UNITS[u.lower()]: int(n)}) for n, u in _TIME.findall(text)), timedelta())
