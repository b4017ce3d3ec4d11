"""Tables of many keys, in every way in which they are written: transactions with dead attempts end as a dict does.

So many keys that Arrow's hashes of them collide, of one column and of several, with the limits lowered from which on a
table is written file by file, by several threads, and looked up in sorted copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.places import ENGINES, place_of
from tests.contract.states import AnyState, Place, content, counts
from transactional.core.ports import Partials
from transactional.core.ports.expiry import Expiry, Time
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TransactionAttempt
from transactional.model.facts import BatchFacts

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = 1_200
COMING = 400
EXPIRY = Expiry("minute", 5 * 60_000_000, Time.EVENT)
"""A row goes five minutes after its own."""
Key = tuple[Any, ...]


def minute(number: int) -> datetime:
    return EPOCH + timedelta(minutes=number)


@dataclass(frozen=True)
class Shape:
    """What keys are like, and whether they expire."""

    key: str
    make: Callable[[int], Key]
    expiry: Expiry | None = None

    @property
    def keys(self) -> list[Key]:
        return list(dict.fromkeys(self.make(number) for number in range(KEYS)))


SHAPES = {
    "a number": Shape("n long", lambda n: (None if n == 5 else n * 7919 % 10_007,)),
    "several": Shape("word string, n int", lambda n: (None if n % 97 == 0 else f"word-{n // 4}", n % 4 or None)),
    "windows": Shape(
        "word string, minute timestamp", lambda n: (f"word-{n // 8}", minute(n % 8) if n % 89 else None), EXPIRY
    ),
}


@pytest.fixture(params=["memory", *(each for each in ENGINES if isinstance(each, str) and each.startswith("delta-rs"))])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """An empty place for a table."""
    for limit, rows in {
        "state.delta.write.rewriting.LANE_ROWS": 300,
        "state.delta.tables.data_files.GROUP_ROWS": 250,
        "state.delta.write.rewriting.PART_ROWS": 500,
        "state.delta.write.merging.REMOVAL_INTERVAL": 2,
        "transactional.model.aggregates.key_matching.ROWS_MIN": 0,
        "transactional.model.aggregates.key_matching.BLOCK_ROWS": 64,
    }.items():
        monkeypatch.setattr(limit, rows)
    monkeypatch.setattr("state.delta.write.rewriting.pa.cpu_count", lambda: 3)
    with place_of(request, tmp_path) as place:
        yield place


@dataclass(slots=True)
class History:
    """Transactions over one table, and what a reader has to find after each."""

    place: Place
    shape: Shape
    random: Random
    model: dict[Key, int | None] = field(default_factory=dict)
    number: int = 0

    def run_transactions(self, transactions: int) -> None:
        state = self.opened()
        for txid in range(1, transactions + 1):
            after = self.model
            for dead in [True] * self.random.choice((0, 1, 1)) + [False]:
                self.number += 1
                attempt = self.place.attempt(txid, self.number)
                after = self.attempted(state, attempt)
                assert content(state, txid - 1) == self.shown(self.model)
                if dead and self.random.random() < 0.5:
                    state.close()
                    state = self.opened()
            self.model = after
            assert content(state) == self.shown(after)
        state.close()

    def opened(self) -> AnyState:
        return self.place.state(self.shape.key, expiry=self.shape.expiry)

    def shown(self, model: Mapping[Key, Any]) -> dict[Any, Any]:
        """As `content` has it."""
        return {key[0] if len(key) == 1 else key: value for key, value in model.items()}

    def attempted(self, state: AnyState, attempt: TransactionAttempt) -> dict[Key, int | None]:
        """What there is after an attempt. Checks what it reads."""
        horizon, before = None, dict(self.model)
        if self.shape.expiry is not None:
            late = minute(int(attempt.txid))
            state.declared.begin(attempt, BatchFacts(10**9, _micros(late)))
            horizon = late - timedelta(microseconds=EXPIRY.after_us)
            before = _left(before, horizon)
            low, high = minute(attempt.txid - 6), minute(attempt.txid - 4)
            found = state.rows_between(attempt, "minute", _micros(low), _micros(high))
            between = {key: value for key, value in self.model.items() if key[1] is not None and low < key[1] <= high}
            assert _rows(found) == between
        keys = self.random.sample(self.shape.keys, COMING)
        asked = [*keys[: COMING // 2], *self.random.sample(self.shape.keys, 20)]
        schema = arrow_schema(state.key)
        columns = [pa.array(each, field_.type) for each, field_ in zip(zip(*asked, strict=True), schema, strict=True)]
        # Some keys are asked for twice.
        found = state.rows_before(attempt, pa.Table.from_arrays(columns, schema=schema))
        wanted = {key: before[key] for key in asked if key in before}
        assert {key: value for key, value in _rows(found).items() if key in set(asked)} == wanted
        new = {key: self.random.choice((None, 1, 2, 3)) for key in keys}
        if self.place.is_log or self.random.random() < 0.7:
            state.merge(attempt, self.partials(new))
            return _left(before | {key: _sum(before.get(key), value) for key, value in new.items()}, horizon)
        state.put(attempt, {key: (value,) for key, value in new.items()})
        return _left(before | new, horizon)

    def partials(self, new: Mapping[Key, int | None]) -> Partials:
        return counts(new, self.shape.key)


def _left(rows: Mapping[Key, int | None], horizon: datetime | None) -> dict[Key, int | None]:
    return {key: value for key, value in rows.items() if horizon is None or key[1] is None or key[1] > horizon}


def _micros(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _rows(table: pa.Table) -> dict[Key, int | None]:
    found = {tuple(key): value for *key, value in (row.values() for row in table.to_pylist())}
    assert len(found) == table.num_rows, "a key has two rows"
    return found


def _sum(stored: int | None, partial: int | None) -> int | None:
    known = [value for value in (stored, partial) if value is not None]
    return sum(known) if known else None


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", SHAPES)
def test_many_keys_end_as_in_a_dict(place: Place, shape: str) -> None:
    History(place, SHAPES[shape], Random(f"{place.engine} {shape}")).run_transactions(5)
