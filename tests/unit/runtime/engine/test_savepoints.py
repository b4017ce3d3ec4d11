"""What savepoints need is held before anything is deleted, whenever the store is away and whenever they are noted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.drivers import HookedState, World
from tests.unit.fakes import WORDS, words
from transactional.core.ports.state_parts import Rewind, RewindTarget, StateParts
from transactional.errors import StoreUnavailable
from transactional.model.attempt import TxId
from transactional.runtime.engine.maintenance import Maintenance
from transactional.runtime.engine.savepoints import SavepointWatch


def away_once(monkeypatch: pytest.MonkeyPatch, store: Any, call: str) -> None:
    """The store does not respond to the next call of this name."""
    answers, left = getattr(store, call), [1]

    def answer(*given: Any, **named: Any) -> Any:
        if left:
            left.pop()
            raise StoreUnavailable(f"{call}: the store does not respond")
        return answers(*given, **named)

    monkeypatch.setattr(store, call, answer)


def with_savepoint() -> World:
    """A world whose run has committed three transactions, of which the second has a savepoint."""
    world = World()
    world.run()
    assert world.store.note_savepoint("words", "noon", TxId(2))
    return world


@pytest.mark.parametrize("call", ["savepoints", "attempts_at"])
def test_a_look_that_the_store_does_not_answer_is_made_again(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    world = with_savepoint()
    savepoints = SavepointWatch(world.topology(), world.store)
    away_once(monkeypatch, world.store, call)
    with pytest.raises(StoreUnavailable):
        savepoints.read_changes()
    targets = savepoints.read_changes()
    assert targets is not None
    assert {name: [target.txid for target in of] for name, of in targets.items()} == {"counts": [2], "total": [2]}
    assert savepoints.read_changes() is None


class Held(HookedState, Rewind):
    """Notes what it is to hold, and when it is maintained."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        super().__init__("word", "count long")
        self.calls, self.told = list[Any](), told

    @property
    def parts(self) -> StateParts:
        return replace(super().parts, rewind=self, maintenance=self)

    def retain(self, targets: Sequence[RewindTarget]) -> None:
        self.calls.append([int(target.txid) for target in targets])
        self.told()

    def maintain(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        self.calls.append("maintain")


@pytest.mark.parametrize("call", [None, "savepoints"])
def test_no_table_is_maintained_before_a_look_at_the_savepoints_was_answered(
    monkeypatch: pytest.MonkeyPatch, call: str | None
) -> None:
    world, held = with_savepoint(), Held()
    monkeypatch.setattr(Rewind, "retain", lambda _, targets: held.retain(targets))
    monkeypatch.setattr(HookedState, "maintain", held.maintain, raising=False)
    if call is not None:
        away_once(monkeypatch, world.store, call)
    assert world.run(world.topology(words([[*part, ("cat",)] for part in WORDS]))).transactions == 1
    assert held.calls == ([[2], [2], "maintain", "maintain"] if call is None else [])


def test_what_is_noted_while_an_earlier_one_is_told_is_told_next() -> None:
    def target(txid: int) -> dict[str, list[RewindTarget]]:
        return {"counts": [RewindTarget(TxId(txid), None, lambda _: None)]}

    later = [target(2)]
    state = Held(lambda: maintenance.retain(later.pop()) if later else None)
    maintenance = Maintenance({"counts": state})
    maintenance.retain(target(1))
    for _ in range(3):
        maintenance.run(TxId(3))
    assert state.calls == [[1], "maintain", [2], "maintain", "maintain"]
