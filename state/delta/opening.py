"""Opens the table of a state, or creates it in its layout, and checks its owner.

The layout follows from the table: the log layout is partitioned by txid, the merge layout is not. A property names the
owner, `<topology>/<component>`, from the table's creation on. App transactions name it only after the first write:
until then two topologies would both use the table. A reader opens a table with `open_reader`, which writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
from deltalake.exceptions import DeltaError

from state.delta.log.log import check_no_entry_is_empty, table_exists
from state.delta.log.torn import describe_without, find_torn_files, set_aside
from state.delta.open_table import OpenTable, Turn, open_merged, open_segments
from state.delta.read.merged_reader import MergedReader
from state.delta.read.segment_reader import SegmentReader
from state.delta.read.table_reader import TableReader
from state.delta.segments.log_layout import LogLayout, SegmentColumns
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.table import (
    DEFAULT_PROPERTIES,
    DeltaLocation,
    build_table_properties,
    check_layout_version,
    load_table,
    parse_features,
    unreadable_table_error,
)
from state.delta.write.creating import create_table
from state.delta.write.loaded_table import LoadedTable
from state.delta.write.segments import LogWriter
from state.delta.write.touched_files import Footers
from state.fence import WriteRefused
from state.rows.columns import StateColumns
from transactional.core.ports import TornFiles
from transactional.model.arrow import declared_schema
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import OperatingError, SchemaMismatch, StoreMismatch
from transactional.model.names import DELETES_FEATURE, EXPIRES_PROPERTY, OWNER_PROPERTY, STORE_PROPERTY
from transactional.model.schema import Schema

_log = logging.getLogger(__name__)
MERGED_ROWS_TARGET = 1_000_000
"""Number of rows above which the log layout is recommended."""


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The declaration of a state's table. `compaction` has the settings of the log layout; None is the merge layout."""

    location: DeltaLocation
    state: str
    owner: str
    columns: StateColumns
    layout: str = "auto"
    compaction: LogLayout | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    store_id: str | None = None

    def load(self, *, as_segments: bool) -> LoadedTable:
        """Load the newest version of the existing table."""
        return LoadedTable(self.location, self.owner, to_segment_columns(self.columns) if as_segments else self.columns)

    def open_segments(self) -> OpenTable:
        """Open the existing table in the log layout."""
        return open_segments(self.load(as_segments=True), self.state, self.compaction)


def open_or_create_table(request: TableRequest, turn: Turn | None = None) -> OpenTable:
    """Open the table in its layout, or create it. Raises `SchemaMismatch` if its columns or layout are not the state's.

    If the state declares the log layout and the table has the merge layout, `turn` turns it with the next transaction.
    """
    is_log = has_log_layout(request.location, request.columns)
    if is_log and request.layout == "merge":
        raise SchemaMismatch(
            f"Delta table {request.location} has the log layout, but layout='merge' was requested; use 'auto'"
        )
    if is_log is None:
        create_requested_table(request)
    if is_log or (is_log is None and request.compaction is not None):
        table = request.open_segments()
        table.loaded.check()
        return table
    turn = turn if request.compaction is not None else None
    table = open_merged(request.load(as_segments=False), request.state, turn)
    table.loaded.check()
    if request.layout == "auto":
        _warn_when_large(table.loaded, request.state)
    return table


def _warn_when_large(table: LoadedTable, state: str) -> None:
    """Log a warning that recommends the log layout, if the table has more than `MERGED_ROWS_TARGET` rows."""
    if (rows := table.row_count()) > MERGED_ROWS_TARGET:
        _log.warning(
            "state %s has %d rows, and a merge rewrites every file that has a key of the batch; layout='log' "
            "writes what changes only, and shows readers one row per key through a view",
            *(state, rows),
        )


