"""A state that gains value columns: its table gets them with the fence, and what was there stays as it was."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema

from spouts.memory import MemoryTransactionalSpout
from state.delta.state import DeltaMapState
from state.delta.tables.table import DeltaLocation
from state.delta.write import engine_commits as commit
from state.delta.write.loaded_table import LoadedTable
from state.sql.state import SqlMapState
from tests.contract.places import place_of
from tests.contract.states import OWNER, STAGED, Place, always, look_up_always
from transactional.core.ports import Partials, StateKind
from transactional.errors import Fenced, SchemaMismatch, TopologyChanged
from transactional.model.aggregates import Aggregate, Count, Max, Sum
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.operations.launch.running import run_topology
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from verifier.checker import CheckedTable, verify
from verifier.sql_tables import CheckedSqlTable

pytestmark = pytest.mark.sampled(3)
BEFORE, AFTER = "count long", "count long, `miles%` double, last string"
SUMS = {"count": "sum", "miles%": "sum", "last": "last"}
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
DELTA = ["delta-rs", "delta-rs/merge", "delta-rs/log", "delta-rs/lookup", *(f"delta-rs/{layout}" for layout in STAGED)]


@pytest.fixture(params=[*DATABASES, *DELTA])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place for a table."""
    with place_of(request, tmp_path) as place:
        yield place


def opened(place: Place, values: str, key: str = "word string", **options: Any) -> Any:
    return place.state(key, values, **options)


def counted(place: Place, words: dict[str | None, int], txid: int = 1, **options: Any) -> None:
    """A transaction of the state as it was before."""
    merge(opened(place, BEFORE, **options), place.attempt(txid, txid), {w: (n,) for w, n in words.items()})


def fenced(place: Place, values: str = AFTER, *, fence: int = 10, txid: int = 1, **options: Any) -> Any:
    """The state as it is now, once its coordinator has taken the lead."""
    state = opened(place, values, **options)
    state.version()
    state.fence(place.attempt(txid, fence).attempt_id)
    return state


def merge(state: Any, attempt: TransactionAttempt, rows: dict[str | None, tuple[Any, ...]]) -> None:
    names = state.values.names
    table = pa.Table.from_pylist([{"word": w, **dict(zip(names, v, strict=True))} for w, v in rows.items()])
    state.merge(attempt, Partials(combine={name: SUMS[name] for name in names}, table=table))


def rows(state: Any, committed_txid: int | None = None) -> dict[str | None, tuple[Any, ...]]:
    return {row.pop("word"): tuple(row.values()) for row in state.read(committed_txid).to_pylist()}


@pytest.mark.sampled(5)
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", [*DATABASES, "delta-rs/log"], indirect=True)
def test_a_reader_that_was_there_before_finds_the_new_values(place: Place) -> None:
    counted(place, {"cat": 3})
    reader = opened(place, AFTER).reader(OWNER)
    reader.pin()
    assert reader.rows(TxId(1)).to_pylist() == [{"word": "cat", "count": 3, "miles%": None, "last": None}]
    reader.release()
    merge(fenced(place), place.attempt(2, 11), {"cat": (1, 2.5, "x")})
    reader.pin()
    assert reader.rows(TxId(2)).to_pylist() == [{"word": "cat", "count": 4, "miles%": 2.5, "last": "x"}]
    reader.close()


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


