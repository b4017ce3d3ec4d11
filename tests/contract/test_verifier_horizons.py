"""The independent checker over tables whose rows expire: right ones pass, and a horizon that is not its batch's is
reported. What is left in the end is computed again from the source and the recorded facts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.memory import MemoryMapState
from state.sql.state import SqlMapState
from transactional import KeyValueState, StatefulBolt, Topology, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.model.aggregates import Count, Max
from transactional.runtime.engine.clock import SystemClock
from verifier.checker import CheckedTable, verify
from verifier.evidence.findings import Kind, Report
from verifier.evidence.store import Store
from verifier.horizons import ExpiryRule
from verifier.sql_tables import CheckedSqlTable

LAYOUTS = ("merge", "log", "sqlite")
AFTER_MS = 60
EXPIRES = ExpiryRule("at", AFTER_MS * 1_000)


class FailsWhenAllIsWritten(StatefulBolt):
    """Now and then an attempt fails once all tables are written."""

    state = "word string -> count long"
    failed: int = 0

    def init_state(self, state: KeyValueState) -> None:
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        """Nothing is kept."""

    def pre_commit(self, txid: int) -> None:
        if txid % 3 == 0 and FailsWhenAllIsWritten.failed < txid:
            FailsWhenAllIsWritten.failed = txid
            raise ValueError("once per such transaction")


def words(later: timedelta) -> list[tuple[str, datetime | None]]:
    """Words that were seen about now, before and after, or later; the first are at or below the first horizon."""
    random, now = Random(7), datetime.fromtimestamp(SystemClock().wall_ms() // 1_000, UTC) + later
    return [
        (f"w{random.randrange(8)}", now + timedelta(milliseconds=random.randrange(-200, 1_500)) if number % 7 else None)
        for number in range(60)
    ]


def state_of(layout: str, folder: Path) -> Any:
    goes: dict[str, Any] = {"expires": "at", "after": f"{AFTER_MS} milliseconds"}
    if layout == "sqlite":
        return SqlMapState(f"sqlite:///{folder}/states.db", "counts", **goes)
    how = LogLayout(compact_after=3) if layout == "log" else layout
    return DeltaMapState(folder / "counts", layout=how, **goes)


def topology_of(layout: str, folder: Path, tuples: list[Any], *, opaque: bool) -> Topology:
    spout = (OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout)(
        [tuples], "word string, at timestamp", 3
    )
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    update = state_of(layout, folder).aggregate(count=Count(), at=Max("at")).group_by("word")
    builder.set_committer_bolt("count", update).fields_grouping("spout", "word")
    builder.set_stateful_bolt("fails", FailsWhenAllIsWritten(), state=MemoryMapState()).fields_grouping("spout", "word")
    return builder.build()


def run(layout: str, folder: Path, *, opaque: bool = True, later: timedelta = timedelta(0)) -> list[Any]:
    """Until all is committed; the tuples."""
    FailsWhenAllIsWritten.failed = 0
    tuples, config = words(later), {"stop_when_drained": True, "retry_pause_ms": 1}
    topology = topology_of(layout, folder, tuples, opaque=opaque)
    summary = run_topology(topology, store=f"sqlite:///{folder}/store.db", config=config, master="none")
    assert summary.failures
    return tuples


def checked(layout: str, folder: Path) -> Report:
    store = f"sqlite:///{folder}/store.db"
    if layout == "sqlite":
        return verify(
            store, "words", [CheckedSqlTable("count", f"sqlite:///{folder}/states.db", "counts", expires=EXPIRES)]
        )
    return verify(store, "words", [CheckedTable("count", str(folder / "counts"), expires=EXPIRES)])


def computed(folder: Path, tuples: list[Any]) -> Mapping[str, tuple[int, datetime | None]]:
    """Word → count and time, by the batches and the times that the store has recorded."""
    store = Store(f"sqlite:///{folder}/store.db")
    batches = store.history("words").committed
    store.close()
    found = dict[str, tuple[int, datetime | None]]()
    for batch in batches:
        assert batch.time_ms is not None
        horizon = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=batch.time_ms - AFTER_MS)
        found = {word: row for word, row in found.items() if row[1] is None or row[1] > horizon}
        new = dict[str, tuple[int, datetime | None]]()
        for start, until, _ in batch.ranges.values():
            for word, at in tuples[start:until]:
                count, known = new.get(word, (0, None))
                new[word] = count + 1, max((each for each in (at, known) if each is not None), default=None)
        for word, (count, at) in new.items():
            before, known = found.get(word, (0, None))
            found[word] = before + count, max((each for each in (at, known) if each is not None), default=None)
        found = {word: row for word, row in found.items() if row[1] is None or row[1] > horizon}
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("opaque", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_there_is_computed_again_from_the_source(layout: str, tmp_path: Path, *, opaque: bool) -> None:
    tuples = run(layout, tmp_path, opaque=opaque)
    rows = state_of_known(layout, tmp_path).read().to_pylist()
    assert {row["word"]: (row["count"], row["at"]) for row in rows} == computed(tmp_path, tuples)
    report = checked(layout, tmp_path)
    assert report.findings == ()
    assert report.checked["expiry horizons"] >= (1 if layout == "sqlite" else 20)


def state_of_known(layout: str, folder: Path) -> Any:
    if layout != "sqlite":
        return DeltaMapState(folder / "counts", key="word")
    url, goes = f"sqlite:///{folder}/states.db", {"expires": "at", "after": "1 day"}
    return SqlMapState(url, "counts", "word string", "count long, at timestamp", **goes)  # type: ignore[arg-type]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_horizon_that_is_not_that_of_its_batch_is_reported(layout: str, tmp_path: Path) -> None:
    run(layout, tmp_path)
    with sqlite3.connect(tmp_path / "store.db") as store:
        newest = "(SELECT max(txid) FROM transactional_attempts WHERE batch IS NOT NULL)"
        for rowid, batch in store.execute(
            f"SELECT rowid, batch FROM transactional_attempts WHERE txid = {newest}"
        ).fetchall():
            document = json.loads(batch)
            document["facts"][0] += 1
            store.execute("UPDATE transactional_attempts SET batch = ? WHERE rowid = ?", (json.dumps(document), rowid))
    store.close()
    found = checked(layout, tmp_path).findings
    assert [finding.kind for finding in found] == [Kind.BROKEN_ROW]
    assert "by its batch" in str(found[0])


def test_a_row_that_goes_too_early_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from state.delta.write import change

    has_expired = change._has_expired

    def too_early(expiry: Any, horizon: int | None) -> Any:
        return has_expired(expiry, None if horizon is None else horizon + 10**12)

    monkeypatch.setattr(change, "_has_expired", too_early)
    run("merge", tmp_path, later=timedelta(hours=1))
    assert Kind.PARTLY_VISIBLE in {finding.kind for finding in checked("merge", tmp_path).findings}
