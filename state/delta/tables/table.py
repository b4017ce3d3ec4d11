"""The location of a Delta table, and the checks of what a state needs of one: columns, properties, protocol.

A table is given by a path, a URI or a name in Spark's catalog. Whoever opens or creates one checks here that both
engines, Spark and delta-rs, can write it, and that it is the declared table: a mismatch is an error before anything is
written. Nothing here writes to a table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import ProtocolVersions
from pyarrow.fs import FileSystem

from state.delta.tables.data_files import DataFile
from state.delta.tables.storage import describe_login, lacks_cloud_login, open_file_system
from state.fence import WriteRefused
from state.rows.columns import StateColumns, check_layout
from transactional.model.errors import ConfigError, OperatingError, SchemaMismatch, TableUnfit
from transactional.model.names import (
    DELETES_FEATURE,
    EXPIRES_PROPERTY,
    FEATURES_PROPERTY,
    LAYOUT_VERSION,
    LOG_COMMITS_PROPERTY,
    SCHEMA_VERSION_PROPERTY,
)
from transactional.model.plumbing.redaction import redacted_reason

DEFAULT_PROPERTIES = {
    SCHEMA_VERSION_PROPERTY: str(LAYOUT_VERSION),
    "delta.checkpointInterval": "100",
    # A state table gets a Delta commit per transaction. On a disk every log file makes every later one a little slower,
    # and every removed file makes every checkpoint larger. Spark refuses tables whose log is kept for a shorter time
    # than their removed files.
    "delta.logRetentionDuration": "interval 30 minutes",
    "delta.deletedFileRetentionDuration": "interval 30 minutes",
}
NUMBER_PROPERTIES = (LOG_COMMITS_PROPERTY, "delta.checkpointInterval")
REFUSED_PROPERTIES = {
    "delta.setTransactionRetentionDuration": "it forgets which attempt wrote the table, and with it the fence",
    "delta.appendOnly": "rows of a state change",
}

NO_ENTRY_MESSAGE = "No files in log segment"
"""The message of delta-rs for a table without the first entry of its log."""
_UNSUPPORTED = re.compile(r"Feature '(?P<feature>\w+)' is not supported|features required: \[?(?P<named>[\w, ]+)")
"""The message of delta-rs for a feature that it does not support."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""A file name that the log does not escape, of a file that lies in the table's own folder."""
RETRY_OPTIONS = {"retry_timeout": "30s"}
"""How long delta-rs tries a request to an object store that does not answer; its default is 3 minutes."""

_S3_SCHEMES = ("s3", "s3a")
_SUPPORTED_SCHEMES = (
    "abfs",
    "abfss",
    "adl",
    "az",
    "azure",
    "file",
    "gcs",
    "gs",
    "hdfs",
    "lakefs",
    *_S3_SCHEMES,
    "viewfs",
)
"""Schemes of the storages that delta-rs writes to. For others it searches for minutes, or reports no table."""
_TRUE = ("1", "true", "yes", "on", "y", "ok")


@dataclass(frozen=True, slots=True)
class DeltaLocation:
    """The path, URI or name in Spark's catalog of a Delta table, with the options that open its storage.

    `storage_options` are delta-rs' own. `repr` leaves them out, since they contain secrets.
    """

    name: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_catalog_name: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("a Delta table needs a path, a URI, or a name in Spark's catalog; the one given is empty")
        if self.is_catalog_name:
            return
        if self.scheme not in _SUPPORTED_SCHEMES:
            raise ConfigError(
                f"a Delta table can't be at {self.name!r}: {self.scheme}: is none of {', '.join(_SUPPORTED_SCHEMES)}; "
                "a table of a catalog, such as Unity Catalog, is given by its name: "
                "catalog_table('catalog.schema.table')"
            )
        if self.scheme in _S3_SCHEMES:
            _check_s3({**os.environ, **self.storage_options}, self.name)

    @classmethod
    def parse(
        cls, table: str | Path | DeltaLocation, storage_options: Mapping[str, str] | None = None
    ) -> DeltaLocation:
        """Return the location of a path or URI. The options are added to those of a location."""
        if isinstance(table, DeltaLocation):
            return replace(table, storage_options={**table.storage_options, **(storage_options or {})})
        location = cls(os.fspath(table), dict(storage_options or {}))
        if location.scheme == "file":
            return location
        return replace(location, storage_options={**RETRY_OPTIONS, **location.storage_options})

    @property
    def scheme(self) -> str:
        """The scheme of a URI in lower case, `file` for a path."""
        # One letter is a drive on Windows.
        scheme = urlsplit(self.name).scheme.lower()
        return scheme if len(scheme) > 1 else "file"

    @property
    def uri(self) -> str:
        """The absolute path or the URI. Not for a name in a catalog."""
        if self.scheme != "file":
            return self.name.rstrip("/")
        return str(Path(re.sub(r"^file:(//(?=/))?", "", self.name, flags=re.IGNORECASE)).absolute())

    def describe_error(self, error: BaseException) -> str:
        """Return the reason of a delta-rs error about this table in one line, without the secrets among the options."""
        reason = redacted_reason(error, self.storage_options)
        if lacks_cloud_login(reason):
            return f"there is no login, and this machine has none: {describe_login(self.scheme)} ({reason})"
        return reason

    def __str__(self) -> str:
        return self.name if self.is_catalog_name else self.uri