@pytest.mark.parametrize("place", [*DATABASES, *DELTA, pytest.param("redis", marks=pytest.mark.redis)], indirect=True)
def test_columns_are_found_by_their_names_in_whatever_order_they_are_declared(place: Place) -> None:
    def declared(*, turned: bool = False) -> Any:
        key, values = ("b long, a string", "m long, n long") if turned else ("a string, b long", "n long, m long")
        return place.state(key, values)

    def add(state: Any, txid: int, attempt: int, *rows: tuple[str, int, int, int]) -> None:
        table = pa.Table.from_pylist([dict(zip("abnm", row, strict=True)) for row in rows])
        table = table.select([*state.key.names, *state.values.names])
        state.merge(place.attempt(txid, attempt), Partials(combine={"n": "sum", "m": "sum"}, table=table))

    def found(state: Any, txid: int | None = None) -> set[tuple[Any, ...]]:
        return {tuple(row[name] for name in "abnm") for row in state.read(txid).to_pylist()}

    add(declared(), 1, 1, ("x", 1, 10, 100), ("x", 2, 20, 200))
    add(declared(), 2, 2, ("x", 1, 1, 1))
    state = declared(turned=True)
    add(state, 2, 3, ("x", 1, 2, 3))
    assert found(state) == found(declared()) == {("x", 1, 12, 103), ("x", 2, 20, 200)}
    assert found(state, 1) == {("x", 1, 10, 100), ("x", 2, 20, 200)}
    assert state.get(place.attempt(3, 4), [(1, "x")]) == {(1, "x"): (103, 12)}
    add(declared(), 3, 4, ("x", 2, 1, 1))
    assert found(declared(turned=True)) == {("x", 1, 12, 103), ("x", 2, 21, 201)}


def test_a_column_that_others_have_added_is_not_taken_for_the_state_s(place: Place) -> None:
    if "/" in place.engine and place.engine != "delta-rs/merge":
        return  # a column of a log has nothing that keeps its history beside it
    counted(place, {"cat": 3})
    if place.url:
        other = SqlMapState(place.url, "a table", "word string", AFTER)
        with other._database.writing() as connection:
            connection.exec_driver_sql('ALTER TABLE "a table" ADD COLUMN last INTEGER')
        other.close()
    else:
        last = pa.schema([pa.field("last", pa.string())])
        DeltaTable(place.folder / "table").alter.add_columns(DeltaSchema.from_arrow(last).fields)
    with pytest.raises(SchemaMismatch):
        opened(place, AFTER)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("engine", [*DELTA, "delta-rs/log, looked up in files"])
