"""What a committer sees of its state: what it has written itself counts, and nothing is written before the end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from state.memory import MemoryMapState
from tests.contract.states import content, counts
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.runtime.tasks.map_state import MapStateView


def attempt(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def opened(key: str, *, deletes: bool = False) -> MemoryMapState:
    """A state whose attempts 2 and 3 are both of transaction 2."""
    state = MemoryMapState(key, "count long", deletes=deletes)
    state.open("words/count", lambda attempt_id: TxId(min(attempt_id, 2)))
    return state


def test_a_committer_deletes() -> None:
    state = opened("word string", deletes=True)
    state.merge(attempt(1, 1), counts({"cat": 2, "dog": 1}))
    for attempt_id in (2, 3):
        view = MapStateView("count", state, attempt(2, attempt_id))
        view.delete("cat")
        view.delete(("dog",))
        view.delete("owl")
        assert view.multi_get([("cat",), ("dog",), ("owl",)]) == [None, None, None]
        view.put("dog", (view.get("dog") or 0) + 5)
        state.put(attempt(2, attempt_id), view.changes)
        assert content(state) == {"dog": 5}
        assert content(state, 1) == {"cat": 2, "dog": 1}


def test_keys_of_one_instant_are_one_key() -> None:
    """In whatever zone they are given. A batch reads what it has written: Storm row R25."""
    aware = datetime(2020, 1, 1, 12, tzinfo=UTC)
    there = aware.astimezone(timezone(timedelta(hours=5)))
    state = opened("at timestamp, word string")
    state.put(attempt(1, 1), {(aware, "a"): (1,)})
    asked = [(aware, "a"), (there, "a"), (aware, "a")]
    view = MapStateView("it", state, attempt(2, 2))
    assert view.multi_get(asked) == [1, 1, 1]
    assert (view.get(aware, "a"), view.get((there, "a"))) == (1, 1)
    assert view.multi_update(asked, lambda value: value + 1) == [2, 3, 4]
    state.put(attempt(2, 2), view.changes)
    assert content(state) == {(aware, "a"): 4}
