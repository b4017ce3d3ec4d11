"""Rows that expire, over every state: random histories with dead attempts end as a plain dict with a horizon says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from state.delta.state import DeltaMapState
from state.memory import MemoryMapState
from state.rows.expiring import ExpiryHorizons
from state.rows.opaque_rule import OpaqueRule, Rows
from state.rows.stored_value import StoredValue
from state.sql.state import SqlMapState
from tests.contract.places import place_of
from tests.contract.states import OWNER, AnyState, Place, content
from transactional.core.ports import Partials, StateKind
from transactional.core.ports.expiry import Expiry, Time
from transactional.errors import ConfigError, OperatingError, SchemaMismatch
from transactional.model.absent import ABSENT
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.facts import BatchFacts
from transactional.model.reading import StateReader
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

pytestmark = pytest.mark.sampled(9)
KINDS = [StateKind.OPAQUE, StateKind.TRANSACTIONAL]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WORDS = ("cat", "dog", "owl", "fox", "", None)
VALUES = "count long, at timestamp"
AFTER_S = 10

Row = tuple[int | None, datetime | None]
Model = dict[Any, Row]


def at(second: float) -> datetime:
    return EPOCH + timedelta(seconds=second)


def facts(second: float) -> BatchFacts:
    return BatchFacts(round(second * 1_000))


def expiring(place: Place, *, kind: StateKind = StateKind.OPAQUE, deletes: bool = False) -> AnyState:
    return place.state("word string", VALUES, kind=kind, deletes=deletes, expires="at", after=f"{AFTER_S} seconds")


def exists(row: Row, horizon: float | None) -> bool:
    return horizon is None or row[1] is None or row[1] > at(horizon)


def partials(rows: Mapping[Any, Row]) -> Partials:
    """Counts to be added, and times of which the latest counts."""
    columns = list(zip(*((word, *row) for word, row in rows.items()), strict=True)) or [()] * 3
    schema = arrow_schema(Schema.parse(f"word string, {VALUES}"))
    arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
    return Partials({"count": "sum", "at": "max"}, pa.Table.from_arrays(arrays, schema=schema))


def merged(stored: Row | None, partial: Row) -> Row:
    if stored is None:
        return partial
    sums = [value for value in (stored[0], partial[0]) if value is not None]
    times = [value for value in (stored[1], partial[1]) if value is not None]
    return (sum(sums) if sums else None), max(times, default=None)


@pytest.fixture(autouse=True)
def removed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that have expired are removed after each transaction."""
    monkeypatch.setattr("state.sql.state.TRANSACTIONS_PER_REMOVAL", 1)
    monkeypatch.setattr("state.delta.write.merging.REMOVAL_INTERVAL", 1)


