"""Tables in the log layout: a compaction merges the rows of adjacent transactions, and must preserve their meaning.

A row of such a table holds what one transaction adds to a key; the table's property `transactional.combine` says how
the rows of a key are combined: `sum`, `min`, `max` or `last`.
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
from verifier.rows import RowColumns, shown
from verifier.windows import both

COMBINE_PROPERTY = "transactional.combine"
FEATURES_PROPERTY, STAGED = "transactional.features", "staged"

Key = tuple[object, ...]


def combined_by(log: TableLog) -> dict[str, str]:
    """Value column → how its values are combined; empty until something was written.

    A rewind to before the first row takes back what the table had declared, and keeps the rows of older versions.
    """
    newest_first = (log.shape.properties, *(commit.properties for commit in reversed(log.commits)))
    return next(filter(None, map(_declared, newest_first)), {})


def _declared(properties: Mapping[str, str]) -> dict[str, str]:
    declared: dict[str, str] = json.loads(properties.get(COMBINE_PROPERTY, "{}"))
    return declared


def unique_up_to(log: TableLog, owner: str) -> int | None:
    """The transaction up to which keys are unique: where tasks write files of their own, what a compaction has written.

    None: all of them.
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
        is_base = (columns.deleted or columns.expires) and not _reaches_back_behind(log, compaction, columns)
        known, how = horizons.get(compaction.version), _declared(compaction.properties)
        horizon = known.previous if known is not None else None
        try:
            before = _put_together(storage, [files[path] for path in compaction.removed], columns, how)
            after = _put_together(storage, list(compaction.added), columns, how)
        except (FileNotFoundError, KeyError):
            break  # the older ones have gone with it
        checked += 1
        where = f"table of {component!r}, Delta version {compaction.version}, a compaction"
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            if is_base and old is not None and new is None and _is_gone(key, old, columns, horizon):
                continue  # nothing is before a base, so it needs no tombstones, and nothing that had expired
            if old != new:
                findings.add(Kind.BROKEN_ROW, f"{where}, key {shown(key)}", f"{old}, as before", new)
    if checked < len(compactions):
        findings.note(
            f"table of {component!r}: the rows of the last {checked} of {len(compactions)} compactions were checked"
        )
    findings.looked_at("compactions", checked)


def _put_together(
    storage: Storage, files: list[DataFile], columns: RowColumns, how: Mapping[str, str]
) -> dict[Key, list[object]]:
    """Key → values, of the combined rows of some files."""
    found: dict[Key, list[object]] = {}
    names = (*columns.values, *(() if columns.deleted is None else (columns.deleted,)))
    kinds = [how.get(name, "last") for name in names]
    for file in sorted(files, key=lambda file: int(file.partition.get(columns.txid) or 0)):
        horizon_names = [] if columns.horizon is None else [columns.horizon]
        table = storage.read_parquet(file.path, [*columns.key, *names, *horizon_names])
        horizons = table.column(horizon_names[0]).to_pylist() if horizon_names else [None] * table.num_rows
        # With NaN as the number that it is.
        numbers = zip(*(table.column(name).to_pylist() for name in names), strict=True)
        rows = zip(tuples(table, columns.key), numbers, horizons, strict=True)
        for key, found_values, horizon in rows:
            values = found_values if columns.deleted is None else (*found_values[:-1], bool(found_values[-1]))
            before = found.get(key)
            if before is not None and horizon is not None and _has_expired(key, before, columns, horizon):
                before = None  # the row begins its key from nothing
            found[key] = list(values) if before is None else list(map(both, kinds, before, values))
    return {key: list(map(_named, values)) for key, values in found.items()}


def _is_gone(key: Key, values: Sequence[object], columns: RowColumns, horizon: int | None) -> bool:
    """Whether a row of key and combined values is a tombstone, or had expired by a horizon."""
    if columns.deleted is not None and values[-1]:
        return True
    return columns.expires is not None and is_expired(_expiry(key, values, columns), horizon)


def _has_expired(key: Key, values: Sequence[object], columns: RowColumns, horizon: Any) -> bool:
    expiry = _expiry(key, values, columns)
    return expiry is not None and bool(expiry <= horizon)


def _expiry(key: Key, values: Sequence[object], columns: RowColumns) -> Any:
    assert columns.expires is not None
    return (*key, *values)[(*columns.key, *columns.values).index(columns.expires)]


def _reaches_back_behind(log: TableLog, compaction: DeltaCommit, columns: RowColumns) -> bool:
    """Whether the table had a segment before those that were compacted."""
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
    """The rows of some columns. NaN, which is not equal to itself, is replaced by its name."""
    if not names:
        return [()] * int(table.num_rows)
    return list(zip(*(_values(table.column(name)) for name in names), strict=True))


def _values(column: Any) -> list[object]:
    values: list[object] = column.to_pylist()
    return list(map(_named, values)) if str(column.type) in ("float", "double") else values


def _named(value: object) -> object:
    return "NaN" if value != value else value
