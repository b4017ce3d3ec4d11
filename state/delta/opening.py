"""Opening the table of a state, or creating it, in the layout that it has or is to have."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from state.base import StateColumns
from state.delta.delta_rs import DeltaHandle
from state.delta.loading import create_table, is_there, load_table
from state.delta.log import LogHandle
from state.delta.log_table import LogColumns, LogLayout
from state.delta.table import DeltaLocation
from transactional.arrow import declared_schema
from transactional.errors import OperatingError, SchemaMismatch
from transactional.schema import Schema
from transactional.torn_log import set_aside, torn_files

_log = logging.getLogger(__name__)


def open_table(
    location: DeltaLocation,
    owner: str,
    columns: StateColumns,
    properties: Mapping[str, str],
    layout: str | LogLayout,
) -> DeltaHandle:
    """Open the table, or create it, in its layout. Raises `SchemaMismatch` for one of another shape."""
    stored = is_log(location, columns)
    if stored and layout == "merge":
        raise SchemaMismatch(f"Delta table {location} has the log layout, asked for is layout='merge'; use 'auto'")
    if stored or (stored is None and isinstance(layout, LogLayout)):
        log = layout if isinstance(layout, LogLayout) else LogLayout()
        return _open_log(location, owner, columns, properties, log)
    return DeltaHandle.open(location, owner, columns, properties)


def mend_torn_log(location: DeltaLocation) -> None:
    """Set aside what a power cut has left half written of a table's log: else nobody could open it.

    Only who is about to write does so; what was committed with durability is never among it. What else is missing then
    shows when the table's version is held against the store's. Raises `OperatingError`.
    """
    if location.is_catalog_name or location.scheme != "file":
        return
    try:
        torn = torn_files(Path(location.uri))
        set_aside(torn)
    except OSError as error:
        raise OperatingError(f"Delta table {location} can't be opened: {location.reason(error)}") from error
    for each in torn:
        _log.warning("Delta table %s: set aside %s, which a power cut has torn: %s", location, each.path, each.why)


def reading_handle(location: DeltaLocation, owner: str, columns: StateColumns) -> DeltaHandle:
    """A handle for a state that is only read. Raises `OperatingError` where there is no table."""
    kind = LogHandle if is_log(location, columns) else DeltaHandle
    return kind(location, owner, columns)


def columns_of(location: DeltaLocation, key: Sequence[str], names: Mapping[str, str]) -> StateColumns:
    """The columns of a state whose types were left out, as its table has them. `names` are those of the history.

    Raises `SchemaMismatch` when the table lacks a column of the key, `OperatingError` where there is no table.
    """
    table = load_table(location)
    found = declared_schema(pa.schema(table.schema()))
    if missing := [name for name in key if name not in found.names]:
        raise SchemaMismatch(f"Delta table {location} has no column {', '.join(missing)}; it has '{found}'")
    given = StateColumns(Schema(()), Schema(()), names)
    others = [field for field in found if field.name not in (*key, given.txid, given.prev_txid)]
    is_merged = not table.metadata().partition_columns
    history = {given.prev(field.name) for field in others} if is_merged else set()
    return StateColumns(found.select(key), Schema(tuple(f for f in others if f.name not in history)), names)


def _open_log(
    location: DeltaLocation, owner: str, columns: StateColumns, properties: Mapping[str, str], layout: LogLayout
) -> LogHandle:
    """Create the table where there is none. Raises `SchemaMismatch` when the one that is there has another shape."""
    if not is_there(location):
        log_columns = LogColumns(columns.key, columns.values, columns.names)
        create_table(location, log_columns, properties, partition_by=[columns.txid])
    handle = LogHandle(location, owner, columns, layout)
    handle.check()
    return handle


def is_log(location: DeltaLocation, columns: StateColumns) -> bool | None:
    """Whether a table has the log layout; None when there is no table. Raises `OperatingError` when nobody can tell."""
    if not is_there(location):
        return None
    return load_table(location).metadata().partition_columns == [columns.txid]
