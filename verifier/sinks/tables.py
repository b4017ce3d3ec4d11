"""`check_appended_tables` holds the rows of tables that sinks append to against the counts that the store has of them.

The order of reading is valid even while sinks publish: first what the store says is published, then the logs of the
tables, then the store again, then the rows. Nothing is changed. Rows may be missing because others have deleted them,
which a log shows as Delta commits without the fence of the sink: they are named, and are no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from verifier.evidence.delta_log import DeltaCommit, LogBroken, TableLog, read_log
from verifier.evidence.findings import CheckImpossible, Findings, Kind, Report
from verifier.evidence.publications import COMMITTED, Publications
from verifier.evidence.storage import Storage, storage_of
from verifier.evidence.store import Store

_FENCE: Final = "transactional.sink/fence"
_TXID: Final = "transactional.sink/txid"
_UNCOUNTED: Final = {"deletionVectors", "columnMapping"}
"""The features of tables whose rows can't be counted from files alone."""
UNKNOWN_REMOVER: Final = "an entry that the log no longer has"


@dataclass(frozen=True, slots=True)
class AppendedTable:
    """The table of a sink, and the name of its column with the transaction."""

    sink: str
    uri: str
    txid_column: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


def check_appended_tables(store_url: str, topology_id: str, tables: Sequence[AppendedTable]) -> Report:
    """Decide whether tables have the rows of each committed transaction once. Raises `CheckImpossible`."""
    findings = Findings()
    with closing(Store(store_url)) as store:
        earlier = store.publications(topology_id)
        logs = [_read_log(checked) for checked in tables]
        stored = store.publications(topology_id)
    for checked, log in zip(tables, logs, strict=True):
        place = f"table of sink {checked.sink!r}"
        if log is None:
            findings.note(f"{place}: there is none yet")
        elif log.shape.features & _UNCOUNTED:
            findings.note(
                f"{place}: its features {', '.join(sorted(log.shape.features))} hide rows; it was not checked"
            )
        else:
            rows = count_rows(storage_of(checked.uri, checked.storage_options), checked, log, findings)
            check_appended_table(checked, log, rows, earlier, stored, findings)
    return findings.report()


def _read_log(checked: AppendedTable) -> TableLog | None:
    storage = storage_of(checked.uri, checked.storage_options)
    try:
        return read_log(storage) if storage.names("_delta_log") else None
    except (LogBroken, OSError) as error:
        raise CheckImpossible(f"the log of the table of sink {checked.sink!r} can't be read: {error}") from error


def count_rows(storage: Storage, checked: AppendedTable, log: TableLog, findings: Findings) -> Counter[int | None]:
    """Return the number of rows of each transaction in the newest version of a table."""
    rows = Counter[int | None]()
    for path in log.files():
        try:
            for part in storage.parquet_parts(path, [checked.txid_column]):
                counts = part[checked.txid_column].value_counts()
                rows.update(dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True)))
        except OSError as error:
            findings.add(Kind.FILE_MISSING, f"table of sink {checked.sink!r}, file {path}", "a data file", str(error))
    findings.add_checked("appended rows", rows.total())
    return rows


def check_appended_table(
    checked: AppendedTable,
    log: TableLog,
    rows: Mapping[int | None, int],
    earlier: Publications,
    stored: Publications,
    findings: Findings,
) -> None:
    """Compare the rows of a table with the store. `earlier` was read before the log, `stored` after it."""
    place = f"table of sink {checked.sink!r}"
    removals = _name_foreign_commits(place, log, findings)
    records = stored.records.get(checked.sink, {})
    expected = {
        txid: records[attempt_id].count - stored.letters.get(checked.sink, {}).get(attempt_id, 0)
        for attempt_id, (txid, phase) in stored.attempts.items()
        if phase == COMMITTED and attempt_id in records
    }
    published = {
        txid
        for attempt_id, (txid, phase) in earlier.attempts.items()
        if phase == COMMITTED and attempt_id not in earlier.waiting.get(checked.sink, ())
    }
    known_from = min((txid for txid, phase in stored.attempts.values() if phase == COMMITTED), default=0)
    # Removals by others are known as far back as the log goes.
    uncertain_to = log.version if removals else log.base_app_versions.get(_TXID, 0)
    waiting, removed = 0, Counter[int]()
    for txid, expected_rows in sorted(expected.items()):
        count = rows.get(txid, 0)
        if not count and txid not in published:
            waiting += 1
        elif count < expected_rows and (removals or txid <= uncertain_to):
            removed[txid] = expected_rows - count
        elif count != expected_rows:
            kind = Kind.TRANSACTION_TWICE if count > expected_rows else Kind.PARTLY_VISIBLE
            kind = kind if count else Kind.TRANSACTION_LOST
            findings.add(kind, f"{place}, transaction {txid}", f"{expected_rows} rows", count)
    if waiting:
        findings.note(f"{place}: {waiting} committed transactions are not published yet")
    if removed:
        reason = ", ".join(removals) or UNKNOWN_REMOVER
        findings.note(
            f"{place}: {removed.total()} rows of {len(removed)} transactions, such as {min(removed)}, were removed by "
            f"{reason}"
        )
    _check_others(place, checked, rows, expected, known_from, stored, findings)


def _name_foreign_commits(place: str, log: TableLog, findings: Findings) -> list[str]:
    """Report commits of others that have added rows, and return the names of those that have removed some."""
    foreign = [commit for commit in log.commits if commit.changes_data and _FENCE not in commit.app_versions]
    for commit in foreign:
        if not commit.removed:
            findings.add(Kind.FOREIGN_WRITER, f"{place}, {_name(commit)}", "a Delta commit of the sink", "another one")
    return [_name(commit) for commit in foreign if commit.removed]


def _name(commit: DeltaCommit) -> str:
    return f"Delta version {commit.version} ({commit.operation or 'unnamed'})"


def _check_others(
    place: str,
    checked: AppendedTable,
    rows: Mapping[int | None, int],
    expected: Mapping[int, int],
    known_from: int,
    stored: Publications,
    findings: Findings,
) -> None:
    """Check that no rows are there of transactions that have none."""
    restored_txids = {stored.attempts[attempt_id][0] for attempt_id in stored.restored}
    unchecked = 0
    for txid, count in rows.items():
        if txid is None:
            findings.add(Kind.WRONG_PUBLICATION, place, f"{checked.txid_column!r} in each row", f"{count} with NULL")
        elif txid in expected:
            continue
        elif txid < known_from or txid in restored_txids or checked.sink in stored.boundaries:
            unchecked += count
        elif txid > stored.committed_txid:
            text = f"transactions up to {stored.committed_txid}, the last that is committed"
            findings.add(Kind.TABLE_AHEAD, place, text, f"{count} rows of transaction {txid}")
        else:
            findings.add(Kind.WRONG_PUBLICATION, f"{place}, transaction {txid}", "no rows", count)
    if unchecked:
        findings.note(f"{place}: {unchecked} rows are of transactions of which the store has no records")