def test_what_was_there_is_compacted_with_what_comes(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of before, which lack the columns, and files of after are read as one."""
    engine, _, in_files = engine.partition(", looked")
    if in_files:
        monkeypatch.setattr("state.delta.read.table_reader.CACHED_ROWS_MAX", -1)
    elif "lookup" in engine:
        look_up_always(monkeypatch)
    place = Place(engine, tmp_path)
    for txid in (1, 2, 3):
        counted(place, {"cat": 1, f"bird {txid}": txid}, txid=txid)
    state = fenced(place, txid=3)
    assert state.get(place.attempt(4, 11), [("cat",)]) == {("cat",): (3, None, None)}
    for txid in (4, 5, 6):
        merge(state, place.attempt(txid, 10 + txid), {"cat": (1, 1.5, f"at {txid}"), "bird 2": (1, None, None)})
        assert state.get(place.attempt(txid + 1, 20 + txid), [("cat",)]) == {
            ("cat",): (txid, 1.5 * (txid - 3), f"at {txid}")
        }
    state.compact()
    state.parts.maintenance.maintain(TxId(6), always)
    after = {"bird 1": (1, None, None), "bird 2": (5, None, None), "bird 3": (3, None, None), "cat": (6, 4.5, "at 6")}
    assert rows(state) == after
    assert rows(DeltaMapState(tmp_path / "table", "word string", AFTER)) == after
    place.close()


def test_another_writer_s_upkeep_between_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns are added over the version that was read and checked; one that has moved is looked at again."""
    place = Place("delta-rs/merge", tmp_path)
    counted(place, {"cat": 3})
    settle, came = commit.settle_columns, list[LoadedTable]()

    def disturbed(table: LoadedTable) -> None:
        if not came:
            DeltaTable(place.folder / "table").alter.set_table_properties({"delta.checkpointInterval": "77"})
            came.append(table)
        settle(table)

    monkeypatch.setattr("state.delta.state.settle_columns", disturbed)
    assert rows(fenced(place)) == {"cat": (3, None, None)}
    assert came
    added, theirs, fence, *_ = DeltaTable(place.folder / "table").history()
    assert "userMetadata" not in theirs
    assert json.loads(added["userMetadata"])["owner"] == json.loads(fence["userMetadata"])["owner"] == OWNER
    place.close()


def test_who_was_taken_over_meanwhile_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("delta-rs", tmp_path)
    counted(place, {"cat": 3})
    late, other = opened(place, AFTER), opened(place, BEFORE)
    write, came = late.open_table.write_version, list[AttemptId]()

    def overtaken(attempt_id: AttemptId, *given: Any) -> None:
        write(attempt_id, *given)
        if not came:
            came.append(attempt_id)
            place.fence(other, 1, 11)

    monkeypatch.setattr(late.open_table, "write_version", overtaken)
    late.version()
    with pytest.raises(Fenced):
        late.fence(place.attempt(1, 10).attempt_id)
    assert rows(opened(place, BEFORE)) == {"cat": (3,)}
    place.close()


# --- a whole topology -------------------------------------------------------------------------------------------------


def build(state: Any, journeys: list[tuple[str, int]], **aggregates: Aggregate) -> Topology:
    spout = MemoryTransactionalSpout([journeys], "word string, miles long", take=1)
    builder = TransactionalTopologyBuilder("journeys", "spout", spout)
    builder.set_committer_bolt("count", state.aggregate(aggregates)).fields_grouping("spout", "word")
    return builder.build()


def new_state(place: Place) -> Any:
    if place.url:
        return SqlMapState(place.url, "journeys", "word string")
    layout = "log" if place.engine.endswith(("log", "lookup")) else "auto"
    return DeltaMapState(place.folder / "journeys", "word string", layout=layout)


def checked(place: Place) -> Any:
    if place.url:
        return CheckedSqlTable("count", place.url, "journeys", counts="count")
    return CheckedTable("count", DeltaLocation.parse(place.folder / "journeys").uri, counts="count")


def test_a_topology_gains_a_column_when_the_change_is_accepted(place: Place, tmp_path: Path) -> None:
    run: Any = partial(run_topology, store=f"sqlite:///{tmp_path}/coordinator.db", master="none")
    drained = {"config": {"stop_when_drained": True}}
    journeys = [("cat", 2), ("dog", 3), ("cat", 4)]
    run(build(new_state(place), journeys, count=Count()), **drained)
    more = [*journeys, ("cat", 5), ("emu", 1)]
    state = new_state(place)
    after = build(state, more, count=Count(), miles=Sum("miles"))
    with pytest.raises(TopologyChanged, match=r'count\.values: stored "count long", given "count long, miles long"'):
        run(after, **drained)
    run(after, accept_changes=True, **drained)
    place.opened.append(state)
    assert rows(state) == {"cat": (3, 5), "dog": (1, None), "emu": (1, 1)}
    assert verify(f"sqlite:///{tmp_path}/coordinator.db", "journeys", [checked(place)]).findings == ()


@pytest.mark.parametrize("accept", [False, True])
def test_a_column_does_not_go_on_as_another_aggregate(place: Place, tmp_path: Path, accept: bool) -> None:  # noqa: FBT001
    """What was added up is no maximum, whatever its user accepts."""
    run: Any = partial(run_topology, store=f"sqlite:///{tmp_path}/coordinator.db", master="none")
    drained = {"config": {"stop_when_drained": True}}
    run(build(new_state(place), [("cat", 2), ("cat", 3)], miles=Sum("miles")), **drained)
    state = new_state(place)
    with pytest.raises(TopologyChanged, match=r"column 'miles' values that are combined by sum, and .* them by max"):
        run(build(state, [("cat", 2), ("cat", 3), ("cat", 4)], miles=Max("miles")), accept_changes=accept, **drained)
    place.opened.append(state)
    assert rows(state) == {"cat": (5,)}
