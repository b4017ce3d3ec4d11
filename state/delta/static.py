"""Looks up rows in a Delta table that others write, at the version that a batch has recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from state.delta.tables.lookup import with_keys
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.table import DeltaLocation, load_table, raise_if_unsupported
from state.rows.columns import check_key_types
from transactional.model.arrow import arrow_schema, spark_type
from transactional.model.errors import BatchLost, ConfigError, OperatingError, TableUnfit
from transactional.model.facts import StaticVersion
from transactional.model.reading import StaticTable
from transactional.model.schema import Field, Schema

CACHED_ROWS_MAX = 1_000_000
"""Largest number of rows of a table version that a process caches."""
CACHED_VERSIONS = 4


class StaticDeltaTable(StaticTable):
    """A Delta table that others write, for `TridentTopology.static_state`.

    `key` has the columns to look rows up by, `values` those that are appended, with their types, as in
    `StaticDeltaTable("tables/users", key="id string", values="name string, country string")`. `storage_options` are
    delta-rs' own. A version is read as long as the table keeps its files: `delta.deletedFileRetentionDuration`.
    """

    def __init__(
        self,
        table: str | Path | DeltaLocation,
        key: str,
        values: str,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._location = DeltaLocation.parse(table, storage_options)
        if self._location.is_catalog_name:
            raise ConfigError(f"a static table is read without Spark, which alone knows {table}; give its path or URI")
        self._key, self._values = Schema.parse(key), Schema.parse(values)
        if not self._key or not self._values:
            raise ConfigError(f"the static table {self._location} needs columns of a key, and values to look up")
        check_key_types(self._key, f"the static table {self._location}")

    def __repr__(self) -> str:
        return f"StaticDeltaTable({str(self._location)!r}, key={str(self._key)!r}, values={str(self._values)!r})"

    @property
    def key(self) -> Schema:
        """The columns to look rows up by."""
        return self._key

    @property
    def values(self) -> Schema:
        """The columns that are looked up."""
        return self._values

    @property
    def table(self) -> str:
        """The path or URI of the table, for messages."""
        return str(self._location)

    def newest(self) -> str:
        """Return the table's newest Delta version, with the id that the table has in it.

        Raises `OperatingError`, and `TableUnfit` if the table lacks columns.
        """
        table = load_table(self._location)
        schema = pa.schema(table.schema())
        declared = Schema((*self._key, *self._values))
        types = {column.name: self._declared_type(column) for column in schema if column.name in declared.names}
        if mismatches := [str(field) for field in declared if types.get(field.name) != field.type]:
            columns = Schema(tuple(Field(name, type_) for name, type_ in types.items()))
            more_names = ", ".join(name for name in schema.names if name not in types)
            raise TableUnfit(
                f"the static table {self.table} has the columns '{columns}'{more_names and f', and {more_names}'}; it "
                f"is declared with {', '.join(mismatches)}: declare it as the table is, or take another table"
            )
        return f"{table.metadata().id}@{table.version()}"

    def _declared_type(self, column: pa.Field) -> str:
        try:
            return spark_type(column.type)
        except ConfigError:
            type_name = "void" if pa.types.is_null(column.type) else column.type
            raise TableUnfit(
                f"column {column.name!r} of the static table {self.table} is {type_name}, whose values can't be looked "
                "up"
            ) from None

    def lookup(self, version: StaticVersion, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys in one version.

        Raises `OperatingError`, and `BatchLost` if the table was dropped and created again.
        """
        options = tuple(sorted(self._location.storage_options.items()))
        columns = Schema((*self._key, *self._values))
        try:
            cached_rows = _read_cached_rows(self._location.name, options, columns, version)
            parts = (
                [cached_rows]
                if cached_rows is not None
                else _read_batches(_load_version(self._location.name, options, version), columns)
            )
            return pa.concat_tables([arrow_schema(columns).empty_table(), *(with_keys(part, keys) for part in parts)])
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise_if_unsupported(self._location, self._location.describe_error(error))
            raise OperatingError(
                f"the static table {self.table} can't be read at version {version}, which the batch has recorded: "
                f"{self._location.describe_error(error).rstrip('.')}. If a vacuum or the log's clean-up has deleted "
                "it, restore its files; and let the table keep them for longer than a topology may stand still "
                "(delta.deletedFileRetentionDuration, delta.logRetentionDuration)"
            ) from None


def _load_version(name: str, options: Sequence[tuple[str, str]], version: StaticVersion) -> DeltaTable:
    """Load the table at a version. Raises `DeltaError`, and `BatchLost` if it was made again since."""
    location, (recorded_id, number) = DeltaLocation(name, dict(options)), _split_version(version)
    table = DeltaTable(location.uri, version=number, storage_options=dict(options) or None)
    if (loaded_id := str(table.metadata().id)) != recorded_id:
        raise BatchLost(
            f"the static table {location} was dropped and made again: the batch has recorded version {number} of the "
            f"table with the id {recorded_id}, and now that is one of the table with the id {loaded_id}. Restore the "
            "table that was dropped until the batch is committed; or `transactional rewind` the topology to the "
            "transaction that is committed, after which the batch is planned again"
        )
    return table


def _split_version(version: StaticVersion) -> tuple[str, int]:
    """Return the id of the table and its Delta version. Raises `OperatingError`."""
    table_id, _, number = version.rpartition("@")
    if not table_id or not number.isdecimal():
        raise OperatingError(f"{version!r} is no version of a static Delta table, which is <id>@<number>")
    return table_id, int(number)


def _read_batches(table: DeltaTable, columns: Schema) -> Iterator[pa.Table]:
    names, schema = ", ".join(map(DATA_FUSION.name, columns.names)), arrow_schema(columns)
    stream: Any = QueryBuilder().register("t", table).execute(f"SELECT {names} FROM t")
    for batch in pa.RecordBatchReader.from_stream(stream):
        yield pa.Table.from_batches([batch]).cast(schema)


@lru_cache(maxsize=CACHED_VERSIONS)
def _read_cached_rows(name: str, options: Sequence[tuple[str, str]], columns: Schema, version: str) -> pa.Table | None:
    """Return all rows of a version, which never change, or None if there are too many to be cached."""
    table = _load_version(name, options, version)
    if table.count() > CACHED_ROWS_MAX:
        return None
    return pa.concat_tables([arrow_schema(columns).empty_table(), *_read_batches(table, columns)])