@dataclass(slots=True)
class History:
    """Transactions over one table, with dead attempts, and what there has to be after each."""

    place: Place
    kind: StateKind
    deletes: bool
    ways: str = "both"
    """`put`, `merge`, or both: a log is written in one way."""
    model: Model = field(default_factory=dict)
    """What a reader of the last transaction sees."""
    horizon: float | None = None
    number: int = 0
    pinned: tuple[StateReader, TxId, Model] | None = None
    """A reader that is pinned for some transactions, of which one, and what it has to find."""

    def state(self) -> AnyState:
        return expiring(self.place, kind=self.kind, deletes=self.deletes)

    def run_transactions(self, random: Random, transactions: int) -> None:
        state, now = self.state(), 5.0
        for txid in range(1, transactions + 1):
            now += random.choice((0, 1, 3, 7, 20))
            if txid % 3 == 2:
                self.pin(state, TxId(txid - 1))
            same, after, horizon = random.randrange(1_000_000), self.model, self.horizon
            for _ in range(random.choice((1, 1, 2, 3))):
                self.number += 1
                if random.random() < 0.2:
                    state.close()
                    state = self.state()
                    self.place.fence(state, txid if after is not self.model else txid - 1, self.number)
                    self.number += 1
                attempt = self.place.attempt(txid, self.number)
                seed = same if self.kind is StateKind.TRANSACTIONAL else random.randrange(1_000_000)
                # An opaque replay is planned anew, maybe on a machine whose clock is behind.
                clock = now if self.kind is StateKind.TRANSACTIONAL else now + random.choice((-4, 0, 0, 4))
                after, horizon = self.attempted(state, attempt, clock, Random(seed))
                self.check(state, txid, after)
            if isinstance(state, SqlMapState):
                # A reader of the transaction before does not miss what is removed.
                state.parts.maintenance.maintain(TxId(txid), lambda: True)
                self.check(state, txid, after)
            self.model, self.horizon = after, horizon
        self.pin(state, None)
        state.close()

    def attempted(
        self, state: AnyState, attempt: TransactionAttempt, now: float, random: Random
    ) -> tuple[Model, float | None]:
        """One attempt. Checks what it reads."""
        known = [each for each in (self.horizon, now - AFTER_S) if each is not None]
        horizon = max(known)
        before = {word: row for word, row in self.model.items() if exists(row, horizon)}
        state.declared.begin(attempt, facts(now))
        low, high = now - random.randrange(20), now - random.randrange(5)
        found = state.rows_between(attempt, "at", *(round(each * 1e6) for each in (low, high)))
        closing = {word: row for word, row in self.model.items() if row[1] is not None and at(low) < row[1] <= at(high)}
        assert {row["word"]: (row["count"], row["at"]) for row in found.to_pylist()} == closing
        assert {key[0]: row for key, row in state.items(attempt)} == before
        assert state.get(attempt, [(word,) for word in WORDS]) == {(word,): row for word, row in before.items()}
        new: dict[Any, Any] = {
            word: (random.randrange(1, 9), random.choice((at(now - random.randrange(15)), at(now), None)))
            for word in random.sample(WORDS, random.randrange(5))
        }
        if self.ways == "merge" or (self.ways == "both" and random.random() < 0.4):
            state.merge(attempt, partials(new))
            after = before | {word: merged(before.get(word), row) for word, row in new.items()}
        else:
            gone = random.sample(WORDS, 2) if self.deletes else []
            new |= dict.fromkeys(gone, ABSENT)
            state.put(attempt, {(word,): row for word, row in new.items()})
            after = {word: row for word, row in (before | new).items() if row is not ABSENT}
        found = state.rows_after(attempt, pa.table({"word": pa.array(WORDS, pa.string())}))
        left = {word: row for word, row in after.items() if exists(row, horizon)}
        assert {row["word"]: (row["count"], row["at"]) for row in found.to_pylist()} == left
        return left, horizon

    def check(self, state: AnyState, txid: int, after: Model) -> None:
        assert content(state) == after
        assert content(state, txid) == after
        assert content(state, txid - 1) == self.model
        if not self.place.has_readers:
            return
        self.check_pinned(txid)
        with closing(state.reader(OWNER)) as reader:
            reader.pin()
            for number, expected in ((txid, after), (txid - 1, self.model)):
                self.check_reader(reader, TxId(number), expected)

    def pin(self, state: AnyState, txid: TxId | None) -> None:
        """Close the reader that is pinned, and pin another one, if it is told of which transaction."""
        if self.pinned is not None:
            self.pinned[0].close()
            self.pinned = None
        if txid is not None and self.place.has_readers:
            reader = state.reader(OWNER)
            reader.pin()
            self.pinned = (reader, txid, self.model)

    def check_pinned(self, txid: int) -> None:
        if self.pinned is None:
            return
        reader, pinned, model = self.pinned
        try:
            self.check_reader(reader, pinned, model)
        except OperatingError:
            assert txid > pinned + 1, "what was before the newest transaction is known"
            assert not self.place.keeps_versions

    def check_reader(self, reader: StateReader, txid: TxId, expected: Model) -> None:
        words = pa.table({"word": pa.array(WORDS, pa.string())})
        for found in (reader.rows(txid), reader.lookup(txid, words)):
            assert {row["word"]: (row["count"], row["at"]) for row in found.to_pylist()} == expected


@pytest.mark.sampled(17)
@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_histories_with_dead_attempts_end_as_a_dict_does(place: Place, kind: StateKind, *, deletes: bool) -> None:
    random = Random(f"{place.engine}{kind}{deletes}")
    ways = ("put" if deletes else "merge") if place.is_log else "both"
    History(place, kind, deletes, ways).run_transactions(random, 9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["memory", "sqlite", pytest.param("redis", marks=pytest.mark.redis)])
