"""Opening the table of a state, or creating it, in the layout that it has or is to have; and whose it is.

A table belongs to `<topology>/<component>`, by a property from its creation on. App transactions show that only once
something was written: until then two topologies would both take a table for theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
from deltalake.exceptions import DeltaError

from state.delta.log.log import check_entries, is_there
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
    check_layout_version,
    load_table,
    new_table_properties,
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
    """The table that a state is to have. `compaction` is the layout, if it is the log layout."""

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
        return LoadedTable(self.location, self.owner, segment_columns(self.columns) if as_segments else self.columns)

    def open_segments(self) -> OpenTable:
        """Open the existing table in the log layout."""
        return open_segments(self.load(as_segments=True), self.state, self.compaction)


def open_table(request: TableRequest, turn: Turn | None = None) -> OpenTable:
    """Open the table, or create it, in its layout. Raises `SchemaMismatch` for one of another shape.

    One in the merge layout that is to have the log layout is turned by `turn`, with its first new transaction.
    """
    stored = is_log(request.location, request.columns)
    if stored and request.layout == "merge":
        raise SchemaMismatch(
            f"Delta table {request.location} has the log layout, but layout='merge' was requested; use 'auto'"
        )
    if stored is None:
        create(request)
    if stored or (stored is None and request.compaction is not None):
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
    """Log that a large table is better in the log layout."""
    if (rows := table.row_count()) > MERGED_ROWS_TARGET:
        _log.warning(
            "state %s has %d rows, and a merge rewrites every file that has a key of the batch; layout='log' "
            "writes what changes only, and shows readers one row per key through a view",
            *(state, rows),
        )


def look_up(request: TableRequest) -> DeltaLocation:
    """Look up the location of a table in Spark's catalog, in which it is created if it is not there."""
    from state.delta.catalog import resolve  # loaded with Spark alone

    columns, partition_by = shape_of(request)
    properties = with_owner({**DEFAULT_PROPERTIES, **request.properties}, request.owner, request.store_id)
    return resolve(request.location, columns, new_table_properties(columns, properties), partition_by)


def create(request: TableRequest) -> None:
    """Create the table; of two creators at once, both have the same one. Raises `SchemaMismatch`."""
    columns, partition_by = shape_of(request)
    properties = new_table_properties(request.columns, with_owner(request.properties, request.owner, request.store_id))
    create_table(request.location, columns, properties, partition_by=[partition_by] if partition_by else [])


def shape_of(request: TableRequest) -> tuple[StateColumns, str]:
    """The columns of a new table, and the one by which it is partitioned."""
    return (
        (segment_columns(request.columns), request.columns.txid)
        if request.compaction is not None
        else (request.columns, "")
    )


def turned(
    request: TableRequest, merged: OpenTable, version: AttemptId | None, newest: TxId, combine: Mapping[str, str]
) -> OpenTable:
    """Turn a table in the merge layout, as of a committed transaction, into the log layout. Raises `WriteRefused`."""
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


def open_to_read(location: DeltaLocation, owner: str, columns: StateColumns) -> TableReader:
    """Open the table of a state for a reader, which never writes to it.

    The table's own properties say whether keys are deleted or expire. The owner is not checked: `owner` says whose
    attempts to read, and the table's own is taken if it is empty.

    Raises `OperatingError` where there is no table, `StoreMismatch` for one whose log has an entry without a byte,
    `SchemaMismatch` for one of another version of the layout.
    """
    check_entries(location)
    snapshot = load_table(location)
    metadata = snapshot.metadata()
    properties = metadata.configuration
    check_layout_version(properties, str(location))
    expires = properties.get(EXPIRES_PROPERTY)
    columns = replace(columns, deletes=_deletes(properties), expires=None if expires is None else str(expires))
    owner = owner or str(properties.get(OWNER_PROPERTY, ""))
    if metadata.partition_columns == [columns.txid]:
        loaded = LoadedTable(location, owner, segment_columns(columns), snapshot)
        loaded.follows = True
        loaded.watch_for_replacement()
        return SegmentReader(loaded)
    loaded = LoadedTable(location, owner, columns, snapshot)
    loaded.watch_for_replacement()
    return MergedReader(loaded, Footers(loaded.storage, columns))


def segment_columns(columns: StateColumns) -> SegmentColumns:
    """The same columns in the log layout."""
    return SegmentColumns(columns.key, columns.values, columns.names, columns.deletes, columns.expires)