def catalog_table(name: str) -> DeltaLocation:
    """Return a Delta table in Spark's catalog, for `DeltaMapState(catalog_table("flights.carriers"), …)`.

    `name` may have up to three parts: `carriers`, `flights.carriers`, `spark_catalog.flights.carriers`.
    """
    return DeltaLocation(name, is_catalog_name=True)


def _check_s3(options: Mapping[str, str], table: str) -> None:
    """Raise `ConfigError` where two writers on S3 could overwrite each other's Delta commits."""
    lowered = {name.lower().removeprefix("aws_"): text.strip().lower() for name, text in options.items()}
    for option in ("conditional_put", "copy_if_not_exists"):
        if lowered.get(option) == "disabled":
            raise ConfigError(
                f"{table} is on S3 with {option}=disabled: two writers would overwrite each other; take the option "
                "away, S3 and most stores like it support conditional puts"
            )
    if lowered.get("s3_allow_unsafe_rename") in _TRUE:
        raise ConfigError(
            f"{table} is on S3 with AWS_S3_ALLOW_UNSAFE_RENAME: two writers would overwrite each other; take the "
            "option away"
        )
    if "s3_locking_provider" in lowered:
        raise ConfigError(
            f"{table} is on S3 with AWS_S3_LOCKING_PROVIDER, which delta-rs no longer heeds; take the option away, so "
            "that Delta commits are guarded by conditional puts"
        )


def check_properties(properties: Mapping[str, str], table: str) -> None:
    """Raise `ConfigError` for properties with which a table can't hold a state, and for numbers that are none."""
    for name, reason in REFUSED_PROPERTIES.items():
        if properties.get(name, "false").lower() != "false":
            raise ConfigError(f"Delta table {table} has the property {name}: {reason}; take it away")
    for name in NUMBER_PROPERTIES:
        if not (text := properties.get(name, "1")).isdecimal() or int(text) < 1:
            raise ConfigError(f"Delta table {table} has the property {name} = {text!r}; it is a number, 1 or more")


def check_table_fits(columns: StateColumns, schema: pa.Schema, properties: Mapping[str, str], table: str) -> None:
    """Raise `SchemaMismatch` if an existing table does not have the columns and properties of a state.

    The table may lack value columns, which it gains later. The order of columns does not matter.
    """
    check_properties(properties, table)
    check_layout_version(properties, table)
    check_expiry(columns.expires, properties, table)
    declared_schema = columns.table_schema
    expected = {column.name: column.type for column in declared_schema}
    actual = {column.name: column.type for column in schema}
    lacking = expected.keys() - actual.keys()
    gained = {name for group in columns.addable if lacking.issuperset(group) for name in group}
    if expected != {**actual, **{name: expected[name] for name in gained}}:
        raise SchemaMismatch(
            f"Delta table {table} has the columns {_describe_columns(schema)}; "
            f"the state needs {_describe_columns(declared_schema)}; give the state another "
            "table, or declare it as the table is (names are compared case by case); value columns can be added, but "
            "nothing else can change"
        )


def check_layout_version(properties: Mapping[str, str], table: str) -> None:
    """Raise `SchemaMismatch` for a table of another layout version than `LAYOUT_VERSION`."""
    check_layout(properties.get(SCHEMA_VERSION_PROPERTY), f"Delta table {table}")


def check_expiry(expires: str | None, properties: Mapping[str, str], table: str) -> None:
    """Raise `SchemaMismatch` if rows of the table expire by another column than the state declares."""
    stored = properties.get(EXPIRES_PROPERTY)
    if stored is not None and stored != expires:
        declaration = f"expires={expires!r}" if expires is not None else "no expires="
        raise SchemaMismatch(
            f"Delta table {table} has rows that expire by the column {stored!r}, and its state is declared with "
            f"{declaration}: declare expires={stored!r}, or use another table"
        )


def parse_features(properties: Mapping[str, str]) -> frozenset[str]:
    """Return the names of a table's features, which one of its properties lists."""
    return frozenset(name.strip() for name in properties.get(FEATURES_PROPERTY, "").split(",") if name.strip())


