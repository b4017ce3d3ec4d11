"""What each Delta commit did to the rows, from the data files that still exist: evidence that metadata can't fake.

A transaction may set keys and keep their previous values; a replay may also undo what a dead attempt did. Nothing else
may happen to a row: not without a transaction, and not to half of one.
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
from verifier.rows import RowColumns, shown

ROWS_MAX = 2_000_000
"""The maximum number of rows read, of all Delta commits together."""

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row without its key."""

    values: tuple[Any, ...]
    txid: int
    prev_txid: int | None
    previous: tuple[Any, ...]
    is_deleted: bool = False
    """A tombstone: the row's transaction has deleted the key."""


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
            before, after = reader.rows(commit.removed), reader.rows(tuple(file.path for file in commit.added))
        except FileNotFoundError:
            break  # the older ones have gone with it
        checked += 1
        own = commit.app_versions.get(owner)
        where = f"table of {component!r}, Delta version {commit.version}"
        if own is not None and commit.restored is not None:
            pass  # a rewind: `check_log` compares its files with those that it goes back to
        elif own is not None and own in attempts:
            known = horizons.get(commit.version)
            horizon = known.previous if known is not None else None
            change = _Change(attempts[own], *_places(columns), horizon)
            _check_transaction(where, change, before, after, findings)
        elif not commit.changes_data:
            _check_same(where, before, after, findings)
        if reader.rows_read > ROWS_MAX:
            break
    if checked < len(changing):
        findings.note(f"table of {component!r}: row by row the last {checked} of {len(changing)} changes were checked")
    findings.looked_at("changes of rows", checked)


class _Reader:
    """Reads data files; those of one Delta commit are often removed by the next, so the last ones are cached."""

    def __init__(self, storage: Storage, columns: RowColumns) -> None:
        self._storage, self._columns = storage, columns
        self._kept: dict[str, list[tuple[Key, Row]]] = {}
        self.rows_read = 0

    def rows(self, paths: tuple[str, ...]) -> dict[Key, Row]:
        """The rows of some files by key. Raises `FileNotFoundError`."""
        found = {path: self._kept.get(path) or self._read(path) for path in paths}
        self._kept = {**dict(list(self._kept.items())[-8:]), **found}
        return {key: row for rows in found.values() for key, row in rows}

    def _read(self, path: str) -> list[tuple[Key, Row]]:
        columns = self._columns
        table = self._storage.read_parquet(path, list(columns.all))
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
class _Change:
    """A transaction; where the expiry of a row stands, in its key or its values; and the horizon before."""

    txid: int
    in_key: int | None
    in_values: int | None
    previous_horizon: int | None

    def complaint(self, key: Key, before: Row | None, after: Row | None) -> tuple[Kind, str] | None:
        """What is wrong with a row: what had expired for the transaction before may be as no row."""
        found = change_complaint(self.txid, before, after)
        if found is None or before is None or not self._was_past(key, before):
            return found
        return None if after is None else change_complaint(self.txid, None, after)

    def _was_past(self, key: Key, row: Row) -> bool:
        if self.in_key is not None:
            return is_expired(key[self.in_key], self.previous_horizon)
        if self.in_values is None or self.previous_horizon is None:
            return False
        is_own = row.txid == self.txid
        values = row.previous if is_own else row.values
        return not (is_own and row.prev_txid is None) and is_expired(values[self.in_values], self.previous_horizon)


def _places(columns: RowColumns) -> tuple[int | None, int | None]:
    expires = columns.expires
    if expires in columns.key:
        return columns.key.index(expires), None
    return None, columns.values.index(expires) if expires in columns.values else None


def _check_transaction(
    where: str, change: _Change, before: Mapping[Key, Row], after: Mapping[Key, Row], findings: Findings
) -> None:
    txid = change.txid
    for key in before.keys() | after.keys():
        complaint = change.complaint(key, before.get(key), after.get(key))
        if complaint is not None:
            kind, expected = complaint
            found = f"{after.get(key, 'no row')} after {before.get(key, 'no row')}"
            findings.add(kind, f"{where}, transaction {txid}, key {shown(key)}", expected, shown([found]))


def change_complaint(txid: int, before: Row | None, after: Row | None) -> tuple[Kind, str] | None:
    """What is wrong with a transaction's change of a row: the kind, and what was expected. None: nothing."""
    if before == after:
        return None
    if before is not None and before.is_deleted and before.txid < txid:
        before = None  # a tombstone of an earlier transaction is as no row
        if after is None:
            return None
    if before is None:
        assert after is not None
        is_first = after.txid == txid and after.prev_txid is None and not after.is_deleted
        return None if is_first else (Kind.BROKEN_ROW, f"a new row of transaction {txid} without one before it")
    if after is None:
        is_own = before.txid == txid and before.prev_txid is None
        return None if is_own else (Kind.PARTLY_VISIBLE, "the row, which is of another transaction, to stay")
    if before.txid == txid:
        return _replay_complaint(txid, before, after)
    if after.txid != txid:
        return Kind.PARTLY_VISIBLE, f"the row to be of transaction {txid}, or to stay as it was"
    if (after.prev_txid, after.previous) != (before.txid, before.values):
        return Kind.BROKEN_ROW, "the previous values to be those that were there"
    return None


def _replay_complaint(txid: int, before: Row, after: Row) -> tuple[Kind, str] | None:
    """A replay starts from the previous values again, or rolls back to them."""
    if after.txid == txid:
        same = (after.prev_txid, after.previous) == (before.prev_txid, before.previous)
        return None if same else (Kind.BROKEN_ROW, "the same previous values as the attempt before")
    if (after.txid, after.values) != (before.prev_txid, before.previous):
        return Kind.PARTLY_VISIBLE, f"the row of transaction {txid}, or what was before it"
    return None


def _check_same(where: str, before: Mapping[Key, Row], after: Mapping[Key, Row], findings: Findings) -> None:
    """A Delta commit that claims to change no row."""
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            found = f"{after.get(key, 'no row')} after {before.get(key, 'no row')}"
            expected = "no change, since the Delta commit claims none"
            findings.add(Kind.FOREIGN_WRITER, f"{where}, key {shown(key)}", expected, shown([found]))
