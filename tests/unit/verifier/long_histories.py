"""Long histories, which are made by hand, and how long `transactional verify` takes for them.

`logs`: a table whose whole log is there, a Delta commit per transaction. `checkpoint`: a table whose log is cleaned
away behind a checkpoint, and whose rows show every transaction.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from time import monotonic

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from verifier.checker import CheckedTable, verify
from verifier.evidence.findings import Report

ID, COMPONENT = "long", "count"
FENCE = 1
_BATCH = '{{"version": 4, "partitions": [["long#12345678", 0, {start}, {until}, 1, 1234567890, 100]]}}'
_ATTEMPT = (
    "INSERT INTO transactional_attempts (topology_id, attempt_id, txid, phase, batch, rows, issued_at_ms, "
    "planned_at_ms, processed_at_ms, commit_started_at_ms, committed_at_ms) "
    "VALUES (?, ?, ?, 'committed', ?, 1, 1, 1, 1, 1, 1)"
)


def make_store(folder: Path, transactions: int) -> None:
    """A store as so many transactions of one record each leave it; attempt n + 1 has committed transaction n."""
    with closing(SqlCoordinatorStore(f"sqlite:///{folder}/store.db")) as store:
        store.status()
    numbers = range(1, transactions + 1)
    rows = ((ID, n + FENCE, n, _BATCH.format(start=n - 1, until=n)) for n in numbers)
    with closing(sqlite3.connect(folder / "store.db")) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.executemany(_ATTEMPT, rows)
        columns = "topology_id, epoch, attempt_id, committed_txid, committed_attempt_id, fingerprint, desired"
        last = transactions + FENCE
        connection.execute(
            f"INSERT INTO transactional_topologies ({columns}) VALUES (?, 1, ?, ?, ?, '{{}}', 'active')",
            [ID, last, transactions, last],
        )
        connection.execute("INSERT INTO transactional_fences VALUES (?, ?, ?, 0)", [ID, COMPONENT, FENCE])


def make_logs(folder: Path, transactions: int) -> None:
    """A table of one row, which each transaction writes again: its log as real ones are, only its last file exists."""
    table = folder / COMPONENT
    configuration = {"delta.checkpointInterval": "1000000", "transactional.schemaVersion": "3"}
    DeltaTable.create(str(table), _schema(), configuration=configuration, raise_if_key_not_exists=False)
    _write_log(table, 1, [{"txn": {"appId": f"{ID}/{COMPONENT}", "version": FENCE}}])
    for txid in range(1, transactions + 1):
        _write_log(table, txid + 1, _actions(txid))
    last = pa.table([["k"], [transactions], [transactions], [transactions - 1], [transactions - 1]], schema=_schema())
    pq.write_table(last, table / _file(transactions))
    size = (table / _file(transactions)).stat().st_size
    _write_log(table, transactions + 1, _actions(transactions, size))


def make_checkpoint(folder: Path, transactions: int) -> None:
    """A table with a row of each transaction, and no log but a checkpoint."""
    numbers = pa.array(range(1, transactions + 1), pa.int64())
    ones, nothing = pa.repeat(pa.scalar(1, pa.int64()), transactions), pa.nulls(transactions, pa.int64())
    rows = pa.table([numbers.cast(pa.string()), ones, numbers, nothing, nothing], schema=_schema())
    owner = CommitProperties(app_transactions=[Transaction(f"{ID}/{COMPONENT}", transactions + FENCE)])
    path = str(folder / COMPONENT)
    configuration = {"delta.logRetentionDuration": "interval 0 seconds", "transactional.schemaVersion": "3"}
    table = DeltaTable.create(path, _schema(), configuration=configuration, raise_if_key_not_exists=False)
    write_deltalake(table, rows, mode="append", commit_properties=owner)
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        (folder / COMPONENT / "_delta_log" / f"{version:020}.json").unlink()


def _schema() -> pa.Schema:
    numbers = [(name, pa.int64()) for name in ("count", "txid", "prev_txid", "prev_count")]
    return pa.schema([("key", pa.string()), *numbers])


def _file(txid: int) -> str:
    return f"part-00000-{txid:08}-7465-500c-9f5f-e4b55384c216-c000.snappy.parquet"


def _actions(txid: int, size: int = 1530) -> list[dict[str, object]]:
    """What delta-rs writes for a merge of one row."""
    values = {"count": txid, "txid": txid, "key": "k"}
    stats = {"numRecords": 1, "minValues": values, "maxValues": values, "nullCount": dict.fromkeys(values, 0)}
    owner = json.dumps({"owner": f"{ID}/{COMPONENT}", "txid": txid, "attempt_id": txid + FENCE})
    predicates = {
        "mergePredicate": "t.key IS NOT DISTINCT FROM s.key",
        "matchedPredicates": '[{"actionType":"update"}]',
    }
    info = {"timestamp": 1795266902505, "operation": "MERGE", "operationParameters": predicates, "userMetadata": owner}
    metrics = dict.fromkeys(("num_source_rows", "num_target_rows_updated", "num_output_rows", "execution_time_ms"), 1)
    written: dict[str, object] = {"path": _file(txid), "partitionValues": {}, "size": size, "dataChange": True}
    old = {"path": _file(txid - 1), "dataChange": True, "deletionTimestamp": 1, "size": size, "partitionValues": {}}
    removed: list[dict[str, object]] = [{"remove": old}] if txid > 1 else []
    return [
        {"commitInfo": {**info, "operationMetrics": metrics, "engineInfo": "delta-rs:py-1.6.6"}},
        {"add": {**written, "modificationTime": 1795266902505, "stats": json.dumps(stats)}},
        *removed,
        {"txn": {"appId": f"{ID}/{COMPONENT}", "version": txid + FENCE}},
    ]


def _write_log(table: Path, version: int, actions: list[dict[str, object]]) -> None:
    text = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
    number = os.open(table / "_delta_log" / f"{version:020}.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(number, text.encode())
    os.close(number)


def measure(kind: str, transactions: int, folder: Path) -> tuple[float, Report]:
    """Seconds, and what was found, for one history, which is made in `folder`."""
    make_store(folder, transactions)
    (make_logs if kind == "logs" else make_checkpoint)(folder, transactions)
    counts = "count" if kind == "logs" else "*"
    started = monotonic()
    table = CheckedTable(COMPONENT, str(folder / COMPONENT), counts=counts)
    report = verify(f"sqlite:///{folder}/store.db", ID, [table])
    return monotonic() - started, report