def add_feature(properties: Mapping[str, str], feature: str) -> dict[str, str]:
    """Return the property to set on a table with these properties so that it has another feature."""
    return {FEATURES_PROPERTY: ",".join(sorted({*parse_features(properties), feature}))}


def build_table_properties(columns: StateColumns, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties to create a table with: those given, and those that its columns need."""
    created = dict(properties)
    if columns.deletes:
        created |= add_feature(created, DELETES_FEATURE)
    if columns.expires is not None:
        created[EXPIRES_PROPERTY] = columns.expires
    return created


def is_writable_protocol(reader: int, writer: int, features: frozenset[str]) -> bool:
    """True if both Spark and delta-rs can write a table with this protocol."""
    return reader == 1 and (writer <= 2 or (writer == 7 and features <= {"appendOnly", "invariants"}))


def check_protocol(reader: int, writer: int, features: frozenset[str], table: str) -> None:
    """Raise `SchemaMismatch` unless both Spark and delta-rs can write a table with this protocol."""
    if not is_writable_protocol(reader, writer, features):
        raise SchemaMismatch(
            f"Delta table {table} has protocol reader {reader}, writer {writer} with the features "
            f"{sorted(features)}; a state needs reader 1, writer 2, no deletion vectors, no column mapping: let the "
            "state create it"
        )


def _describe_columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


# --- loading by delta-rs ----------------------------------------------------------------------------


def open_storage(location: DeltaLocation) -> FileSystem:
    """Return the file system of the table's folder. Its paths are those of the table's log."""
    return open_file_system(location.uri, location.storage_options)


def load_table(location: DeltaLocation) -> DeltaTable:
    """Load the newest snapshot of a table.

    Raises `OperatingError` if it can't be read, and `TableUnfit` if it has a feature that delta-rs does not support.
    """
    try:
        return DeltaTable(location.uri, storage_options=dict(location.storage_options))
    except (DeltaError, OSError) as error:
        reason = location.describe_error(error)
        raise_if_unsupported(location, reason)
        if NO_ENTRY_MESSAGE in reason:
            reason = "its log has no entry: it is being created, or it is no table yet; try again once a run has begun"
        raise OperatingError(f"Delta table {location} can't be opened: {reason}") from None


def raise_if_unsupported(location: DeltaLocation, reason: str) -> None:
    """Raise `TableUnfit` if an error of delta-rs names a feature of the table that delta-rs does not support."""
    if "catalog-managed" in reason:
        raise TableUnfit(
            f"Delta table {location} is managed by a catalog, whose commits are not in its log alone: it can be read "
            "and written through the catalog only; use a table without the features catalogManaged and "
            "catalogOwned-preview"
        )
    if match := _UNSUPPORTED.search(reason):
        raise TableUnfit(
            f"Delta table {location} has the feature {match['feature'] or match['named']}, which delta-rs does not "
            "read; use a table without it, or a copy of its rows"
        )


def list_protocol_features(protocol: ProtocolVersions) -> frozenset[str]:
    """Return the table features that a protocol names for readers and writers."""
    return frozenset([*(protocol.reader_features or []), *(protocol.writer_features or [])])


def write_refused_error(location: DeltaLocation, error: Exception) -> WriteRefused:
    """Return the error for a write that delta-rs has refused.

    Raise it `from None`: the error of delta-rs may contain secrets.
    """
    return WriteRefused(location.describe_error(error), is_conflict=isinstance(error, CommitFailedError))


def unreadable_table_error(location: DeltaLocation, error: Exception) -> OperatingError:
    """Return the error for a table that can't be read, without the secrets of the error of delta-rs."""
    return OperatingError(f"Delta table {location} can't be read: {location.describe_error(error)}")


def list_data_files(table: DeltaTable) -> list[DataFile]:
    """Return the data files of a snapshot."""
    actions = pa.table(table.get_add_actions())
    names, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    return [DataFile(name, size_bytes) for name, size_bytes in zip(names, sizes, strict=True)]


def can_be_written_without_engine(table: DeltaTable) -> bool:
    """True if a writer of the table need only add and remove files: it has no invariants to check, for example."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    return (
        is_writable_protocol(protocol.min_reader_version, protocol.min_writer_version, list_protocol_features(protocol))
        and str(configuration.get("delta.appendOnly", "false")).lower() == "false"
        and "delta.invariants" not in table.schema().to_json()
    )


def list_replaceable_files(table: DeltaTable) -> list[DataFile] | None:
    """Return the files of a table without partitions. None if only delta-rs may replace them."""
    if table.metadata().partition_columns or not can_be_written_without_engine(table):
        return None
    files = list_data_files(table)
    return files if all(_PLAIN_NAME.fullmatch(file.name) for file in files) else None
