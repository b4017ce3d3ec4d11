"""Histories of transactions in a real store and real Delta tables, made step by step; and ways to falsify them."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from tests.contract.states import counts
from transactional.core.ports import StateKind
from transactional.core.store import AttemptRecord, Lease
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.runtime.engine.fencing import fence_tables
from verifier.checker import CheckedTable, verify
from verifier.evidence.findings import Kind, Report

ID = "words"
PARTITIONS = [PartitionId("words", index) for index in range(2)]
COUNTING = ("count", "log")
"""The components whose tables count words; the others keep the latest value of each."""
LATEST = ("latest", "latest-log")
COMMITTERS = (*COUNTING, *LATEST)
COMPACTED = LogLayout(compact_after=3)
LEASE_MS = 60_000

Words = Mapping[str, int]


@dataclass
class History:
    """A topology in a folder: its store, and tables in the merge and in the log layout, which count words or keep the
    number of the last transaction with each. With a transactional spout a replay is the same batch."""

    folder: Path
    replays_exactly: bool = False
    lease: Lease | None = None
    states: dict[str, Any] = field(default_factory=dict)
    positions: dict[PartitionId, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    txid: int = 1
    attempt_id: int = 0

    def fingerprint(self) -> dict[str, Any]:
        """As a topology with such a spout has it."""
        spout = "TransactionalKafkaSpout" if self.replays_exactly else "OpaqueKafkaSpout"
        return {"spout": {"kind": spout}, "committers": {name: {} for name in COMMITTERS}}

    @property
    def url(self) -> str:
        """The store's URL."""
        return f"sqlite:///{self.folder}/store.db"

    def path(self, component: str) -> str:
        """Where the table of a component is."""
        return str(self.folder / component)

    @property
    def kind(self) -> StateKind:
        """What the spout's guarantee asks of states."""
        return StateKind.TRANSACTIONAL if self.replays_exactly else StateKind.OPAQUE

    def make_states(self) -> dict[str, Any]:
        """The states of the committers."""
        layouts = {name: COMPACTED if name in ("log", "latest-log") else "merge" for name in COMMITTERS}
        states = {
            name: DeltaMapState(self.path(name), "word string", "count long", kind=self.kind, layout=layouts[name])
            for name in COMMITTERS
        }
        for state in states.values():
            state.parts.durability.set_durability("process")
        return states

    def start(self) -> None:
        """A coordinator takes over, and shuts the one before out."""
        self.states = self.make_states()
        committers = [SimpleNamespace(id=name, state=state) for name, state in self.states.items()]
        with closing(SqlCoordinatorStore(self.url)) as store:
            self.lease = store.acquire(ID, self.fingerprint(), owner="hand", lease_ms=LEASE_MS)
            topology: Any = SimpleNamespace(id=ID, committers=committers)
            fence_tables(topology, store, self.lease)
            store.record_start(self.lease, self.fingerprint())
            self.attempt_id = self.lease.fence_id

    def transaction(self, words: Words, *, dies_after: str | None = None) -> None:
        """One transaction; or an attempt at it that dies after `batch`, a component, or `tables`."""
        assert self.lease is not None
        self.attempt_id += 1
        attempt = TransactionAttempt(TxId(self.txid), AttemptId(self.attempt_id))
        batch = self._batch(sum(words.values()))
        record = AttemptRecord(attempt, "processing", batch, None, 0, 0, None, None, None, None)
        with closing(SqlCoordinatorStore(self.url)) as store:
            store.record_attempt(self.lease, record, forget_later=True)
            for name, state in self.states.items() if dies_after != "batch" else ():
                self._look_up(store, name)
                if name in COUNTING:
                    state.merge(attempt, counts(words))
                else:
                    state.put(attempt, {(word,): (self.txid,) for word in words})
                if dies_after == name:
                    return
            if dies_after is None:
                store.record_commit(self.lease, attempt, batch, processed_at_ms=1, started_at_ms=1, at_ms=2)
                for name, state in self.states.items():
                    self._look_up(store, name)
                    state.parts.maintenance.maintain(attempt.txid, lambda: True)
                self.positions = {p: offsets.until for p, offsets in batch.ranges.items()}
                self.txid += 1

    def _look_up(self, store: SqlCoordinatorStore, component: str) -> None:
        """As a driver does it; the store of `start` is closed."""
        self.states[component]._fence.txid_of = lambda version: TxId(store.txid_of(ID, component, version) or 0)

    def _batch(self, records: int) -> BatchMetadata:
        shares = (records - records // 2, records // 2)
        ranges = {
            p: OffsetRange(Offset(self.positions[p]), Offset(self.positions[p] + share))
            for p, share in zip(PARTITIONS, shares, strict=True)
        }
        return BatchMetadata(ranges, {p: Digest(len(offsets), 7, 70) for p, offsets in ranges.items()})

    def report(self, components: Sequence[str] = COMMITTERS, **options: Any) -> Report:
        """What the checker says."""
        tables = [
            CheckedTable(name, self.path(name), counts="count" if name in COUNTING else None) for name in components
        ]
        return verify(self.url, ID, tables, **options)

    def kinds(self) -> set[Kind]:
        """What the checker finds wrong in the tables that count."""
        return set(self.report(COUNTING).counts)

    # --- falsifying -----------------------------------------------------------------------------------------------

    def sql(self, *statements: str) -> None:
        """Change the store behind everybody's back."""
        with closing(sqlite3.connect(self.folder / "store.db")) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def delta(self, component: str) -> DeltaTable:
        """The table, as anybody opens it."""
        return DeltaTable(self.path(component))

    def log_file(self, component: str, version: int | None = None) -> Path:
        """The file of a Delta commit; the newest one's."""
        number = self.delta(component).version() if version is None else version
        return self.folder / component / "_delta_log" / f"{number:020}.json"

    def version_of(self, component: str, txid: int) -> int:
        """The newest Delta version that transaction `txid` has written."""
        return next(
            int(entry["version"])
            for entry in self.delta(component).history()
            if json.loads(entry.get("userMetadata", "{}")).get("txid") == txid
        )

    def change_batch(self, txid: int, change: Callable[[list[list[Any]]], object]) -> None:
        """Change the partitions' rows of a recorded batch."""
        with closing(sqlite3.connect(self.folder / "store.db")) as connection, connection:
            where = f"WHERE txid = {txid} AND phase = 'committed'"
            [(text,)] = connection.execute(f"SELECT batch FROM transactional_attempts {where}").fetchall()
            document = json.loads(text)
            change(document["partitions"])
            connection.execute(f"UPDATE transactional_attempts SET batch = ? {where}", [json.dumps(document)])

    def change_actions(self, log_file: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        """Change the actions of a Delta commit."""
        actions = change([json.loads(line) for line in log_file.read_text().splitlines()])
        log_file.write_text("\n".join(json.dumps(action) for action in actions))

    @contextmanager
    def changed_file(self, component: str, log_file: Path | None = None) -> Iterator[list[dict[str, Any]]]:
        """The rows of the newest data file, or of one that a Delta commit added, to be changed where they stand."""
        log_file = log_file or self._newest_with_rows(component)
        path = next(line["add"]["path"] for line in map(json.loads, log_file.read_text().splitlines()) if "add" in line)
        file = self.folder / component / path
        with pq.ParquetFile(file) as opened:
            table = opened.read()
        rows = table.to_pylist()
        yield rows
        pq.write_table(pa.Table.from_pylist(rows, table.schema), file)

        def resize(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
            for action in actions:
                if action.get("add", {}).get("path") == path:
                    action["add"]["size"] = file.stat().st_size
                    action["add"].pop("tags", None)
            return actions

        self.change_actions(log_file, resize)

    def _newest_with_rows(self, component: str) -> Path:
        newest = self.delta(component).version()
        files = (self.log_file(component, version) for version in range(newest, -1, -1))
        return next(file for file in files if '"add"' in file.read_text())


def make_history(folder: Path, *, replays_exactly: bool = False) -> History:
    """A history with all that may happen: replays (of other batches, where the spout allows it), dead attempts,
    take-overs, empty batches, compactions."""
    history = History(folder, replays_exactly)
    go_through_everything(history)
    return history


def go_through_everything(history: History) -> None:
    """From a history's beginning: replays, dead attempts, take-overs, empty batches."""
    history.start()
    history.transaction({"cat": 3, "dog": 1})
    history.transaction({"cat": 2, "owl": 1})
    replayed = {"dog": 1, "cat": 1}  # the replay of 3 has no emu, and less of dog
    history.transaction(replayed if history.replays_exactly else {"dog": 4, "emu": 1}, dies_after="count")
    history.start()
    history.transaction(replayed)
    history.transaction({"cow": 2}, dies_after="tables")
    history.start()
    history.transaction({"cow": 2})
    history.transaction({})
    history.transaction({"cat": 1}, dies_after="batch")
    history.transaction({"cat": 1, "emu": 2})
    for number in range(7, 13):
        history.transaction({"cat": number, f"word-{number}": 2})


def copied(history: History, folder: Path) -> History:
    """A copy to be changed."""
    shutil.copytree(history.folder, folder, dirs_exist_ok=True)
    return replace(history, folder=folder, states={}, positions=dict(history.positions))
