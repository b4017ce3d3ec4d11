"""A state that gains value columns, and what else happens to its table: it is taken back to before, or read before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from state.delta.state import DeltaMapState
from tests.contract.places import place_of
from tests.contract.states import OWNER, Place
from tests.contract.test_value_columns import AFTER, BEFORE, DATABASES, DELTA, counted, fenced, merge, opened, rows
from transactional.core.ports.state_parts import RewindTarget
from transactional.model.attempt import AttemptId, TxId

pytestmark = pytest.mark.sampled(5)


@pytest.fixture(params=[*DATABASES, *DELTA])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place for a table."""
    with place_of(request, tmp_path) as place:
        yield place


def target(place: Place, txid: int) -> RewindTarget:
    """A transaction whose attempt had its number."""
    return RewindTarget(TxId(txid), AttemptId(txid), place.txids.get)


def back(place: Place, txid: int, fence: int) -> None:
    """What a rewind of the program of now does."""
    state = fenced(place, fence=fence, txid=txid + 1)
    state.parts.rewind.rewind(target(place, txid), place.attempt(txid, fence + 1).attempt_id)


@pytest.mark.parametrize("times", [1, 2])
def test_a_table_goes_back_to_before_it_had_them_and_on(place: Place, times: int) -> None:
    """Twice, as after a crash behind the first time."""
    counted(place, {"cat": 1})
    counted(place, {"cat": 2, "dog": 1}, txid=2)
    merge(fenced(place, fence=10, txid=2), place.attempt(3, 11), {"cat": (1, 2.5, "x"), "emu": (1, 1.5, "y")})
    for time in range(times):
        back(place, 2, 20 + 2 * time)
    then = {"cat": (3, None, None), "dog": (1, None, None)}
    assert rows(opened(place, AFTER)) == then
    state = fenced(place, fence=30, txid=2)
    assert rows(state) == then
    merge(state, place.attempt(3, 31), {"cat": (4, 0.5, "z")})
    assert rows(state) == {**then, "cat": (7, 0.5, "z")}
    assert rows(state, 2) == then


def test_a_reader_of_the_new_columns_has_null_in_them_until_they_are_there(place: Place) -> None:
    counted(place, {"cat": 3})
    state = opened(place, AFTER)
    reader = state.reader(OWNER)
    asked = pa.table({"word": ["cat", "dog"]})
    for n in (None, 4):
        reader.pin()
        wanted = [{"word": "cat", "count": n or 3, "miles%": None if n is None else 2.5, "last": n and "x"}]
        txid = TxId(1 if n is None else 2)
        assert reader.rows(txid).to_pylist() == reader.lookup(txid, asked).to_pylist() == wanted
        assert rows(opened(place, AFTER)) == {"cat": tuple(wanted[0].values())[1:]}
        reader.release()
        if n is None:
            merge(fenced(place), place.attempt(2, 11), {"cat": (1, 2.5, "x")})
    reader.close()


def test_a_transaction_from_before_they_were_there_is_read(place: Place) -> None:
    """The newest before the change; of a Delta table also earlier ones."""
    counted(place, {"cat": 3})
    counted(place, {"cat": 1}, txid=2)
    state = fenced(place, txid=2)
    merge(state, place.attempt(3, 11), {"cat": (1, 2.5, "x")})
    reader = state.reader(OWNER)
    for txid, count in ((2, 4), (1, 3)) if isinstance(state, DeltaMapState) else ((2, 4),):
        reader.pin(TxId(txid))
        assert reader.rows(TxId(txid)).to_pylist() == [{"word": "cat", "count": count, "miles%": None, "last": None}]
        reader.release()
    reader.close()


def test_a_reader_goes_on_when_its_table_gains_columns(place: Place) -> None:
    counted(place, {"cat": 3})
    reader = opened(place, BEFORE).reader(OWNER)
    reader.pin()
    state = fenced(place)
    merge(state, place.attempt(2, 11), {"cat": (1, 2.5, "x")})
    reader.pin()
    [row] = reader.rows(TxId(2)).to_pylist()
    assert row == {"word": "cat", "count": 4}
    reader.close()
