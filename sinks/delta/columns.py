"""The columns of a sink's table: those of the stream, of partition expressions, and the transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sinks.delta.append_log import TableSnapshot
from sinks.delta.partitioning import PartitionColumn
from transactional.model.arrow import arrow_schema, spark_type
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.schema import Schema


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns that a sink writes. `txid` is the name of the column with the transaction."""

    fields: Schema
    partitions: tuple[PartitionColumn, ...]
    txid: str

    @property
    def table_schema(self) -> pa.Schema:
        """The columns of a new table."""
        derived = [column.derived_field for column in self.partitions if column.derived_field is not None]
        return pa.schema([*arrow_schema(self.fields), *derived, pa.field(self.txid, pa.int64())])

    @property
    def partition_names(self) -> tuple[str, ...]:
        """The names of the partition columns, in their order."""
        return tuple(column.name for column in self.partitions)

    def check(self, used_by: str) -> None:
        """Raise `ConfigError` for a stream that can't be written."""
        for column in self.partitions:
            column.check_input(self.fields, used_by=used_by)
        names = [*self.fields.names, self.txid]
        if (twice := _same_letters(names)) is not None:
            advice = "; choose another name: DeltaSink(…, txid='…')" if twice == self.txid.lower() else ""
            raise ConfigError(f"{used_by}: two columns of the table would have the name {twice!r}{advice}")
        if set(self.fields.names) <= set(self.partition_names):
            raise ConfigError(f"{used_by}: all fields are partition columns, which files do not have")

    def check_table(self, snapshot: TableSnapshot, table: str) -> list[pa.Field]:
        """Return the columns that the table has to gain. Raises `SchemaMismatch` if the table can't have these rows."""
        if snapshot.partition_columns != self.partition_names:
            raise SchemaMismatch(
                f"Delta table {table} is partitioned by {_listed(snapshot.partition_columns)}, its sink by "
                f"{_listed(self.partition_names)}: partitions can't change; use another table"
            )
        table_columns = {column.name: column for column in snapshot.columns}
        lower_names = {name.lower(): name for name in table_columns}
        for column in self.table_schema:
            name = lower_names.get(column.name.lower(), column.name)
            if name != column.name:
                raise SchemaMismatch(f"Delta table {table} has a column {name!r}, its sink one named {column.name!r}")
            if column.name not in table_columns:
                continue
            stored_type, new_type = spark_type(table_columns[name].type), spark_type(column.type)
            if stored_type != new_type:
                raise SchemaMismatch(
                    f"Delta table {table} has the column {name!r} as {stored_type}, its sink as {new_type}: a column "
                    "keeps its type; give the field another name, or use another table"
                )
        for name, column in table_columns.items():
            if name != self.txid and _is_required(column):
                problem = "may have NULL there" if name in self.table_schema.names else "lacks it"
                raise SchemaMismatch(
                    f"Delta table {table} has a column {name!r} that is NOT NULL or has such a field, and its stream "
                    f"{problem}: ALTER TABLE … ALTER COLUMN … DROP NOT NULL, or use another table"
                )
        return [column for column in self.table_schema if column.name not in table_columns]


def _is_required(column: pa.Field) -> bool:
    """True if a table refuses NULL in a column or within it. Keys of maps are never NULL."""
    nested = column.type
    if pa.types.is_map(nested):
        return not column.nullable or _is_required(nested.item_field)
    return not column.nullable or any(_is_required(nested.field(n)) for n in range(nested.num_fields))


def _same_letters(names: Iterable[str]) -> str | None:
    """The first name, in lower case, that several names have; to Spark and Delta they are one name."""
    return next((name for name, count in Counter(map(str.lower, names)).items() if count > 1), None)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
