"""What every state promises to those who only read it from outside, wherever it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from state.delta.state import DeltaMapState
from state.memory import MemoryMapState
from state.sql.state import SqlMapState
from tests.contract.places import place_of
from tests.contract.states import OWNER, AnyState, Place, counts
from transactional.core.ports import Partials
from transactional.errors import ConfigError, OperatingError
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TxId
from transactional.model.reading import StateReader

pytestmark = pytest.mark.sampled(3)
ENGINES = [
    *("memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)),
    *("delta-rs", "delta-rs/files", "delta-rs/files, lookup"),
    *("delta-rs/log", "delta-rs/lookup", "delta-rs/staged and compacted"),
    pytest.param("redis", marks=pytest.mark.redis),
]


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place for a table."""
    with place_of(request, tmp_path) as place:
        yield place


def seen(table: pa.Table) -> dict[Any, Any]:
    """Values by key; keys of one column are plain."""
    *_, value = table.column_names
    keys = [tuple(row[name] for name in table.column_names[:-1]) for row in table.to_pylist()]
    found = {key[0] if len(key) == 1 else key: n for key, n in zip(keys, table[value].to_pylist(), strict=True)}
    assert len(found) == table.num_rows, "a key has two rows"
    return found


def read(state: AnyState, reader: StateReader, txid: int, keys: list[Any]) -> dict[Any, Any]:
    """All rows as of a transaction; a look-up of some keys gives the same."""
    rows = seen(reader.rows(TxId(txid)))
    names = state.key.names
    columns = list(zip(*(key if isinstance(key, tuple) else (key,) for key in keys), strict=True))
    asked = pa.table(dict(zip(names, columns, strict=True)), schema=arrow_schema(state.key))
    found = seen(reader.lookup(TxId(txid), asked))
    assert {key: n for key, n in found.items() if key in keys} == {key: n for key, n in rows.items() if key in keys}
    assert {key: rows[key] for key in found} == found
    return rows


HISTORY: list[dict[Any, int]] = [{"a": 1, "b": 2}, {"b": 3, None: 1}, {}, {"a": 5, "c": 1}, {"a": 1}, {"d": 4, None: 2}]


def totals(until: int) -> Mapping[Any, int]:
    """The sums of the first transactions."""
    found: dict[Any, int] = {}
    for each in HISTORY[:until]:
        for key, n in each.items():
            found[key] = found.get(key, 0) + n
    return found


def test_what_a_database_has_pinned_stays(place: Place) -> None:
    """A writer does not wait for a reader, and the reader does not see it."""
    state = place.state()
    place.fence(state, 0, 1)
    state.merge(place.attempt(1, 2), counts({"a": 1}))
    reader = state.reader(OWNER)
    reader.pin()
    state.merge(place.attempt(2, 3), counts({"a": 1, "b": 1}))
    assert read(state, reader, 1, ["a", "b", "c"]) == {"a": 1}
    state.merge(place.attempt(3, 4), counts({"a": 1, "c": 1}))
    if place.keeps_versions:
        assert read(state, reader, 1, ["a", "b", "c"]) == {"a": 1}
    else:
        with pytest.raises(OperatingError, match="has moved on from transaction 1 while it was read"):
            reader.rows(TxId(1))
    reader.close()


def test_keys_of_several_columns_with_null(place: Place) -> None:
    """They are found as they are."""
    state = place.state("word string, n long")
    place.fence(state, 0, 1)
    rows = {("a", 1): 1, ("a", None): 2, (None, 1): 3, (None, None): 4, ("b", 1): 5}
    state.merge(place.attempt(1, 2), counts(rows, "word string, n long"))
    reader = state.reader(OWNER)
    reader.pin()
    assert read(state, reader, 1, [("a", None), (None, None), ("b", 2), ("b", 1)]) == rows
    reader.close()


def test_a_state_of_one_row(place: Place) -> None:
    """Its key has no columns."""
    state = place.state(())
    place.fence(state, 0, 1)
    state.merge(place.attempt(1, 2), _alone(3))
    reader = state.reader(OWNER)
    reader.pin()
    assert reader.rows(TxId(1)).to_pylist() == [{"count": 3}]
    assert reader.lookup(TxId(1), pa.table({})).to_pylist() == [{"count": 3}]
    reader.close()


def _alone(n: int) -> Partials:
    return Partials({"count": "sum"}, pa.table({"count": pa.array([n], pa.int64())}))


def test_a_reader_creates_nothing(tmp_path: Path) -> None:
    """Neither a table, nor a file of a database."""
    url = f"sqlite:///{tmp_path / 'states.db'}"
    for state in (
        SqlMapState(url, "words", "word string", "n long"),
        DeltaMapState(tmp_path / "t", "w string", "n long"),
    ):
        reader = state.reader(OWNER)
        with pytest.raises(OperatingError):
            reader.pin()
        reader.close()
    assert not list(tmp_path.iterdir())
    SqlMapState(url, "others", "word string", "n long").open("words/others", lambda _: TxId(0))
    reader = SqlMapState(url, "words", "word string", "n long").reader(OWNER)
    with pytest.raises(OperatingError, match="no table yet"):
        reader.pin()
    with pytest.raises(ConfigError, match="in memory"):
        SqlMapState("sqlite://", "words", "word string", "n long").reader(OWNER)