def locate_in_catalog(request: TableRequest) -> DeltaLocation:
    """Return the location of a table of Spark's catalog, which is created if the catalog has none of this name."""
    from state.delta.catalog import locate_or_create  # loaded with Spark alone

    columns, partition_by = choose_columns_and_partition(request)
    properties = add_owner({**DEFAULT_PROPERTIES, **request.properties}, request.owner, request.store_id)
    return locate_or_create(request.location, columns, build_table_properties(columns, properties), partition_by)


def create_requested_table(request: TableRequest) -> None:
    """Create the table. If another process creates it at the same time, both use one table. Raises `SchemaMismatch`."""
    columns, partition_by = choose_columns_and_partition(request)
    properties = build_table_properties(request.columns, add_owner(request.properties, request.owner, request.store_id))
    create_table(request.location, columns, properties, partition_by=[partition_by] if partition_by else [])


def choose_columns_and_partition(request: TableRequest) -> tuple[StateColumns, str]:
    """Return the columns of a new table, and the name of its partition column, which is empty in the merge layout."""
    return (
        (to_segment_columns(request.columns), request.columns.txid)
        if request.compaction is not None
        else (request.columns, "")
    )


def turn_into_log_layout(
    request: TableRequest, merged: OpenTable, version: AttemptId | None, newest: TxId, combine: Mapping[str, str]
) -> OpenTable:
    """Turn a table in the merge layout, at its `newest` committed transaction, into the log layout.

    `combine` has the aggregate function of each value column. Raises `WriteRefused` if the table was changed meanwhile.
    """
    table = request.open_segments()
    assert isinstance(table.writer, LogWriter)
    if merged.loaded.disk.is_kept:
        table.loaded.keep_durable()
    if table.loaded.delta_version != merged.loaded.delta_version:
        raise WriteRefused("the table has moved since its version was read", is_conflict=True)
    # Before the rows are segments: whoever reads them has to know how they are combined.
    table.writer.settle_combine(combine)
    table.writer.adopt_merged(version, newest)
    table.upkeep.retained = merged.upkeep.retained
    return table


def open_reader(location: DeltaLocation, owner: str, columns: StateColumns) -> TableReader:
    """Open the table of a state for a reader, which never writes to it.

    The table's properties decide whether keys are deleted or expire. The attempts of `owner` are read; if it is empty,
    those of the table's owner. The owner is not checked.

    Raises `OperatingError` if there is no table, `StoreMismatch` if an entry of its log has no byte, and
    `SchemaMismatch` if it has another version of the layout.
    """
    check_no_entry_is_empty(location)
    snapshot = load_table(location)
    metadata = snapshot.metadata()
    properties = metadata.configuration
    check_layout_version(properties, str(location))
    expires = properties.get(EXPIRES_PROPERTY)
    columns = replace(columns, deletes=_has_deletes(properties), expires=None if expires is None else str(expires))
    owner = owner or str(properties.get(OWNER_PROPERTY, ""))
    if metadata.partition_columns == [columns.txid]:
        loaded = LoadedTable(location, owner, to_segment_columns(columns), snapshot)
        loaded.follows = True
        loaded.watch_for_replacement()
        return SegmentReader(loaded)
    loaded = LoadedTable(location, owner, columns, snapshot)
    loaded.watch_for_replacement()
    return MergedReader(loaded, Footers(loaded.storage, columns))


def to_segment_columns(columns: StateColumns) -> SegmentColumns:
    """Return the same columns for a table in the log layout."""
    return SegmentColumns(columns.key, columns.values, columns.names, columns.deletes, columns.expires)


def set_torn_files_aside(location: DeltaLocation, owner: str, check: Callable[[TornFiles], None]) -> None:
    """Set aside the files of a table's log that a power cut has left half written. With them no engine opens the table.

    Only a process that is about to write does so, and only if `check` raises nothing. Raises `OperatingError`, and
    `StoreMismatch` if an entry before the newest has no byte, since a power cut leaves no such entry.
    """
    if location.is_catalog_name:
        return
    if location.scheme == "file":
        _set_aside_on_disk(location, owner, check)
    check_no_entry_is_empty(location)


