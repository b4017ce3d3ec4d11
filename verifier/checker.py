"""`verify` reads the tables, the store and the source of a topology, and checks them all.

The order of reading is valid even while the topology runs: first the committed txid, then the tables, then the store's
history. So a table has at least what was committed when the check began. Nothing is changed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from verifier.compactions import combined_by, unique_up_to
from verifier.evidence.delta_log import LogBroken, TableLog, read_log
from verifier.evidence.findings import CheckImpossible, Findings, Kind, Report
from verifier.evidence.storage import opened_version, storage_of
from verifier.evidence.store import CountedPartition, Store, StoreHistory
from verifier.horizons import EXPIRES_PROPERTY, ExpiryRule, check_horizons
from verifier.row_changes import check_row_changes
from verifier.rows import RowColumns, check_count, check_layout, check_rows, read_parts
from verifier.source import KafkaSource, PartitionState, check_source, group_by_source, read_states
from verifier.sql_tables import CheckedSqlTable, check_sql_table, open_moment
from verifier.tables import TableTxid, changed_files, check_contents, check_log, check_table_txid
from verifier.transactions import Partition, check_transactions

FEATURES_PROPERTY = "transactional.features"
LAYOUT_PROPERTY = "transactional.schemaVersion"
HORIZON_COLUMN = "horizon"
ROW_CHANGES = 1_000
"""The number of Delta commits per table, the newest, that are checked row by row."""


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """The Delta table of a committer. `columns` None: determined by their names.

    `counts` is a value column that counts records of the source, each once, over all keys; or `*`: each record makes a
    row of its own. None: no column does.
    """

    component: str
    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    columns: RowColumns | None = None
    counts: str | None = None
    expires: ExpiryRule | None = None
    """How its rows expire, if they do; None: the horizons are not compared with the batches."""
    is_counted: CountedPartition | None = None
    """Whether the records of a partition reach the table, None where that is not known. Without it all do."""


def verify(
    store_url: str,
    topology_id: str,
    tables: Sequence[CheckedTable | CheckedSqlTable],
    source: KafkaSource | Sequence[KafkaSource] | None = None,
    *,
    row_changes: int = ROW_CHANGES,
) -> Report:
    """Decide whether a topology's history is exact, from its store, its tables and its source. Changes nothing.

    `source` are several if the topology reads from several. It may be running. Raises `CheckImpossible` if something
    can't be read, or is not what it should be.
    """
    with _without_collector():
        sources = [] if source is None else [source] if isinstance(source, KafkaSource) else source
        return _verify(store_url, topology_id, tables, sources, row_changes=row_changes)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable garbage collection. A million transactions are many objects that live until the end, and collecting would
    take half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _verify(
    store_url: str,
    topology_id: str,
    tables: Sequence[CheckedTable | CheckedSqlTable],
    sources: Sequence[KafkaSource],
    *,
    row_changes: int,
) -> Report:
    findings = Findings()
    in_delta = [table for table in tables if isinstance(table, CheckedTable)]
    in_sql = [table for table in tables if isinstance(table, CheckedSqlTable)]
    store = Store(store_url)
    with ExitStack() as opened:
        opened.callback(store.close)
        txid_before = store.committed_txid(topology_id)
        moments = [opened.enter_context(open_moment(table)) for table in in_sql]
        logs = [_log_of(table, findings) for table in in_delta]
        history = store.history(topology_id)
        states = _look_at_source(sources, history, findings)
        log_starts = {partition: state.start for partition, state in states.items() if state is not None}
        check_transactions(history, findings, log_starts=log_starts)
        for sql_table, moment in zip(in_sql, moments, strict=True):
            check_sql_table(sql_table, moment, history, txid_before, findings)
    for table, log in zip(in_delta, logs, strict=True):
        if log is not None:
            _check_table(table, log, history, txid_before, row_changes, findings)
    if sources:
        check_source(sources, history, states, findings)
    return findings.report()


def _log_of(table: CheckedTable, findings: Findings) -> TableLog | None:
    try:
        return read_log(storage_of(table.uri, table.storage_options))
    except LogBroken as error:
        findings.add(Kind.BROKEN_LOG, f"table of {table.component!r}", "a log that can be read", error)
        return None


def _look_at_source(
    sources: Sequence[KafkaSource], history: StoreHistory, findings: Findings
) -> dict[Partition, PartitionState | None]:
    if not sources:
        findings.note("no source was given: the offset ranges and their contents were not checked against it")
        return {}
    last = history.committed[-1].ranges if history.committed else {}
    states: dict[Partition, PartitionState | None] = {}
    for source, partitions in group_by_source(sources, last):
        states |= read_states(source, partitions)
    return states


def _check_table(
    table: CheckedTable, log: TableLog, history: StoreHistory, txid_before: int, row_changes: int, findings: Findings
) -> None:
    _check_opens(table, log, findings)
    columns = _columns_of(table, log)
    position = check_log(table.component, log, history, txid_before, columns.txid, findings)
    check_table_txid(table.component, position, history, txid_before, findings)
    if columns.expires is not None:
        check_horizons(table.component, log, history, table.expires, findings)
    storage = storage_of(table.uri, table.storage_options)
    changed = list(changed_files(storage, log))
    for path, recorded_size, current_size in changed:
        place = f"table of {table.component!r}, data file {path}"
        if current_size is None:
            findings.add(Kind.FILE_MISSING, place, "a file, as was written", "none: somebody has deleted it")
        else:
            findings.add(Kind.FILE_CHANGED, place, f"{recorded_size} bytes, as were written", current_size)
    if changed:
        is_missing = any(current_size is None for *_, current_size in changed)
        problem = "are missing, see `transactional doctor`" if is_missing else "were changed"
        findings.note(f"table of {table.component!r}: its rows were not checked, because files of it {problem}")
        return
    check_contents(table.component, storage, log, findings)
    try:
        _check_snapshot(table, log, columns, position, history, txid_before, findings)
    except OSError as error:
        place = f"table of {table.component!r}, Delta version {log.version}"
        findings.add(Kind.BROKEN_LOG, place, "rows that can be read", str(error).splitlines()[0])
        return
    check_row_changes(table.component, storage, log, history, columns, commits_max=row_changes, findings=findings)


def _check_opens(table: CheckedTable, log: TableLog, findings: Findings) -> None:
    """Check that a reader can open the newest version. A complete log may still lead it to a checkpoint that is missing
    or unreadable."""
    place = f"table of {table.component!r}"
    try:
        version = opened_version(table.uri, table.storage_options)
    except OSError as error:
        findings.add(Kind.BROKEN_LOG, place, "a table that readers can open", error)
        return
    if version < log.version:
        findings.add(Kind.BROKEN_LOG, place, f"readers who see Delta version {log.version}", f"version {version}")


def _columns_of(table: CheckedTable, log: TableLog) -> RowColumns:
    columns = table.columns or RowColumns.from_names(log.shape.columns)
    if "deletes" in log.shape.properties.get(FEATURES_PROPERTY, "").split(",") and "deleted" in log.shape.columns:
        columns = columns.with_tombstones("deleted")
    if (expires := log.shape.properties.get(EXPIRES_PROPERTY)) is not None:
        columns = columns.with_expiry(expires)
    if columns.txid in log.shape.partition_columns:
        values = table.columns.values if table.columns else combined_by(log)
        has_horizons = expires in values and HORIZON_COLUMN in log.shape.columns
        columns = columns.in_log_layout(values, HORIZON_COLUMN if has_horizons else None)
    missing = sorted({*columns.names} - {*log.shape.columns})
    if missing:
        raise CheckImpossible(
            f"the table of {table.component!r} has no column {missing[0]!r}; its columns are "
            f"{', '.join(log.shape.columns)}: is it the table of a state?"
        )
    check_layout(log.shape.properties.get(LAYOUT_PROPERTY), f"table of {table.component!r}")
    if table.counts not in {None, "*", *columns.values}:
        raise CheckImpossible(
            f"the table of {table.component!r} has no value column {table.counts!r} that could count; its value "
            f"columns are {', '.join(columns.values)}"
        )
    return columns


def _check_snapshot(
    table: CheckedTable,
    log: TableLog,
    columns: RowColumns,
    position: TableTxid,
    history: StoreHistory,
    txid_before: int,
    findings: Findings,
) -> None:
    parts = read_parts(storage_of(table.uri, table.storage_options), log.files().values(), columns)
    unique_until = unique_up_to(log, f"{history.topology_id}/{table.component}") if columns.is_log else None
    sums = check_rows(table.component, parts, columns, position.txid, table.counts, findings, unique_until)
    if table.counts is not None:
        # Anything after `txid_before` may have been replayed since, from another batch.
        is_settled = position.txid is not None and position.txid <= txid_before
        check_count(
            *(table.component, sums, table.counts, position.txid if is_settled else None, history, findings, columns),
            table.is_counted,
        )
