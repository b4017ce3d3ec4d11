"""The files of rows that a Delta table is made of, as its log has them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet

from state.delta.tables.staging import footer_statistics
from state.delta.tables.table import features_of, is_known_protocol

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
"""The name of a file that the log does not escape, and that lies in the table's own folder."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table: its name in the table's folder, and its size in bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is no part of its table yet."""

    name: str
    size_bytes: int
    footer: parquet.FileMetaData

    @property
    def rows(self) -> int:
        """How many it has."""
        return int(self.footer.num_rows)

    @property
    def statistics(self) -> str:
        """What its table's log has to say of it."""
        return footer_statistics(self.footer)

    @property
    def as_part(self) -> DataFile:
        """Once it is a part of it."""
        return DataFile(self.name, self.size_bytes)


def data_files(table: DeltaTable) -> list[DataFile]:
    """The files that a table is made of."""
    actions = pa.table(table.get_add_actions())
    names, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    return [DataFile(name, size_bytes) for name, size_bytes in zip(names, sizes, strict=True)]


def replaceable_files(table: DeltaTable) -> list[DataFile] | None:
    """The files that a table is made of; None: the table demands of its writers what `commit_replaced` does not do."""
    protocol, metadata = table.protocol(), table.metadata()
    features = features_of(protocol)
    if (
        not is_known_protocol(protocol.min_reader_version, protocol.min_writer_version, features)
        or metadata.partition_columns
        or str(metadata.configuration.get("delta.appendOnly", "false")).lower() != "false"
        or "delta.invariants" in table.schema().to_json()
    ):
        return None
    files = data_files(table)
    return files if all(_PLAIN.fullmatch(file.name) for file in files) else None