def _set_aside_on_disk(location: DeltaLocation, owner: str, check: Callable[[TornFiles], None]) -> None:
    try:
        if torn := find_torn_files(Path(location.uri)):
            check(describe_without(torn, Path(location.uri), owner))
        set_aside(torn)
    except (OSError, DeltaError) as error:
        raise OperatingError(f"Delta table {location} can't be opened: {location.describe_error(error)}") from error
    for file in torn:
        _log.warning("Delta table %s: set aside %s, which a power cut has torn: %s", location, file.path, file.reason)


def infer_columns(location: DeltaLocation, key: Sequence[str], names: Mapping[str, str]) -> StateColumns:
    """Return the columns of a state that was declared without types, from its table.

    `names` are the names of the columns with the history of a row, such as its txid. Raises `SchemaMismatch` if the
    table lacks a column of the key, and `OperatingError` if there is no table.
    """
    table = load_table(location)
    schema = declared_schema(pa.schema(table.schema()), f"Delta table {location}")
    if missing := [name for name in key if name not in schema.names]:
        raise SchemaMismatch(f"Delta table {location} has no column {', '.join(missing)}; it has '{schema}'")
    properties = table.metadata().configuration
    columns = StateColumns(Schema(()), Schema(()), names, _has_deletes(properties))
    row_marks = {columns.txid, columns.prev_txid, *([columns.deleted] if columns.deletes else [])}
    if EXPIRES_PROPERTY in properties:
        row_marks.add(names.get("horizon", "horizon"))
    values = [field for field in schema if field.name not in (*key, *row_marks)]
    if not table.metadata().partition_columns:
        previous_values = {*replace(columns, values=Schema(tuple(values))).prev.values()}
        values = [field for field in values if field.name not in previous_values]
    return StateColumns(schema.select(key), Schema(tuple(values)), names, columns.deletes)


def _has_deletes(properties: Mapping[str, object]) -> bool:
    """True if a table with these properties holds a state whose keys can be deleted."""
    return DELETES_FEATURE in parse_features({name: str(text) for name, text in properties.items()})


def has_log_layout(location: DeltaLocation, columns: StateColumns) -> bool | None:
    """True if a table has the log layout, None if there is no table. Raises `OperatingError` if its storage fails."""
    if not table_exists(location):
        return None
    return load_table(location).metadata().partition_columns == [columns.txid]


# --- the owner of a table -----------------------------------------------------------------------------------------


def add_owner(properties: Mapping[str, str], owner: str, store_id: str | None) -> dict[str, str]:
    """Return the properties of a new table with its owner, and with the store that commits its transactions."""
    return {**properties, OWNER_PROPERTY: owner, **({} if store_id is None else {STORE_PROPERTY: store_id})}


def check_owner(table: LoadedTable) -> None:
    """Raise `StoreMismatch` if another component than `table.owner` owns the table, or its property was removed."""
    stored = table.properties.get(OWNER_PROPERTY)
    if stored == table.owner:
        return
    if stored is None:
        raise StoreMismatch(
            f"Delta table {table.location} does not say whose it is, and {table.owner} has opened it: its property "
            f"{OWNER_PROPERTY} was taken away; set it to the table's owner, or give the state a table of another name"
        )
    is_empty = not _read_newest_txid(table)
    renamed = "it can be deleted, since it has no rows" if is_empty else "keep the old name, or start with a new table"
    raise StoreMismatch(
        f"Delta table {table.location} is the table of {stored}, and {table.owner} has opened it; give each "
        f"committer of each topology a table of its own. If {stored} was renamed: {renamed}"
    )


def _read_newest_txid(table: LoadedTable) -> int:
    """Return the highest txid of a row, or 0 without rows."""
    query = f"SELECT max({DATA_FUSION.name(table.columns.txid)}) AS txid FROM t"
    try:
        rows = table.query(query).read_all()
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise unreadable_table_error(table.location, error) from None
    return rows.column(0)[0].as_py() or 0
