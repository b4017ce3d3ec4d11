"""What of a table on a disk is synced before its transaction is committed, and what with `durability="process"`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spouts import MemoryTransactionalSpout
from state import DeadLetterTable, DeltaMapState
from state.delta.log import log as delta_log
from state.delta.log.background import BackgroundWork
from state.delta.segments.log_layout import LogLayout
from state.delta.write import change as delta_small
from tests.proof.effects import done_at_once
from tests.synced_disk import SyncedDisk
from transactional import Topology, TransactionalTopologyBuilder, TxId, run_topology
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import OperatingError
from transactional.model.attempt import TransactionAttempt

PROPERTIES = {"delta.checkpointInterval": "3", "transactional.logCommits": "3"}
LAYOUTS: dict[str, str | LogLayout] = {"merge": "merge", "log": LogLayout(compact_after=2)}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SyncedDisk:
    monkeypatch.setattr(delta_log, "LOG_KEPT_S", -10)
    # No transaction needs a checkpoint that is just being written beside it.
    monkeypatch.setattr(BackgroundWork, "start", done_at_once)
    return SyncedDisk(monkeypatch)


def topology(folder: Path, layout: str) -> Topology:
    spout = MemoryTransactionalSpout([[(word,) for word in "abcabc1a"]], fields="word string", take=1)
    builder = TransactionalTopologyBuilder("words", "words", spout)
    options = {"layout": LAYOUTS[layout], "properties": PROPERTIES}
    for name in ("one", "other"):
        state = DeltaMapState(folder / "new" / name, "word", **options)  # type: ignore[arg-type]
        builder.set_committer_bolt(name, state.count()).fields_grouping("words", "word")
    builder.set_dead_letters(DeadLetterTable(folder / "new" / "letters"))
    return builder.build()


def run(folder: Path, layout: str, check: Callable[[TxId], None], durability: str = "disk") -> None:
    record_commit: Any = SqlCoordinatorStore.record_commit

    def checked(store: Any, lease: Any, attempt: TransactionAttempt, *given: Any, **times: int) -> None:
        check(attempt.txid)
        record_commit(store, lease, attempt, *given, **times)

    config = {"stop_when_drained": True, "durability": durability, "attempts_max": 2}
    store = f"sqlite:///{folder}/store.db"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqlCoordinatorStore, "record_commit", checked)
        run_topology(topology(folder, layout), store=store, master="none", config=config)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("by_delta_rs", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_that_a_committed_transaction_needs_is_synced(
    tmp_path: Path, disk: SyncedDisk, monkeypatch: pytest.MonkeyPatch, layout: str, *, by_delta_rs: bool
) -> None:
    if by_delta_rs:
        monkeypatch.setattr(delta_small, "REWRITTEN_BYTES_MAX", -1)
    seen = list[TxId]()

    def check(txid: TxId) -> None:
        seen.append(txid)
        unsynced = disk.unsynced(tmp_path / "new")
        assert not unsynced, f"transaction {txid}: {unsynced}"

    run(tmp_path, layout, check)
    assert len(seen) == 8


def synced(disk: SyncedDisk, folder: Path) -> list[Path]:
    """All of the tables that was synced."""
    return [path for path in (folder / "new").rglob("*") if path.stat().st_ino in disk.synced]


@pytest.mark.long("a MERGE: test_what_a_process_has_left_unsynced_is_synced_by_the_next_one")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_synced_where_only_the_process_may_die(tmp_path: Path, disk: SyncedDisk, layout: str) -> None:
    run(tmp_path, layout, lambda _: None, "process")
    assert not synced(disk, tmp_path)


def test_what_a_process_has_left_unsynced_is_synced_by_the_next_one(tmp_path: Path, disk: SyncedDisk) -> None:
    run(tmp_path, "merge", lambda _: None, "process")
    assert disk.unsynced(tmp_path / "new")
    assert not synced(disk, tmp_path)
    run(tmp_path, "merge", lambda _: None)
    for name in ("one", "other", "letters"):
        entries = sorted((tmp_path / "new" / name / "_delta_log").glob("*.json"))[:-1]
        assert not set(map(str, entries)) & set(disk.unsynced(tmp_path / "new"))
    assert tmp_path.stat().st_ino in disk.synced, "the folder that the tables' folder was made in"


def test_a_disk_that_can_not_sync_fails_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OperatingError, match="Input/output error"):
        run(tmp_path, "merge", lambda _: None)
