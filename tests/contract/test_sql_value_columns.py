"""A SQL state that gains value columns: its table gets them with the fence, and what was there stays as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts.memory import MemoryTransactionalSpout
from state.sql.state import SqlMapState
from tests.contract.states import OWNER, Place
from tests.contract.storages import Storage
from transactional.aggregates import Aggregate, Count, Sum
from transactional.attempt import AttemptId, TransactionAttempt
from transactional.errors import Fenced, SchemaMismatch, TopologyChanged
from transactional.ports import Partials, StateKind
from transactional.running import run_topology
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from verifier.checker import verify
from verifier.sql_tables import CheckedSqlTable

BEFORE, AFTER = "count long", "count long, `miles%` double, last string"
SUMS = {"count": "sum", "miles%": "sum", "last": "last"}


@pytest.fixture
def place(database: Storage, tmp_path: Path) -> Iterator[Place]:
    place = Place("sql", tmp_path, url=database.url or "")
    yield place
    place.close()


def opened(place: Place, values: str, key: str = "word string", **options: Any) -> SqlMapState:
    state = SqlMapState(place.url, "a table", key, values, **options)
    place.opened.append(state)
    state.open(OWNER, place.txids.__getitem__)
    return state


def counted(place: Place, words: dict[str | None, int], txid: int = 1, **options: Any) -> None:
    """A transaction of the state as it was before."""
    merge(opened(place, BEFORE, **options), place.attempt(txid, txid), {w: (n,) for w, n in words.items()})


def fenced(place: Place, values: str = AFTER, *, fence: int = 10, txid: int = 1, **options: Any) -> SqlMapState:
    """The state as it is now, once its coordinator has taken the lead."""
    state = opened(place, values, **options)
    state.version()
    state.fence(place.attempt(txid, fence).attempt_id)
    return state


def merge(state: SqlMapState, attempt: TransactionAttempt, rows: dict[str | None, tuple[Any, ...]]) -> None:
    names = state.values.names
    table = pa.Table.from_pylist([{"word": w, **dict(zip(names, v, strict=True))} for w, v in rows.items()])
    state.merge(attempt, Partials(combine={name: SUMS[name] for name in names}, table=table))


def rows(state: SqlMapState, committed_txid: int | None = None) -> dict[str | None, tuple[Any, ...]]:
    return {row.pop("word"): tuple(row.values()) for row in state.read(committed_txid).to_pylist()}  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
def test_rows_of_before_have_null_and_their_values(place: Place, kind: StateKind) -> None:
    counted(place, {"cat": 3, "dog": 1, None: 2}, kind=kind)
    state = fenced(place, kind=kind)
    assert rows(state) == {"cat": (3, None, None), "dog": (1, None, None), None: (2, None, None)}
    merge(state, place.attempt(2, 11), {"cat": (1, 2.5, "x"), None: (1, 0.5, None), "emu": (1, 1.5, "y")})
    after = {"cat": (4, 2.5, "x"), "dog": (1, None, None), None: (3, 0.5, None), "emu": (1, 1.5, "y")}
    assert rows(state) == after
    # Previous values are those of before the column was there.
    assert rows(state, 1) == {"cat": (3, None, None), "dog": (1, None, None), None: (2, None, None)}
    merge(opened(place, AFTER, kind=kind), place.attempt(3, 12), {"cat": (1, 2.5, "z")})
    assert rows(state) == {**after, "cat": (5, 5.0, "z")}


def test_a_transaction_of_before_is_replayed_with_the_new_columns(place: Place) -> None:
    counted(place, {"cat": 3})
    counted(place, {"cat": 1, "dog": 1}, txid=2)
    state = fenced(place, txid=2)
    merge(state, place.attempt(2, 11), {"cat": (5, 1.0, "x")})
    assert rows(state) == {"cat": (8, 1.0, "x")}
    assert state.get(place.attempt(2, 11), [("cat",), ("dog",)]) == {("cat",): (3, None, None)}


def test_nothing_is_added_before_the_fence(place: Place) -> None:
    """A start that is refused between leaves the table to the program of before."""
    counted(place, {"cat": 3})
    refused = opened(place, AFTER)
    assert refused.version() == 1
    counted(place, {"cat": 1}, txid=2)
    assert rows(opened(place, BEFORE)) == {"cat": (4,)}


def test_it_is_reported(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    counted(place, {"cat": 3})
    with caplog.at_level(logging.WARNING):
        fenced(place)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "columns miles%, last added; the existing rows have NULL in them"
    ]
    caplog.clear()
    fenced(place, fence=11)
    assert caplog.records == []


def test_of_two_coordinators_one_adds_them(place: Place) -> None:
    counted(place, {"cat": 3})
    late = opened(place, AFTER)
    late.version()
    state = fenced(place, fence=11)
    with pytest.raises(Fenced):
        late.fence(AttemptId(10))
    late.version()
    late.fence(place.attempt(1, 12).attempt_id)
    assert rows(state) == rows(late) == {"cat": (3, None, None)}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ("`miles%` double", "word string"),
        ("count int, last string", "word string"),
        ("count long, last string", "word string, language string"),
        ("count long, last string", "language string"),
        ("prev_count_ long", "word string"),
    ],
)
def test_any_other_change_is_refused(place: Place, values: str, key: str) -> None:
    counted(place, {"cat": 3})
    with pytest.raises(SchemaMismatch, match="value columns can be added, but nothing else can change"):
        opened(place, values, key)


def test_a_column_that_others_have_added_is_not_taken_for_the_state_s(place: Place) -> None:
    counted(place, {"cat": 3})
    other = SqlMapState(place.url, "a table", "word string", AFTER)
    with other._database.writing() as connection:
        connection.exec_driver_sql('ALTER TABLE "a table" ADD COLUMN last INTEGER')
    with pytest.raises(SchemaMismatch):
        opened(place, AFTER)
    other.close()


def build(place: Place, journeys: list[tuple[str, int]], **aggregates: Aggregate) -> Topology:
    spout = MemoryTransactionalSpout([journeys], "word string, miles long", take=1)
    builder = TransactionalTopologyBuilder("journeys", "spout", spout)
    update = SqlMapState(place.url, "journeys", "word string").aggregate(aggregates)
    builder.set_committer_bolt("count", update).fields_grouping("spout", "word")
    return builder.build()


def test_a_topology_gains_a_column_when_the_change_is_accepted(place: Place, tmp_path: Path) -> None:
    run: Any = partial(run_topology, store=f"sqlite:///{tmp_path}/coordinator.db", master="none")
    drained = {"config": {"stop_when_drained": True}}
    journeys = [("cat", 2), ("dog", 3), ("cat", 4)]
    run(build(place, journeys, count=Count()), **drained)
    after = build(place, [*journeys, ("cat", 5), ("emu", 1)], count=Count(), miles=Sum("miles"))
    with pytest.raises(TopologyChanged, match=r'count\.values: stored "count long", given "count long, miles long"'):
        run(after, **drained)
    run(after, accept_changes=True, **drained)
    state = SqlMapState(place.url, "journeys", "word string", "count long, miles long")
    place.opened.append(state)
    assert rows(state) == {"cat": (3, 5), "dog": (1, None), "emu": (1, 1)}
    table = CheckedSqlTable("count", place.url, "journeys", counts="count")
    assert verify(f"sqlite:///{tmp_path}/coordinator.db", "journeys", [table]).findings == ()