@pytest.mark.sampled(25)
@pytest.mark.parametrize("seed", range(25))
def test_many_histories(
    engine: str, kind: StateKind, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with place_of(request, tmp_path, engine) as place:
        History(place, kind, deletes=seed % 3 == 0).run_transactions(Random(seed), 10)


def test_it_is_removed_by_the_horizon_of_the_transaction_before(place: Place) -> None:
    state = expiring(place)
    for txid, now in ((1, 1), (2, 11), (3, 12)):
        attempt = place.attempt(txid, txid)
        state.declared.begin(attempt, facts(now))
        new: Mapping[Key, Any] = {("cat" if txid == 1 else "dog",): (txid, at(now))}
        state.put(attempt, new)
        assert "cat" not in content(state) or txid == 1
        assert ("cat" in content(state, txid - 1)) is (txid == 2)
    if isinstance(state, SqlMapState):
        state.parts.maintenance.maintain(TxId(3), lambda: True)
    assert stored_rows(state) == (3 if place.is_log else 1), "compactions remove it from a log"


def stored_rows(state: AnyState) -> int:
    """How many rows the table has, whoever may see them."""
    if isinstance(state, DeltaMapState):
        return state.open_table.loaded.row_count()
    state.declared.expiry = None
    return int(state.read().num_rows)


def test_who_takes_over_has_to_know_that_rows_expire(place: Place) -> None:
    if place.engine == "memory":
        place.state("word string", VALUES)  # nothing in it says what expires
        return
    expiring(place)
    with pytest.raises(SchemaMismatch, match="expire by the column 'at'"):
        place.state("word string", VALUES)
    with pytest.raises(SchemaMismatch, match="expire by the column 'at'"):
        place.state("word string", f"{VALUES}, also timestamp", expires="also", after="1 day")


def test_a_table_gains_rows_that_expire_by_its_key(place: Place) -> None:
    state = place.state("word string, at timestamp", "count long")
    state.put(place.attempt(1, 1), {("cat", at(1)): (1,), ("dog", None): (1,)})
    state.close()
    state = place.state("word string, at timestamp", "count long", expires="at", after="10 seconds")
    place.fence(state, 1, 2)
    attempt = place.attempt(2, 3)
    state.declared.begin(attempt, facts(20))
    state.put(attempt, {})
    assert content(state) == {("dog", None): 1}


def test_a_table_gains_rows_that_expire(place: Place) -> None:
    if place.is_log:
        place.state("word string", VALUES)
        with pytest.raises(SchemaMismatch, match="horizon timestamp"):
            expiring(place)
        return
    state = place.state("word string", VALUES)
    state.put(place.attempt(1, 1), {("cat",): (1, at(1)), ("dog",): (1, None)})
    state.close()
    state = expiring(place)
    place.fence(state, 1, 2)
    attempt = place.attempt(2, 3)
    state.declared.begin(attempt, facts(20))
    assert dict(state.items(attempt)) == {("dog",): (1, None)}
    state.put(attempt, {})
    assert content(state) == {"dog": (1, None)}
    assert content(state, 1) == {"cat": (1, at(1)), "dog": (1, None)}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"expires": "at"}, "go together"),
        ({"after": "1 day"}, "go together"),
        ({"expires": "at", "after": "soon"}, "whole number and a unit"),
        ({"expires": "at", "after": "5 fortnights"}, "whole number and a unit"),
        ({"expires": "at", "after": timedelta(-1)}, "between nothing and ten thousand years"),
        ({"expires": "at", "after": "99999999 weeks"}, "between nothing and ten thousand years"),
        ({"expires": "count", "after": "1 day"}, "no timestamp column"),
        ({"expires": "seen", "after": "1 day"}, "no timestamp column"),
    ],
)
def test_what_can_not_expire_is_told(said: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        MemoryMapState("word string", VALUES, **said)


def test_an_update_may_decide_when_its_rows_go_unless_its_user_does() -> None:
    state = MemoryMapState("word string", VALUES, expires="at", after="1 minute")
    state.declared.set_expiry(Expiry("at", 60_000_000))
    with pytest.raises(ConfigError, match="leave it out"):
        state.declared.set_expiry(Expiry("at", 60_000_000, Time.EVENT))


class RemovesByTheNewHorizon(MemoryMapState):
    """Wrong: a row is removed as soon as it has expired."""

    class rule(OpaqueRule):  # noqa: N801
        def apply(self, stored: Rows, incoming: Mapping[Key, Any]) -> dict[Key, StoredValue | None]:
            past = {key for key, row in stored.items() if self.has_expired(key, row.value, self.horizons.current)}
            return super().apply(stored, incoming) | dict.fromkeys(past - incoming.keys())


class LosesWhatHadExpired(MemoryMapState):
    """Wrong: an update of an expired key begins with a new row."""

    class rule(OpaqueRule):  # noqa: N801
        def update(self, key: Key, rolled_back: StoredValue | None, partial: Any) -> StoredValue | None:
            is_gone = rolled_back is not None and self.has_expired(key, rolled_back.value, self.horizons.current)
            return super().update(key, None if is_gone else rolled_back, partial)


class GoesByTheClock(MemoryMapState):
    """Wrong: each attempt looks at the clock."""

    times: Iterator[int] = iter(range(0, 10**9, 3))

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        begin = self.declared.begin
        self.declared.begin = lambda attempt, facts: begin(attempt, BatchFacts(next(self.times) * 1_000))  # type: ignore[method-assign]


class CarriesOnWithTheOldValue(MemoryMapState):
    """Wrong: an update of an expired key adds to what it was."""

    class rule(OpaqueRule):  # noqa: N801
        def update(self, key: Key, rolled_back: StoredValue | None, partial: Any) -> StoredValue | None:
            forgetful = OpaqueRule(self.columns, self.txid, self.check, replace(self.horizons, current=None))
            return forgetful.update(key, rolled_back, partial)


class TakesADeadAttemptsHorizon(MemoryMapState):
    """Wrong: what a dead attempt has recorded counts as the horizon of the transaction before."""

    def expiry_horizons(self, attempt: TransactionAttempt) -> ExpiryHorizons:
        stored = self.stored.horizons
        return ExpiryHorizons(TxId(0), stored.current).advance(attempt.txid, self.declared.horizon_of_batch(attempt))


WRONG = [
    *(RemovesByTheNewHorizon, LosesWhatHadExpired, GoesByTheClock, CarriesOnWithTheOldValue, TakesADeadAttemptsHorizon)
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_variants_are_found(wrong: type[MemoryMapState], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.contract.states.MemoryMapState", wrong)
    for seed in range(20):
        try:
            History(Place("memory", tmp_path), StateKind.OPAQUE, deletes=False).run_transactions(Random(seed), 10)
        except AssertionError:
            return
    pytest.fail("none of 20 histories has found it")
