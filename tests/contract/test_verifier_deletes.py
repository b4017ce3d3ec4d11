"""The independent checker over tables whose keys are deleted: right ones pass, each falsified tombstone is reported."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.sql.state import SqlMapState
from transactional import KeyValueState, StatefulBolt, TransactionalTopologyBuilder, Tuple, run_topology
from verifier.checker import CheckedTable, verify
from verifier.evidence.findings import Kind, Report
from verifier.sql_tables import CheckedSqlTable

WORDS = [[(f"w{Random(number).randrange(6)}",) for number in range(60)]]

COMPACTION = "words/count#compaction"


class CountsToThree(StatefulBolt):
    """Counts words; of one that came three times nothing is left. Now and then an attempt fails when it has written."""

    state = "word string -> count long"
    failed: int = 0

    def init_state(self, state: KeyValueState) -> None:
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        count = self.counts.get(tuple.word, 0) + 1
        if count == 3:
            self.counts.delete(tuple.word)
        else:
            self.counts.put(tuple.word, count)

    def pre_commit(self, txid: int) -> None:
        if txid % 3 == 0 and CountsToThree.failed < txid:
            CountsToThree.failed = txid
            raise ValueError("once per such transaction")


class OtherEveryTime(OpaqueMemoryTransactionalSpout):
    """A replay is another batch."""

    def plan(self, *given: Any, **named: Any) -> Any:
        self.take = 2 + ((self.take or 0) + 1) % 5
        return super().plan(*given, **named)


def state_of(layout: str, folder: Path) -> Any:
    if layout == "sqlite":
        return SqlMapState(f"sqlite:///{folder}/states.db", "counts", deletes=True)
    how = LogLayout(compact_after=2) if layout == "log" else layout
    return DeltaMapState(folder / "counts", layout=how, deletes=True)


def run(layout: str, folder: Path, *, opaque: bool = True) -> None:
    """Until all is committed."""
    spout = (OtherEveryTime if opaque else MemoryTransactionalSpout)(WORDS, "word string", 3)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    builder.set_stateful_bolt("count", CountsToThree(), state=state_of(layout, folder)).fields_grouping("spout", "word")
    CountsToThree.failed = 0
    config = {"stop_when_drained": True, "retry_pause_ms": 1}
    summary = run_topology(builder.build(), store=f"sqlite:///{folder}/store.db", config=config, master="none")
    assert summary.failures


def report(layout: str, folder: Path) -> Report:
    table: Any = CheckedTable("count", str(folder / "counts"))
    if layout == "sqlite":
        table = CheckedSqlTable("count", f"sqlite:///{folder}/states.db", "counts")
    return verify(f"sqlite:///{folder}/store.db", "words", [table])


LAYOUTS = ["sqlite", "merge", "log"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_deletes_and_their_replays_are_right(layout: str, tmp_path: Path, *, opaque: bool) -> None:
    run(layout, tmp_path, opaque=opaque)
    expected = {word: left for word in {w for (w,) in WORDS[0]} if (left := WORDS[0].count((word,)) % 3)}
    rows = (DeltaMapState(tmp_path / "counts", "word") if layout != "sqlite" else typed(tmp_path)).read().to_pylist()
    assert {row["word"]: row["count"] for row in rows} == expected
    found = report(layout, tmp_path)
    assert found.findings == ()
    assert found.checked["rows"] > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("opaque", [False, True])
def test_a_table_that_is_given_the_log_layout_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, opaque: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.WORDS", [WORDS[0][:24]])
        run("merge", tmp_path, opaque=opaque)
    run("log", tmp_path, opaque=opaque)
    assert DeltaTable(tmp_path / "counts").metadata().partition_columns == ["txid"]
    found = report("log", tmp_path)
    assert found.findings == ()
    assert found.checked["compactions"] > 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("later", "lost"), [(0, 0), (1, 0), (0, 1)])
def test_it_has_to_hold_the_rows_that_were_there(tmp_path: Path, later: int, lost: int) -> None:
    run("merge", tmp_path)
    table = DeltaTable(tmp_path / "counts")
    rows = table.to_pyarrow_table()
    alive = rows.filter(pc.invert(rows["deleted"])).select(["word", "count", "deleted"])
    txid, version = pc.max(rows["txid"]).as_py() + later, table.transaction_version("words/count")
    assert version is not None
    table.alter.set_table_properties({"transactional.combine": '{"count": "last"}'}, raise_if_not_exists=False)
    under = CommitProperties(app_transactions=[Transaction("words/count", version), Transaction(COMPACTION, txid)])
    segment = alive.slice(lost).append_column("txid", pa.repeat(pa.scalar(txid, pa.int64()), alive.num_rows - lost))
    how: dict[str, Any] = {"mode": "overwrite", "schema_mode": "overwrite", "partition_by": ["txid"]}
    write_deltalake(table, segment, commit_properties=under, **how)
    kinds = {finding.kind for finding in report("log", tmp_path).findings}
    if later:
        assert Kind.PARTLY_VISIBLE in kinds
    else:
        assert kinds == ({Kind.BROKEN_ROW} if lost else set())


def typed(folder: Path) -> SqlMapState:
    return SqlMapState(f"sqlite:///{folder}/states.db", "counts", "word string", "count long", deletes=True)


def in_sqlite(statement: str) -> Callable[[Path], None]:
    def falsify(folder: Path) -> None:
        with sqlite3.connect(folder / "states.db") as rows:
            assert rows.execute(statement).rowcount

    return falsify


def in_delta(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    """The files of the newest version hold something else."""

    def falsify(folder: Path) -> None:
        table = DeltaTable(folder / "counts")
        version = table.transaction_version("words/count")
        assert version is not None
        properties = CommitProperties(app_transactions=[Transaction("words/count", version + 1_000)])
        rows = change(table.to_pyarrow_table())
        write_deltalake(table, rows, mode="overwrite", commit_properties=properties)

    return falsify


def revived(rows: pa.Table) -> pa.Table:
    """A tombstone that has a value."""
    first = pa.array([number == 0 for number in range(rows.num_rows)])
    return rows.set_column(rows.column_names.index("deleted"), "deleted", pc.if_else(first, True, False))


FALSIFIED = [
    ("sqlite", in_sqlite("UPDATE counts SET deleted = 1 WHERE word = (SELECT min(word) FROM counts)")),
    ("sqlite", in_sqlite("INSERT INTO counts (word, txid, deleted) VALUES ('ghost', 3, 1)")),
    ("merge", in_delta(revived)),
]


@pytest.mark.parametrize(("layout", "falsify"), FALSIFIED)
def test_a_false_tombstone_is_found(layout: str, falsify: Callable[[Path], None], tmp_path: Path) -> None:
    run(layout, tmp_path)
    falsify(tmp_path)
    assert Kind.BROKEN_ROW in {finding.kind for finding in report(layout, tmp_path).findings}
