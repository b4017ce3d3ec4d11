"""A Delta table that holds a state: where it lies, what it looks like, and how it is created and loaded."""

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
from state.delta.tables.storage import lacks_cloud_login, login_advice, storage_at
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
COUNTED_PROPERTIES = (LOG_COMMITS_PROPERTY, "delta.checkpointInterval")
REFUSED_PROPERTIES = {
    "delta.setTransactionRetentionDuration": "it forgets which attempt wrote the table, and with it the fence",
    "delta.appendOnly": "rows of a state change",
}

NO_ENTRY = "No files in log segment"
"""What delta-rs says of a table whose folder is there, and the first entry of its log is not."""
_UNSUPPORTED = re.compile(r"Feature '(?P<feature>\w+)' is not supported|features required: \[?(?P<named>[\w, ]+)")
"""What delta-rs says of a feature that it does not know."""
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
"""The name of a file that the log does not escape, and that lies in the table's own folder."""
PATIENCE = {"retry_timeout": "30s"}
"""How long delta-rs tries a request to an object store that does not answer; its default is 3 minutes."""

_S3_SCHEMES = ("s3", "s3a")
_SCHEMES = ("abfs", "abfss", "adl", "az", "azure", "file", "gcs", "gs", "hdfs", "lakefs", *_S3_SCHEMES, "viewfs")
"""Of the storages that delta-rs writes to. Of others it looks for minutes, or says that no table is there."""
_TRUE = ("1", "true", "yes", "on", "y", "ok")


@dataclass(frozen=True, slots=True)
class DeltaLocation:
    """Where a Delta table lies: a path, a URI, or a name in Spark's catalog; with the options that open its storage.

    `storage_options` are delta-rs' own, and are not shown, since there are secrets among them.
    """

    name: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_catalog_name: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("a Delta table needs a path, a URI, or a name in Spark's catalog; the one given is empty")
        if self.is_catalog_name:
            return
        if self.scheme not in _SCHEMES:
            raise ConfigError(
                f"a Delta table can't be at {self.name!r}: {self.scheme}: is none of {', '.join(_SCHEMES)}; a table of "
                "a catalog, such as Unity Catalog, is given by its name: catalog_table('catalog.schema.table')"
            )
        if self.scheme in _S3_SCHEMES:
            _check_s3({**os.environ, **self.storage_options}, self.name)

    @classmethod
    def of(cls, table: str | Path | DeltaLocation, storage_options: Mapping[str, str] | None = None) -> DeltaLocation:
        """A location from what a user writes: a path or URI."""
        if isinstance(table, DeltaLocation):
            return replace(table, storage_options={**table.storage_options, **(storage_options or {})})
        made = cls(os.fspath(table), dict(storage_options or {}))
        return made if made.scheme == "file" else replace(made, storage_options={**PATIENCE, **made.storage_options})

    @classmethod
    def catalog(cls, name: str) -> DeltaLocation:
        """A table in Spark's catalog: `carriers`, `flights.carriers`, `spark_catalog.flights.carriers`."""
        return cls(name, is_catalog_name=True)

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

    def reason(self, error: BaseException) -> str:
        """What an error of delta-rs says of this table: one line, without the secrets among the options."""
        reason = redacted_reason(error, self.storage_options)
        if lacks_cloud_login(reason):
            return f"there is no login, and this machine has none: {login_advice(self.scheme)} ({reason})"
        return reason

    def __str__(self) -> str:
        return self.name if self.is_catalog_name else self.uri


def catalog_table(name: str) -> DeltaLocation:
    """A Delta table in Spark's catalog, for `DeltaMapState(catalog_table("flights.carriers"), …)`."""
    return DeltaLocation.catalog(name)


def _check_s3(options: Mapping[str, str], table: str) -> None:
    """Raise `ConfigError` where two writers on S3 could overwrite each other's Delta commits."""
    lowered = {name.lower().removeprefix("aws_"): value.strip().lower() for name, value in options.items()}
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
    """Raise `ConfigError` for table properties that a state can't live with."""
    for name, reason in REFUSED_PROPERTIES.items():
        if properties.get(name, "false").lower() != "false":
            raise ConfigError(f"Delta table {table} has the property {name}: {reason}; take it away")
    for name in COUNTED_PROPERTIES:
        if not (text := properties.get(name, "1")).isdecimal() or int(text) < 1:
            raise ConfigError(f"Delta table {table} has the property {name} = {text!r}; it is a number, 1 or more")


def check_table(columns: StateColumns, found: pa.Schema, properties: Mapping[str, str], table: str) -> None:
    """Raise `SchemaMismatch` when an existing table is not the one of this state. It may lack columns that it will
    gain; their order does not matter."""
    check_properties(properties, table)
    check_version(properties, table)
    check_expiry(columns.expires, properties, table)
    wanted = columns.table_schema
    expected = {column.name: column.type for column in wanted}
    actual = {column.name: column.type for column in found}
    lacking = expected.keys() - actual.keys()
    gained = {name for group in columns.addable if lacking.issuperset(group) for name in group}
    if expected != {**actual, **{name: expected[name] for name in gained}}:
        raise SchemaMismatch(
            f"Delta table {table} has the columns {_described(found)}; "
            f"the state needs {_described(wanted)}; give the state another "
            "table, or declare it as the table is (names are compared case by case); value columns can be added, but "
            "nothing else can change"
        )


