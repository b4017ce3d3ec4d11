"""Checks how each Delta commit has changed the rows, from the data files that still exist.

A transaction may set keys and store their previous values; a replay may also undo what a dead attempt did. Nothing else
may happen to a row: not without a transaction, and not to a part of one. Metadata could be wrong about this, so the
rows of the removed and of the added files are compared. A commit whose files were deleted can't be checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verifier.compactions import check_compactions, tuples
from verifier.evidence.delta_log import TableLog
from verifier.evidence.findings import Findings, Kind
from verifier.evidence.storage import Storage
from verifier.evidence.store import StoreHistory
from verifier.horizons import horizons_by_version, is_expired
from verifier.rows import RowColumns, format_values

ROWS_MAX = 2_000_000
"""The maximum number of rows read, of all Delta commits together."""

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row without its key, and whether it is a tombstone."""

    values: tuple[Any, ...]
    txid: int
    prev_txid: int | None
    previous: tuple[Any, ...]
    is_deleted: bool = False


def check_row_changes(
    component: str,
    storage: Storage,
    log: TableLog,
    history: StoreHistory,
    columns: RowColumns,
    *,
    commits_max: int,
    findings: Findings,
) -> None:
    """Check the newest Delta commits whose data files, old and new, all exist; at most `commits_max`."""
    if columns.is_log:
        check_compactions(component, storage, log, history, columns, commits_max=commits_max, findings=findings)
        return
    reader = _Reader(storage, columns)
    owner = f"{history.topology_id}/{component}"
    horizons = horizons_by_version(log, owner)
    attempts = {**history.txid_of, **history.fences_of(component)}
    changing = [commit for commit in log.commits if commit.added or commit.removed]
    checked = 0
    for commit in reversed(changing[-commits_max:] if commits_max else []):
        try:
            old_rows = reader.rows_by_key(commit.removed)
            new_rows = reader.rows_by_key(tuple(file.path for file in commit.added))
        except FileNotFoundError:
            break  # the files of older commits were deleted, too
        checked += 1
        attempt_id = commit.app_versions.get(owner)
        place = f"table of {component!r}, Delta version {commit.version}"
        if attempt_id is not None and commit.restored is not None:
            pass  # a rewind: `check_log` compares its files with those of the restored version
        elif attempt_id is not None and attempt_id in attempts:
            recorded = horizons.get(commit.version)
            horizon = recorded.previous if recorded is not None else None
            transaction = _Transaction(attempts[attempt_id], *_expiry_positions(columns), horizon)
            transaction.check_changes(place, old_rows, new_rows, findings)
        elif not commit.changes_data:
            _check_unchanged(place, old_rows, new_rows, findings)
        if reader.rows_read > ROWS_MAX:
            break
    if checked < len(changing):
        findings.note(f"table of {component!r}: row by row the last {checked} of {len(changing)} changes were checked")
    findings.add_checked("changes of rows", checked)


class _Reader:
    """Reads data files. The last eight are cached, as the files of one Delta commit are often removed by the next."""

    def __init__(self, storage: Storage, columns: RowColumns) -> None:
        self._storage, self._columns = storage, columns
        self._cache: dict[str, list[tuple[Key, Row]]] = {}
        self.rows_read = 0

    def rows_by_key(self, paths: tuple[str, ...]) -> dict[Key, Row]:
        """Return the rows of some files. Raises `FileNotFoundError`."""
        files = {path: self._cache.get(path) or self._read(path) for path in paths}
        self._cache = {**dict(list(self._cache.items())[-8:]), **files}
        return {key: row for rows in files.values() for key, row in rows}

    def _read(self, path: str) -> list[tuple[Key, Row]]:
        columns = self._columns
        table = self._storage.read_parquet(path, list(columns.names))
        self.rows_read += table.num_rows
        keys = tuples(table, columns.key)
        assert columns.prev_txid is not None
        values = tuples(table, columns.values)
        previous = tuples(table, tuple(columns.previous[name] for name in columns.values))
        txids, prev_txids = table.column(columns.txid).to_pylist(), table.column(columns.prev_txid).to_pylist()
        marks = [] if columns.deleted is None else table.column(columns.deleted).to_pylist()
        deleted = map(bool, marks or [False] * table.num_rows)
        return list(zip(keys, map(Row, values, txids, prev_txids, previous, deleted), strict=True))


