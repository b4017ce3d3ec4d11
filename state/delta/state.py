"""`DeltaMapState`: a state in a Delta table, exactly once, fenced against coordinators that were taken over.

The fence is the table's app transaction `<topology>/<component>`: its version is the attempt id that wrote the table
last. Attempt ids only grow, every attempt writes every table, and a version is written only through the snapshot on
which a lower one was read. A writer that comes too late finds a higher version, or is refused: its snapshot is old.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from state.delta.log.log import check_no_entry_is_empty
from state.delta.new_properties import check_new_properties
from state.delta.open_table import OpenTable
from state.delta.opening import (
    TableRequest,
    check_owner,
    infer_columns,
    locate_in_catalog,
    open_or_create_table,
    open_reader,
    turn_into_log_layout,
)
from state.delta.parts import DeltaDurability, DeltaExamination, DeltaRewind, DeltaStaging, DeltaState, DeltaTasks
from state.delta.read.table_reader import TableReader
from state.delta.reading import DeltaReader
from state.delta.segments.log_layout import LAYOUTS, LogLayout, check_folder
from state.delta.tables.sql import DIALECTS
from state.delta.tables.table import DeltaLocation
from state.delta.write.engine_commits import settle_columns
from state.fence import WRITE_TRIES, TableWrite, WriteRefused
from transactional.core.ports import StateKind
from transactional.core.ports.state_parts import StateParts, TableMaintenance
from transactional.model.attempt import AttemptId, TxId
from transactional.model.durations import Duration
from transactional.model.errors import ConfigError, OperatingError
from transactional.model.schema import Schema

_log = logging.getLogger(__name__)
_NO_MAINTENANCE = TableMaintenance()


class DeltaMapState(DeltaState):
    """Key → values in a Delta table: one row per key, with the transaction that wrote it and what was there before.

    `table` is a path or URI, or `catalog_table(name)`. `key` is a name, several names, or a DDL string with types
    (`carrier string`); names alone take their types from the input. () is a state of one row; it is omitted if an
    update names it with `group_by`. `values` is a DDL string; it is left out when the state is updated by `.count()`,
    `.sum(…)` and so on. `columns` renames `txid`, `prev_txid`, `prev_<value>` and `deleted`.
    With `deletes` keys can be deleted: the table has a column more.
    With `expires`, the name of a timestamp column of key or values, and `after`, an age like `"30 days"`, a row goes
    once that column is so much before the time at which a batch was planned.
    `layout` is `merge` (one row per key, written again when the key changes), `log` (each transaction adds rows, which
    are combined on reading and compacted now and then), a `LogLayout`, or `auto`: `merge`, or what the table has.
    `storage_options` are delta-rs' own; `properties` are Delta table properties for the table's creation, those
    that all readers and writers cope with: `transactional.logCommits` is how many Delta commits its log keeps (500).

    Raises `ConfigError` for columns and storages that can't hold a state.
    """

    def __init__(
        self,
        table: str | Path | DeltaLocation,
        key: str | Sequence[str] | None = None,
        values: str = "",
        *,
        kind: StateKind = StateKind.OPAQUE,
        layout: str | LogLayout = "auto",
        columns: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        deletes: bool = False,
        expires: str | None = None,
        after: Duration | None = None,
    ) -> None:
        self.location = DeltaLocation.parse(table, storage_options)
        name = repr(str(self.location))
        super().__init__(name, key, values, kind=kind, columns=columns, deletes=deletes, expires=expires, after=after)
        self._layout, self.log_layout = _checked_layout(layout, self.location)
        if self.log_layout is not None:
            check_folder((columns or {}).get("txid", "txid"), self.declared.table)
        self._properties = dict(properties or {})
        check_new_properties(self._properties, self.declared.table)
        self.resolved = self.location
        self._cached_parts: StateParts | None = None

    @property
    def parts(self) -> StateParts:
        """The parts of the state, which act on its table. They are made again once another table is open."""
        maintenance = _NO_MAINTENANCE if self._opened is None else self._opened.upkeep
        if self._cached_parts is None or self._cached_parts.maintenance is not maintenance:
            self._cached_parts = replace(
                super().parts,
                durability=DeltaDurability(self),
                tasks=DeltaTasks(self),
                staging=DeltaStaging(self),
                examination=DeltaExamination(self),
                rewind=DeltaRewind(self),
                maintenance=maintenance,
            )
        return self._cached_parts

    def identity(self) -> Mapping[str, str]:
        """Return location, key, values and kind, which the fingerprint of a topology has."""
        return self.declared.identity(delta=str(self.location))

    def load_table(self) -> OpenTable:
        """Create the table, or check the existing one, whose location in a catalog is looked up.

        Raises `SchemaMismatch` for a table of another shape, `StoreMismatch` for one of another owner,
        `ConfigError` when Spark is needed and not set up.
        """
        if self.location.is_catalog_name:
            self.resolved = locate_in_catalog(replace(self._request, location=self.location))
            check_no_entry_is_empty(self.resolved)

        def turn(write: TableWrite) -> OpenTable:
            merged = self.open_table
            self._opened = turn_into_log_layout(
                self._request, merged, merged.version(), TxId(write.attempt.txid - 1), write.combine
            )
            return self._opened

        table = open_or_create_table(self._request, turn)
        if self.is_durable:
            table.loaded.keep_durable()
        check_owner(table.loaded)
        return table

    def all_rows(self, committed_txid: TxId | None) -> pa.Table:
        """Return the rows of the newest version. Types that are not declared are those of the table."""
        table = self._reading()
        return table.unexpired_rows(None if committed_txid is None else TxId(committed_txid + 1))

    def view(self, source: str, *, dialect: str = "spark", committed_txid: TxId | None = None) -> str:
        """The query of a view with one row per key, key and value columns, in SQL of `spark` or `datafusion`.

        `source` is the table as the query is to name it, for example "delta.`/tables/words`". The state need not be
        open. `committed_txid` is as in `read`. The text of a log stays right while the table is written and compacted;
        where rows expire, it leaves out those that have by now.
        Raises `ConfigError` for another dialect, `OperatingError` when the table can't be read.
        """
        if dialect not in DIALECTS:
            raise ConfigError(f"dialect {dialect!r} is not known; there are {', '.join(DIALECTS)}")
        end_txid = None if committed_txid is None else TxId(committed_txid + 1)
        names, table = DIALECTS[dialect], self._reading()
        stored = Schema((*table.columns.key, *table.columns.values))
        return self.declared.computed.select(table.make_view_query(end_txid, names, source), stored, names.name)

    def reader(self, owner: str) -> DeltaReader:
        """A reader of the table of `<topology>/<component>` (see the port)."""
        return DeltaReader(self.resolved, owner, lambda: self._reading(owner))

    def _reading(self, owner: str | None = None) -> TableReader:
        """Open the table for reading. The writer's open table is not used, since a reader would move it on."""
        declared = self.declared
        is_known = declared.are_complete
        columns = declared.columns if is_known else infer_columns(self.resolved, declared.key_names, declared.names)
        return open_reader(self.resolved, self.owner if owner is None else owner, columns)

    def compact(self) -> None:
        """Compact a table in the log layout: all but its newest transaction becomes one row per key.

        Call it between transactions. A table in the merge layout is not changed. Raises `OperatingError` if it fails.
        """

        def compact(version: AttemptId) -> None:
            self.open_table.upkeep.compact(self._fence.txid_at(version))

        _change_table(self, "could not be compacted", compact)

    def fence(self, attempt_id: AttemptId) -> None:
        """Raise the table's version (see the port).

        A new leader builds on the stored rows. So it raises `StoreMismatch` if another program has changed rows since
        the topology's last Delta commit.
        """
        self.open_table.loaded.check_unchanged()
        super().fence(attempt_id)
        history_names = {*self.declared.columns.prev.values()}
        if added := [name for name in self.open_table.loaded.missing_columns.names if name not in history_names]:
            _log.warning(
                "%s: columns %s added; the existing rows have NULL in them", self.declared.table, ", ".join(added)
            )

        def add_columns(version: AttemptId) -> None:
            self._fence.check(version, attempt_id)
            settle_columns(self.open_table.loaded)

        _change_table(self, "could not be given its new columns", add_columns)

    @property
    def _request(self) -> TableRequest:
        return TableRequest(
            self.resolved,
            self.declared.table,
            self.owner,
            self.declared.columns,
            self._layout,
            self.log_layout,
            properties=self._properties,
            store_id=self.store_id,
        )


def _change_table(state: DeltaMapState, failure: str, work: Callable[[AttemptId], None]) -> None:
    """Change a table that has a version, and try again after conflicts with other writers. Raises
    `OperatingError`."""
    for attempt_number in range(1, WRITE_TRIES + 1):
        if (version := state.version()) is None:
            return
        try:
            work(version)
        except WriteRefused as error:
            if attempt_number == WRITE_TRIES or not error.is_conflict:
                raise OperatingError(f"Delta table {state.resolved} {failure}: {error}") from None
        else:
            return


def _checked_layout(layout: str | LogLayout, location: DeltaLocation) -> tuple[str, LogLayout | None]:
    """Return the name of a layout, and its settings if it is the log layout. Raises `ConfigError`."""
    if isinstance(layout, LogLayout):
        return "log", layout
    if layout not in LAYOUTS:
        raise ConfigError(
            f"layout {layout!r} of state {location} is not known; there are {', '.join(LAYOUTS)}, and LogLayout(…)"
        )
    return layout, LogLayout() if layout == "log" else None