def mend_torn_log(location: DeltaLocation, owner: str, check: Callable[[TornFiles], None]) -> None:
    """Set aside what a power cut has left half written of a table's log: otherwise nobody could open it.

    Only a process that is about to write does so, and only if `check` raises nothing. Raises `OperatingError`, and
    `StoreMismatch` if another entry that is read has no byte: a power cut leaves none before the newest.
    """
    if location.is_catalog_name:
        return
    if location.scheme == "file":
        _set_torn_aside(location, owner, check)
    check_entries(location)


def _set_torn_aside(location: DeltaLocation, owner: str, check: Callable[[TornFiles], None]) -> None:
    try:
        if torn := find_torn_files(Path(location.uri)):
            check(describe_without(torn, Path(location.uri), owner))
        set_aside(torn)
    except (OSError, DeltaError) as error:
        raise OperatingError(f"Delta table {location} can't be opened: {location.describe_error(error)}") from error
    for each in torn:
        _log.warning("Delta table %s: set aside %s, which a power cut has torn: %s", location, each.path, each.reason)


def columns_of(location: DeltaLocation, key: Sequence[str], names: Mapping[str, str]) -> StateColumns:
    """The columns of a state whose types were left out, as its table has them. `names` are those of the history.

    Raises `SchemaMismatch` when the table lacks a column of the key, `OperatingError` where there is no table.
    """
    table = load_table(location)
    found = declared_schema(pa.schema(table.schema()), f"Delta table {location}")
    if missing := [name for name in key if name not in found.names]:
        raise SchemaMismatch(f"Delta table {location} has no column {', '.join(missing)}; it has '{found}'")
    properties = table.metadata().configuration
    given = StateColumns(Schema(()), Schema(()), names, _deletes(properties))
    own = {given.txid, given.prev_txid, *([given.deleted] if given.deletes else [])}
    if EXPIRES_PROPERTY in properties:
        own.add(names.get("horizon", "horizon"))
    others = [field for field in found if field.name not in (*key, *own)]
    if not table.metadata().partition_columns:
        history = {*replace(given, values=Schema(tuple(others))).prev.values()}
        others = [field for field in others if field.name not in history]
    return StateColumns(found.select(key), Schema(tuple(others)), names, given.deletes)


def _deletes(properties: Mapping[str, object]) -> bool:
    """Whether keys of a table may be deleted."""
    return DELETES_FEATURE in parse_features({name: str(value) for name, value in properties.items()})


def is_log(location: DeltaLocation, columns: StateColumns) -> bool | None:
    """Whether a table has the log layout; None when there is no table. Raises `OperatingError` when unknown."""
    if not is_there(location):
        return None
    return load_table(location).metadata().partition_columns == [columns.txid]


# --- whose it is --------------------------------------------------------------------------------------------------


def with_owner(properties: Mapping[str, str], owner: str, store_id: str | None) -> dict[str, str]:
    """The properties of a table that is created for an owner, and for a store."""
    return {**properties, OWNER_PROPERTY: owner, **({} if store_id is None else {STORE_PROPERTY: store_id})}


def check_owner(table: LoadedTable) -> None:
    """Raise `StoreMismatch` for a table that is not its opener's."""
    stored = table.properties.get(OWNER_PROPERTY)
    if stored == table.owner:
        return
    if stored is None:
        raise StoreMismatch(
            f"Delta table {table.location} does not say whose it is, and {table.owner} has opened it: its property "
            f"{OWNER_PROPERTY} was taken away; set it to the table's owner, or give the state a table of another name"
        )
    is_empty = not _newest_txid(table)
    renamed = "it can be deleted, since it has no rows" if is_empty else "keep the old name, or start with a new table"
    raise StoreMismatch(
        f"Delta table {table.location} is the table of {stored}, and {table.owner} has opened it; give each "
        f"committer of each topology a table of its own. If {stored} was renamed: {renamed}"
    )


def _newest_txid(table: LoadedTable) -> int:
    """Return the highest txid of a row, or 0 without rows."""
    query = f"SELECT max({DATA_FUSION.name(table.columns.txid)}) AS txid FROM t"
    try:
        rows = table.query(query).read_all()
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise unreadable_table_error(table.location, error) from None
    return rows.column(0)[0].as_py() or 0