@pytest.mark.parametrize("layout", ["merge", "log"])
def test_an_older_transaction_of_a_delta_table(tmp_path: Path, layout: str) -> None:
    """As long as its log has it: each was read as it was, also where a dead attempt came first, and after a
    compaction."""
    place = Place("delta-rs", tmp_path)
    state = DeltaMapState(tmp_path / "t", "word string", "count long", layout=layout)
    state.open(OWNER, place.txids.__getitem__)
    place.fence(state, 0, 1)
    for txid, words in enumerate(HISTORY, start=1):
        state.merge(place.attempt(txid, 10 * txid), counts({"zombie": 7}))
        place.fence(state, txid, 10 * txid + 1)
        state.merge(place.attempt(txid, 10 * txid + 2), counts(words))
        if txid == 4:
            state.compact()
    reader = state.reader(OWNER)
    for txid in (2, 5, 1, 6, 3, 4):
        reader.pin(TxId(txid))
        assert read(state, reader, txid, ["a", "b", None]) == totals(txid)
    DeltaTable(tmp_path / "t").create_checkpoint()
    for entry in (tmp_path / "t" / "_delta_log").glob("*.json"):
        if int(entry.stem) < 5:
            entry.unlink()
    other = state.reader(OWNER)
    with pytest.raises(OperatingError, match="can't be read as of transaction 1"):
        other.pin(TxId(1))


@pytest.mark.parametrize("layout", ["merge", "log"])
def test_a_table_that_is_read_is_loaded_once(layout: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time is a walk through its log."""
    place, loads = Place("delta-rs", tmp_path), list[DeltaTable]()
    words = DeltaMapState(tmp_path / "t", "word string", "count long", layout=layout)
    words.open(OWNER, place.txids.__getitem__)
    words.merge(place.attempt(1, 1), counts({"dog": 1}))
    load = DeltaTable.__init__

    def noted(table: DeltaTable, *given: Any, **named: Any) -> None:
        loads.append(table)
        load(table, *given, **named)

    monkeypatch.setattr(DeltaTable, "__init__", noted)
    assert DeltaMapState(tmp_path / "t", "word string", "count long").read().num_rows == 1
    assert len(loads) == 1


def test_memory_has_its_newest_transactions_only() -> None:
    """There is nothing else to pin."""
    assert not MemoryMapState("word string", "n long").reader(OWNER).has_history


def test_a_table_that_gets_another_layout_while_it_is_read(tmp_path: Path) -> None:
    """The reader notices, and opens it anew."""
    place = Place("delta-rs", tmp_path)
    merged = DeltaMapState(tmp_path / "t", "word string", "count long", layout="merge")
    merged.open(OWNER, place.txids.__getitem__)
    place.fence(merged, 0, 1)
    merged.merge(place.attempt(1, 2), counts({"a": 1, "b": 2}))
    reader = merged.reader(OWNER)
    reader.pin()
    assert read(merged, reader, 1, ["a", "c"]) == {"a": 1, "b": 2}
    log = DeltaMapState(tmp_path / "t", "word string", "count long", layout="log")
    log.open(OWNER, place.txids.__getitem__)
    place.fence(log, 1, 3)
    log.merge(place.attempt(2, 4), counts({"a": 1, "c": 1}))
    assert read(merged, reader, 1, ["a", "c"]) == {"a": 1, "b": 2}
    reader.pin()
    assert read(merged, reader, 2, ["a", "c"]) == {"a": 2, "b": 2, "c": 1}
    assert read(merged, reader, 1, ["a", "c"]) == {"a": 1, "b": 2}
    reader.close()


@pytest.mark.parametrize("layout", ["merge", "log"])
def test_files_that_somebody_has_deleted_are_one_line(tmp_path: Path, layout: str) -> None:
    """A vacuum takes away what an older transaction needs; the newest is read as before."""
    place = Place("delta-rs", tmp_path)
    state = DeltaMapState(tmp_path / "t", "word string", "count long", layout=layout)
    state.open(OWNER, place.txids.__getitem__)
    place.fence(state, 0, 1)
    for txid, words in enumerate(HISTORY, start=1):
        state.merge(place.attempt(txid, 10 * txid), counts(words))
    state.compact()
    table = DeltaTable(tmp_path / "t")
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    reader = state.reader(OWNER)
    reader.pin()
    assert read(state, reader, 6, ["a", "d"]) == totals(6)
    with pytest.raises(OperatingError, match=r"\A[^\n]*can't be read[^\n]*\Z"):
        _as_of(reader, 2)
    reader.close()


def _as_of(reader: StateReader, txid: int) -> pa.Table:
    reader.pin(TxId(txid))
    return reader.rows(TxId(txid))
