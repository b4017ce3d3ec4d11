"""Tables in the log layout: checks that compactions preserve the meaning of the rows that they merge.

A row of such a table holds what one transaction adds to a key. The table's property `transactional.combine` says how
the rows of a key are combined: `sum`, `min`, `max` or `last`. A compaction replaces the files of adjacent transactions
by one. The combined rows of the removed and of the added files are compared, without the code that compacts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from verifier.evidence.delta_log import DataFile, DeltaCommit, TableLog
from verifier.evidence.findings import Findings, Kind
from verifier.evidence.storage import Storage
from verifier.evidence.store import StoreHistory
from verifier.horizons import horizons_by_version, is_expired
from verifier.rows import RowColumns, format_values
from verifier.windows import combine_values

COMBINE_PROPERTY = "transactional.combine"
FEATURES_PROPERTY, STAGED = "transactional.features", "staged"

Key = tuple[object, ...]


def combined_by(log: TableLog) -> dict[str, str]:
    """Return for each value column how its values are combined; nothing before the first write.

    A rewind to before the first row removes the declaration, while older versions still have rows. So the newest
    declaration in the log counts.
    """
    newest_first = (log.shape.properties, *(commit.properties for commit in reversed(log.commits)))
    return next(filter(None, map(_declared, newest_first)), {})


def _declared(properties: Mapping[str, str]) -> dict[str, str]:
    declared: dict[str, str] = json.loads(properties.get(COMBINE_PROPERTY, "{}"))
    return declared


def unique_up_to(log: TableLog, owner: str) -> int | None:
    """Return the transaction up to which each key has one row per transaction. None: there is no limit.

    Where tasks write files of their own, only a compaction makes keys unique.
    """
    features = log.shape.properties.get(FEATURES_PROPERTY, "").split(",")
    if STAGED not in features or "last" in combined_by(log).values():
        return None
    return log.app_version(f"{owner}#compaction") or 0


def check_compactions(
    component: str,
    storage: Storage,
    log: TableLog,
    history: StoreHistory,
    columns: RowColumns,
    *,
    commits_max: int,
    findings: Findings,
) -> None:
    """Check that the newest compactions whose files all exist are equivalent to the rows that they replaced."""
    owner = f"{history.topology_id}/{component}"
    app_id, horizons = f"{owner}#compaction", horizons_by_version(log, owner)
    files = dict(log.base_files)
    files.update((file.path, file) for commit in log.commits for file in commit.added)
    compactions = [commit for commit in log.commits if app_id in commit.app_versions and commit.restored is None]
    checked = 0
    for compaction in reversed(compactions[-commits_max:] if commits_max else []):
        is_base = (columns.deleted or columns.expires) and not _has_earlier_segment(log, compaction, columns)
        recorded, combine = horizons.get(compaction.version), _declared(compaction.properties)
        horizon = recorded.previous if recorded is not None else None
        try:
            removed = _read_combined(storage, [files[path] for path in compaction.removed], columns, combine)
            added = _read_combined(storage, list(compaction.added), columns, combine)
        except (FileNotFoundError, KeyError):
            break  # the files of older compactions were deleted, too
        checked += 1
        place = f"table of {component!r}, Delta version {compaction.version}, a compaction"
        for key in removed.keys() | added.keys():
            old, new = removed.get(key), added.get(key)
            if is_base and old is not None and new is None and _is_dropped(key, old, columns, horizon):
                continue  # no segment is before a base, so it needs neither tombstones nor expired rows
            if old != new:
                findings.add(Kind.BROKEN_ROW, f"{place}, key {format_values(key)}", f"{old}, as before", new)
    if checked < len(compactions):
        findings.note(
            f"table of {component!r}: the rows of the last {checked} of {len(compactions)} compactions were checked"
        )
    findings.add_checked("compactions", checked)


def _read_combined(
    storage: Storage, files: list[DataFile], columns: RowColumns, combine: Mapping[str, str]
) -> dict[Key, list[object]]:
    """Return the combined values of the rows of some files, by key."""
    combined: dict[Key, list[object]] = {}
    names = (*columns.values, *(() if columns.deleted is None else (columns.deleted,)))
    words = [combine.get(name, "last") for name in names]
    for file in sorted(files, key=lambda file: int(file.partition.get(columns.txid) or 0)):
        horizon_names = [] if columns.horizon is None else [columns.horizon]
        table = storage.read_parquet(file.path, [*columns.key, *names, *horizon_names])
        horizons = table.column(horizon_names[0]).to_pylist() if horizon_names else [None] * table.num_rows
        # NaN stays a number here; `tuples` would replace it by its name.
        numbers = zip(*(table.column(name).to_pylist() for name in names), strict=True)
        rows = zip(tuples(table, columns.key), numbers, horizons, strict=True)
        for key, stored_values, horizon in rows:
            values = stored_values if columns.deleted is None else (*stored_values[:-1], bool(stored_values[-1]))
            earlier = combined.get(key)
            if earlier is not None and horizon is not None and _has_expired(key, earlier, columns, horizon):
                earlier = None  # the row begins its key from nothing
            combined[key] = list(values) if earlier is None else list(map(combine_values, words, earlier, values))
    return {key: list(map(_name_nan, values)) for key, values in combined.items()}


def _is_dropped(key: Key, values: Sequence[object], columns: RowColumns, horizon: int | None) -> bool:
    """Return whether a base leaves out a row: it is a tombstone, or had expired by the horizon."""
    if columns.deleted is not None and values[-1]:
        return True
    return columns.expires is not None and is_expired(_expiry(key, values, columns), horizon)


def _has_expired(key: Key, values: Sequence[object], columns: RowColumns, horizon: Any) -> bool:
    expiry = _expiry(key, values, columns)
    return expiry is not None and bool(expiry <= horizon)


def _expiry(key: Key, values: Sequence[object], columns: RowColumns) -> Any:
    assert columns.expires is not None
    return (*key, *values)[(*columns.key, *columns.values).index(columns.expires)]


def _has_earlier_segment(log: TableLog, compaction: DeltaCommit, columns: RowColumns) -> bool:
    """Return whether the table had a segment before those that were compacted."""
    files = dict(log.base_files)
    for commit in log.commits:
        if commit.version >= compaction.version:
            break
        for path in commit.removed:
            files.pop(path, None)
        files.update((file.path, file) for file in commit.added)
    txids = {path: int(file.partition.get(columns.txid) or 0) for path, file in files.items()}
    return min(txids.values(), default=0) < min(
        (txids[path] for path in compaction.removed if path in txids), default=0
    )


def tuples(table: Any, names: tuple[str, ...]) -> list[tuple[object, ...]]:
    """Return the rows of some columns. NaN, which is not equal to itself, is replaced by its name."""
    if not names:
        return [()] * int(table.num_rows)
    return list(zip(*(_values(table.column(name)) for name in names), strict=True))


def _values(column: Any) -> list[object]:
    values: list[object] = column.to_pylist()
    return list(map(_name_nan, values)) if str(column.type) in ("float", "double") else values


def _name_nan(number: object) -> object:
    return "NaN" if number != number else number
