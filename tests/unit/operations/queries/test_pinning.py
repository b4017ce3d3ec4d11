"""Tables are pinned between two looks at the store, or once more."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from transactional.core.store import Position
from transactional.errors import ConfigError
from transactional.model.attempt import TxId
from transactional.operations.queries.pinning import Tables


class Reader:
    """Counts how often it is pinned."""

    has_history, pins = False, 0

    def pin(self, txid: TxId | None = None) -> None:
        self.pins += 1

    def release(self) -> None:
        """It has nothing open."""

    close = release


def test_tables_that_were_overtaken_are_pinned_again() -> None:
    """Of tables that were pinned while a transaction committed, some may be before it, and others after."""
    reader, looks = Reader(), iter([1, 2, 2])

    class Store:
        def position(self, topology_id: str) -> Position:
            return Position(TxId(next(looks)), None)

    store: Any = Store()
    tables = Tables("words", store, {}, {"counts": reader})  # type: ignore[dict-item]
    assert (tables.pin(), reader.pins) == (2, 2)


@dataclass
class Opened:
    """A state, and how often a reader of it was opened."""

    opened: int = 0

    @property
    def parts(self) -> Any:
        return SimpleNamespace(reading=self)

    def reader(self, owner: str) -> Reader:
        self.opened += 1
        return Reader()


@pytest.mark.parametrize(
    ("positions", "opened"),
    [
        ([Position(TxId(3), None, "a"), Position(TxId(4), None, "a")], 1),
        ([Position(TxId(3), None, None), Position(TxId(3), None, "a")], 1),
        ([Position(TxId(3), None, "a"), Position(TxId(2), None, "a")], 2),
        ([Position(TxId(3), None, "a"), Position(TxId(3), None, "b")], 2),
        ([Position(TxId(3), None, "a"), Position(TxId(9), None, "b")], 2),
    ],
)
def test_tables_of_a_store_that_has_gone_back_or_is_another_are_opened_anew(
    positions: list[Position], opened: int
) -> None:
    """Also when that is noticed between two looks of one answer: what was pinned is let go."""
    for repeats in ((2, 2), (1, 3)):
        looks = iter([position for position, times in zip(positions, repeats, strict=True) for _ in range(times)])
        store = SimpleNamespace(position=lambda _, looks=looks: next(looks))
        state = Opened()
        component: Any = SimpleNamespace(state=state)
        tables = Tables("words", store, {"counts": component}, {"counts": state.reader("words/counts")})  # type: ignore[dict-item]
        for expected in positions if repeats == (2, 2) else positions[1:]:
            assert tables.pin() == expected.committed_txid
        assert state.opened == opened
        assert tables._pinned == list(tables.readers.values())


class Still:
    """A store that stands at a transaction."""

    def position(self, topology_id: str) -> Position:
        return Position(TxId(3), None)


@pytest.mark.parametrize("txid", [0, -1, 4])
def test_tables_are_as_of_no_transaction_that_is_not_committed(txid: int) -> None:
    """0 is none: readers would show empty tables where there are rows."""
    reader, store = Reader(), Still()
    tables = Tables("words", store, {}, {"counts": reader})  # type: ignore[arg-type, dict-item]
    with pytest.raises(ConfigError, match=rf"has committed transaction 3, so it can't be read as of {txid}"):
        tables.pin(txid=TxId(txid))
    assert reader.pins == 0
