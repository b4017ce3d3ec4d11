"""Keys that are deleted: by a committer, in tables without the column, and as readers without the state see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.delta.upkeep.background_compaction import BackgroundCompaction
from state.sql.state import SqlMapState
from tests.contract.places import place_of
from tests.contract.states import Place, content
from transactional.errors import ConfigError, SchemaMismatch
from transactional.model.absent import ABSENT
from transactional.model.attempt import TxId

REDIS = pytest.param("redis", marks=pytest.mark.redis)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place for a table."""
    with place_of(request, tmp_path) as place:
        yield place


@pytest.mark.parametrize("place", ["sqlite", "delta-rs", "delta-rs/log"], indirect=True)
def test_a_table_gains_the_column_with_the_fence(place: Place) -> None:
    place.state().put(place.attempt(1, 1), {("cat",): (2,), ("dog",): (1,)})
    state = place.state(deletes=True)
    assert content(place.state()) == {"cat": 2, "dog": 1}, "whoever only opens it changes nothing"
    place.fence(state, 1, 2)
    assert content(state) == {"cat": 2, "dog": 1}
    state.put(place.attempt(2, 3), {("cat",): ABSENT})
    assert content(state) == {"dog": 1}
    assert content(state, 1) == {"cat": 2, "dog": 1}
    with pytest.raises(SchemaMismatch):
        place.state()


def test_a_delta_table_whose_keys_can_be_deleted_says_so(tmp_path: Path) -> None:
    place = Place("delta-rs", tmp_path)
    for deletes in (False, True):
        state = place.state(deletes=deletes)
        place.fence(state, 1, 1 + deletes)
        features = DeltaTable(tmp_path / "table").metadata().configuration.get("transactional.features")
        assert features == ("deletes" if deletes else None)
    with pytest.raises(SchemaMismatch, match="the state needs"):
        place.state(deletes=False)


@pytest.mark.parametrize("layout", ["merge", "log"])
def test_readers_do_not_see_tombstones(layout: str, tmp_path: Path) -> None:
    how = LogLayout(compact_after=None) if layout == "log" else layout
    state = DeltaMapState(tmp_path / "t", "word string", "count long", layout=how, deletes=True)
    place = Place("delta-rs", tmp_path)
    state.open("words/count", place.txids.__getitem__)
    state.put(place.attempt(1, 1), {("cat",): (1,), ("dog",): (2,)})
    state.put(place.attempt(2, 2), {("cat",): ABSENT, ("owl",): (3,)})
    typed = DeltaMapState(tmp_path / "t", "word string", "count long")
    for reader in (state, typed, DeltaMapState(tmp_path / "t", "word")):
        for committed_txid, expected in ((None, {"dog": 2, "owl": 3}), (TxId(1), {"cat": 1, "dog": 2})):
            assert by_word(reader.read(committed_txid)) == expected
            sql = reader.view("t", dialect="datafusion", committed_txid=committed_txid)
            found = QueryBuilder().register("t", DeltaTable(tmp_path / "t")).execute(sql).read_all()
            assert by_word(pa.table(found)) == expected
    state.close()


def by_word(rows: pa.Table) -> dict[str, int]:
    return {row["word"]: row["count"] for row in rows.to_pylist()}


def test_a_compaction_removes_tombstones_for_good(tmp_path: Path) -> None:
    state = DeltaMapState(
        tmp_path / "t", "word string", "count long", layout=LogLayout(compact_after=None), deletes=True
    )
    place = Place("delta-rs", tmp_path)
    state.open("words/count", place.txids.__getitem__)
    state.put(place.attempt(1, 1), {("cat",): (1,), ("dog",): (2,)})
    state.put(place.attempt(2, 2), {("cat",): ABSENT})
    state.put(place.attempt(3, 3), {("owl",): (3,)})
    state.compact()
    rows = DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()
    assert sorted(row["word"] for row in rows) == ["dog", "owl"]
    assert content(state) == {"dog": 2, "owl": 3}


def test_compactions_that_are_written_apart_keep_tombstones_until_nothing_is_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a base of three keys one is deleted, and comes back; then all are."""
    monkeypatch.setattr("state.delta.upkeep.background_compaction.BACKGROUND_ROWS", 0)
    monkeypatch.setattr("state.delta.segments.log_layout.BASE_SHARE", 10.0)
    monkeypatch.setattr("state.delta.segments.log_layout.FAN_OUT", 2)
    layout = LogLayout(compact_after=1)
    state = DeltaMapState(tmp_path / "t", "word string", "count long", layout=layout, deletes=True)
    place, model = Place("delta-rs", tmp_path), dict[str, int]()
    state.open("words/count", place.txids.__getitem__)
    changes: list[dict[str, int | None]] = [{"cat": 1, "dog": 2, "owl": 3}, {}, {"cat": None}, {"dog": 5}, {}]
    changes += [{"cat": 7}, {"dog": None, "emu": 1}, {"cat": None}, {"owl": None}, {"emu": None}, {}, {}]
    for txid, change in enumerate(changes, 1):
        before = dict(model)
        rows = {(word,): ABSENT if count is None else (count,) for word, count in change.items()}
        state.put(place.attempt(txid, txid), rows)
        model = {word: count for word, count in (model | change).items() if count is not None}
        assert content(state) == model
        state.parts.maintenance.maintain(TxId(txid), lambda: True)
        apart: BackgroundCompaction = state.open_table.upkeep.compactor.background  # type: ignore[attr-defined]
        if apart._future is not None:
            apart._future.exception(timeout=240)
        assert content(state) == model
        assert content(state, txid - 1) == before
    assert model == {}
    assert (state.open_table.reader.compacted_txid or 0) > 6
    state.close()


def test_a_column_called_deleted_may_be_a_key(tmp_path: Path) -> None:
    """Where keys are not deleted it is a name like any other; where they are, the state's own may be renamed."""
    place = Place("delta-rs", tmp_path)
    with pytest.raises(ConfigError, match="'deleted' and 'deleted' collide"):
        place.state("deleted string", deletes=True)
    plain = SqlMapState(f"sqlite:///{tmp_path}/s.db", "t", "deleted string", "count long")
    renamed = {"deleted": "gone"}
    marked = DeltaMapState(tmp_path / "t", "deleted string", "count long", deletes=True, columns=renamed)
    for state in (plain, marked):
        state.open("words/count", place.txids.__getitem__)
        state.put(place.attempt(1, 1), {("yes",): (1,), ("no",): (2,)})
        assert content(state) == {"yes": 1, "no": 2}
    marked.put(place.attempt(2, 2), {("yes",): ABSENT})
    assert content(marked) == {"no": 2}
    assert DeltaMapState(tmp_path / "t", "deleted", columns=renamed).read().to_pylist() == [
        {"deleted": "no", "count": 2}
    ]
    plain.close()
