"""Tables are pinned between two looks at the store, or once more."""

from __future__ import annotations

from typing import Any

import pytest

from transactional.attempt import TxId
from transactional.errors import ConfigError
from transactional.queries.pinning import Tables
from transactional.store import Position


class Reader:
    """Counts how often it is pinned."""

    has_history, pins = False, 0

    def pin(self, txid: TxId | None = None) -> None:
        self.pins += 1

    def release(self) -> None:
        """It has nothing open."""


def test_tables_that_were_overtaken_are_pinned_again() -> None:
    """Of tables that were pinned while a transaction committed, some may be before it, and others after."""
    reader, looks = Reader(), iter([1, 2, 2])

    class Store:
        def position(self, topology_id: str) -> Position:
            return Position(TxId(next(looks)), None)

    store: Any = Store()
    tables = Tables("words", store, {}, {"counts": reader})  # type: ignore[dict-item]
    assert (tables.pin(), reader.pins) == (2, 2)


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