def check_version(properties: Mapping[str, str], table: str) -> None:
    """Raise `SchemaMismatch` for a table of another version of the layout."""
    check_layout(properties.get(SCHEMA_VERSION_PROPERTY), f"Delta table {table}")


def check_expiry(expires: str | None, properties: Mapping[str, str], table: str) -> None:
    """Raise `SchemaMismatch` for a table whose rows expire, unless the state declares that they do so."""
    stored = properties.get(EXPIRES_PROPERTY)
    if stored is not None and stored != expires:
        now = f"expires={expires!r}" if expires is not None else "no expires="
        raise SchemaMismatch(
            f"Delta table {table} has rows that expire by the column {stored!r}, and its state is declared with {now}: "
            f"declare expires={stored!r}, or use another table"
        )


def features_used(properties: Mapping[str, str]) -> frozenset[str]:
    """The features of a table, as its properties say."""
    return frozenset(name.strip() for name in properties.get(FEATURES_PROPERTY, "").split(",") if name.strip())


def properties_with(properties: Mapping[str, str], feature: str) -> dict[str, str]:
    """The properties to set on a table that has some so that it has a feature, too."""
    return {FEATURES_PROPERTY: ",".join(sorted({*features_used(properties), feature}))}


def properties_of(columns: StateColumns, properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a new table, with what its columns need."""
    wanted = dict(properties)
    if columns.deletes:
        wanted |= properties_with(wanted, DELETES_FEATURE)
    if columns.expires is not None:
        wanted[EXPIRES_PROPERTY] = columns.expires
    return wanted


def is_known_protocol(reader: int, writer: int, features: frozenset[str]) -> bool:
    """Whether both, Spark and delta-rs, can write a table with this protocol."""
    return reader == 1 and (writer <= 2 or (writer == 7 and features <= {"appendOnly", "invariants"}))


def check_protocol(reader: int, writer: int, features: frozenset[str], table: str) -> None:
    """Raise `SchemaMismatch` for a table that not both, Spark and delta-rs, can write."""
    if not is_known_protocol(reader, writer, features):
        raise SchemaMismatch(
            f"Delta table {table} has protocol reader {reader}, writer {writer} with the features "
            f"{sorted(features)}; a state needs reader 1, writer 2, no deletion vectors, no column mapping: let the "
            "state create it"
        )


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


# --- loading by delta-rs ----------------------------------------------------------------------------


def storage_of(location: DeltaLocation) -> FileSystem:
    """What is stored below the table's folder: paths are as its log has them."""
    return storage_at(location.uri, location.storage_options)


def load_table(location: DeltaLocation) -> DeltaTable:
    """The newest snapshot of a table. Raises `OperatingError` when it can't be read, `TableUnfit` when it never can."""
    try:
        return DeltaTable(location.uri, storage_options=dict(location.storage_options))
    except (DeltaError, OSError) as error:
        reason = location.reason(error)
        check_readable(location, reason)
        if NO_ENTRY in reason:
            reason = "its log has no entry: it is being created, or it is no table yet; try again once a run has begun"
        raise OperatingError(f"Delta table {location} can't be opened: {reason}") from None


def check_readable(location: DeltaLocation, reason: str) -> None:
    """Raise `TableUnfit` if delta-rs' reason is a feature of the table, which it reads at no other time either."""
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


def features_of(protocol: ProtocolVersions) -> frozenset[str]:
    """The table features that a protocol names, of readers and of writers."""
    return frozenset([*(protocol.reader_features or []), *(protocol.writer_features or [])])


def refused(location: DeltaLocation, error: Exception) -> WriteRefused:
    """What a write that delta-rs has not carried out is to its callers. Not raised from it: it may hold secrets."""
    return WriteRefused(location.reason(error), is_conflict=isinstance(error, CommitFailedError))


def unreadable(location: DeltaLocation, error: Exception) -> OperatingError:
    """What a read that has failed is to the rest."""
    return OperatingError(f"Delta table {location} can't be read: {location.reason(error)}")


def data_files(table: DeltaTable) -> list[DataFile]:
    """The files that a table is made of."""
    actions = pa.table(table.get_add_actions())
    names, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    return [DataFile(name, size_bytes) for name, size_bytes in zip(names, sizes, strict=True)]


def takes_plain_files(table: DeltaTable) -> bool:
    """True if a writer of the table need only add and remove files: it has no invariants to check, for example."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    return (
        is_known_protocol(protocol.min_reader_version, protocol.min_writer_version, features_of(protocol))
        and str(configuration.get("delta.appendOnly", "false")).lower() == "false"
        and "delta.invariants" not in table.schema().to_json()
    )


def replaceable_files(table: DeltaTable) -> list[DataFile] | None:
    """Return the files of a table without partitions. None if only delta-rs may replace them."""
    if table.metadata().partition_columns or not takes_plain_files(table):
        return None
    files = data_files(table)
    return files if all(_PLAIN.fullmatch(file.name) for file in files) else None