@dataclass(frozen=True, slots=True)
class _Transaction:
    """A transaction, the positions of the expiry column in keys or in values, and the previous expiry horizon."""

    txid: int
    expiry_in_key: int | None
    expiry_in_values: int | None
    previous_horizon: int | None

    def check_changes(
        self, place: str, old_rows: Mapping[Key, Row], new_rows: Mapping[Key, Row], findings: Findings
    ) -> None:
        """Check what the transaction has made of each row."""
        for key in old_rows.keys() | new_rows.keys():
            violation = self.find_violation(key, old_rows.get(key), new_rows.get(key))
            if violation is not None:
                kind, expected = violation
                change = _format_change(old_rows.get(key), new_rows.get(key))
                findings.add(kind, f"{place}, transaction {self.txid}, key {format_values(key)}", expected, change)

    def find_violation(self, key: Key, old: Row | None, new: Row | None) -> tuple[Kind, str] | None:
        """Return what is wrong with a row. One that had expired for the previous transaction may count as no row."""
        violation = find_violation(self.txid, old, new)
        if violation is None or old is None or not self._had_expired(key, old):
            return violation
        return None if new is None else find_violation(self.txid, None, new)

    def _had_expired(self, key: Key, row: Row) -> bool:
        if self.expiry_in_key is not None:
            return is_expired(key[self.expiry_in_key], self.previous_horizon)
        if self.expiry_in_values is None or self.previous_horizon is None:
            return False
        is_own = row.txid == self.txid
        if is_own and row.prev_txid is None:
            return False
        values = row.previous if is_own else row.values
        return is_expired(values[self.expiry_in_values], self.previous_horizon)


def _expiry_positions(columns: RowColumns) -> tuple[int | None, int | None]:
    expires = columns.expires
    if expires in columns.key:
        return columns.key.index(expires), None
    return None, columns.values.index(expires) if expires in columns.values else None


def find_violation(txid: int, old: Row | None, new: Row | None) -> tuple[Kind, str] | None:
    """Return what is wrong with a change of a row by transaction `txid`: the kind, and what was expected. None if
    nothing is."""
    if old == new:
        return None
    if old is not None and old.is_deleted and old.txid < txid:
        old = None  # a tombstone of an earlier transaction counts as no row
        if new is None:
            return None
    if old is None:
        assert new is not None
        is_first = new.txid == txid and new.prev_txid is None and not new.is_deleted
        return None if is_first else (Kind.BROKEN_ROW, f"a new row of transaction {txid} without one before it")
    if new is None:
        is_own = old.txid == txid and old.prev_txid is None
        return None if is_own else (Kind.PARTLY_VISIBLE, "the row, which is of another transaction, to stay")
    if old.txid == txid:
        return _find_replay_violation(txid, old, new)
    if new.txid != txid:
        return Kind.PARTLY_VISIBLE, f"the row to be of transaction {txid}, or to stay as it was"
    if (new.prev_txid, new.previous) != (old.txid, old.values):
        return Kind.BROKEN_ROW, "the previous values to be those that were there"
    return None


def _find_replay_violation(txid: int, old: Row, new: Row) -> tuple[Kind, str] | None:
    """Return what is wrong with a replay, which starts from the previous values again, or rolls back to them."""
    if new.txid == txid:
        has_same_previous = (new.prev_txid, new.previous) == (old.prev_txid, old.previous)
        return None if has_same_previous else (Kind.BROKEN_ROW, "the same previous values as the attempt before")
    if (new.txid, new.values) != (old.prev_txid, old.previous):
        return Kind.PARTLY_VISIBLE, f"the row of transaction {txid}, or what was before it"
    return None


def _check_unchanged(place: str, old_rows: Mapping[Key, Row], new_rows: Mapping[Key, Row], findings: Findings) -> None:
    """Check a Delta commit that claims to change no row."""
    for key in old_rows.keys() | new_rows.keys():
        if old_rows.get(key) != new_rows.get(key):
            expected = "no change, since the Delta commit claims none"
            change = _format_change(old_rows.get(key), new_rows.get(key))
            findings.add(Kind.FOREIGN_WRITER, f"{place}, key {format_values(key)}", expected, change)


def _format_change(old: Row | None, new: Row | None) -> str:
    return format_values([f"{'no row' if new is None else new} after {'no row' if old is None else old}"])
