"""Values and tables under random histories, held against a model of ten lines.

A history is made of new transactions, replays of the current one with other contents, take-overs, and zombies: attempts
that were given up and write late. Whatever happens, a table is what one pass over the last attempt of each transaction
makes (seed 004, "What if you can't emit the same batch"; Storm rows R24, T39 and T60).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from state.memory import MemoryMapState, MemoryTable
from state.rows.columns import StateColumns
from state.rows.combining import combine_value
from state.rows.opaque_rule import OpaqueRule
from state.rows.stored_value import StoredValue
from state.rows.sums import SumCheck
from transactional.core.ports import Partials, StateKind
from transactional.errors import Fenced, StoreMismatch
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

Batch = dict[str, tuple[int | None, str | None]]
"""What a transaction has per word: how many, and a note. None is NULL."""

BATCHES = st.dictionaries(
    st.sampled_from("abc"), st.tuples(st.none() | st.integers(-3, 3), st.none() | st.sampled_from("xyz")), max_size=3
)


@dataclass
class Model:
    """What is right. `now` is after the last transaction, `before` is without it; more is not needed."""

    replays_differ: bool
    txid: int = 0
    before: Batch = field(default_factory=dict)
    now: Batch = field(default_factory=dict)

    def begin(self, batch: Batch) -> None:
        self.txid, self.before = self.txid + 1, self.now
        self.now = {**self.before, **{word: self.added(word, batch) for word in batch}}

    def replay(self, batch: Batch) -> None:
        if self.replays_differ:
            self.now = {**self.before, **{word: self.added(word, batch) for word in batch}}

    def added(self, word: str, batch: Batch) -> tuple[int | None, str | None]:
        counts = [each[word][0] for each in (self.before, batch) if word in each]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None, batch[word][1]


COLUMNS = StateColumns(Schema.parse("word string"), Schema.parse("count long, note string"))


def updated(before: Any, part: tuple[int | None, str | None]) -> tuple[int | None, str | None]:
    count, note = (ABSENT, ABSENT) if before is ABSENT else before
    return combine_value("sum", count, part[0]), combine_value("last", note, part[1])


class Values(RuleBasedStateMachine):
    """The values by themselves: a word that is not in a replay is rolled back."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(replays_differ=True)
        self.rows: dict[Key, StoredValue] = {}

    @rule(batch=BATCHES)
    def begin(self, batch: Batch) -> None:
        self.model.begin(batch)
        self._apply(batch)

    @precondition(lambda self: self.model.txid)
    @rule(batch=BATCHES)
    def replay(self, batch: Batch) -> None:
        self.model.replay(batch)
        self._apply(batch)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def zombie(self, data: st.DataObject) -> None:
        """An attempt at an earlier transaction than the one that wrote a value: nothing is known that far back."""
        key = data.draw(st.sampled_from(sorted(self.rows)))
        row = self.rows[key]
        with pytest.raises(StoreMismatch):
            self._rule(TxId(row.txid - 1)).apply({key: row}, {key: (1, None)})
        assert row.roll_back(TxId(row.txid - 1)) is row

    def _rule(self, txid: TxId) -> OpaqueRule:
        return OpaqueRule(COLUMNS, txid, SumCheck("words", COLUMNS.values, ["sum", "last"]))

    def _apply(self, batch: Batch) -> None:
        after = self._rule(TxId(self.model.txid)).apply(self.rows, {(word,): part for word, part in batch.items()})
        self.rows = {key: row for key, row in after.items() if row is not None}

    @invariant()
    def the_values_are_those_of_the_model(self) -> None:
        assert {word: row.value for (word,), row in self.rows.items()} == self.model.now

    @invariant()
    def who_does_not_see_the_last_transaction_sees_what_was_before(self) -> None:
        seen = {word: row.value_for_reader(TxId(self.model.txid - 1)) for (word,), row in self.rows.items()}
        assert {word: value for word, value in seen.items() if value is not ABSENT} == self.model.before

    @invariant()
    def the_next_transaction_starts_from_what_is_there(self) -> None:
        assert {
            word: row.value_before(TxId(self.model.txid + 1)) for (word,), row in self.rows.items()
        } == self.model.now


class Tables(RuleBasedStateMachine):
    """A state in memory: attempt ids only grow, and who comes with a lower one changes nothing."""

    kind: ClassVar[StateKind]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(replays_differ=self.kind is StateKind.OPAQUE)
        self.table, self.txid_of, self.attempt_id = MemoryTable(), dict[int, TxId](), 0
        self.fences: set[int] = set()

    @initialize()
    def open(self) -> None:
        self.state = MemoryMapState("word string", "count long, note string", kind=self.kind, table=self.table)
        self.state.open("topology/component", lambda version: self.txid_of[version])

    @rule(batch=BATCHES, by_merge=st.booleans())
    def begin(self, batch: Batch, *, by_merge: bool) -> None:
        self.model.begin(batch)
        self._write(self._next_attempt(), batch, by_merge=by_merge)

    @precondition(lambda self: self.model.txid)
    @rule(batch=BATCHES, by_merge=st.booleans())
    def replay(self, batch: Batch, *, by_merge: bool) -> None:
        self.model.replay(batch)
        self._write(self._next_attempt(), batch, by_merge=by_merge)

    @precondition(lambda self: self.model.txid and self.attempt_id not in self.fences)
    @rule(batch=BATCHES, by_merge=st.booleans())
    def write_again(self, batch: Batch, *, by_merge: bool) -> None:
        """The outcome of the attempt's write was not known. It has happened, so what comes now is left alone."""
        self._write(self._attempt(self.attempt_id), batch, by_merge=by_merge)

    @precondition(lambda self: self._given_up())
    @rule(data=st.data(), batch=BATCHES, by_merge=st.booleans())
    def zombie(self, data: st.DataObject, batch: Batch, *, by_merge: bool) -> None:
        late = self._attempt(data.draw(st.sampled_from(self._given_up())))
        rows = dict(self.table.rows)
        with pytest.raises(Fenced):
            self._write(late, batch, by_merge=by_merge)
        with pytest.raises(Fenced):
            self.state.fence(late.attempt_id)
        assert (self.table.rows, self.table.version) == (rows, self.attempt_id)

    @rule()
    def take_over(self) -> None:
        """A new coordinator fences the table before it plans anything."""
        self.open()
        self.state.version()
        self.state.fence(self._next_id())
        self.fences.add(self.attempt_id)

    def _next_id(self) -> AttemptId:
        self.attempt_id += 1
        self.txid_of[self.attempt_id] = TxId(self.model.txid)
        return AttemptId(self.attempt_id)

    def _next_attempt(self) -> TransactionAttempt:
        return self._attempt(self._next_id())

    def _attempt(self, attempt_id: int) -> TransactionAttempt:
        return TransactionAttempt(self.txid_of[attempt_id], AttemptId(attempt_id))

    def _given_up(self) -> list[int]:
        """The attempts that are not the last one."""
        return sorted({*self.txid_of} - self.fences - {self.attempt_id})

    def _write(self, attempt: TransactionAttempt, batch: Batch, *, by_merge: bool) -> None:
        if by_merge:
            self.state.merge(attempt, partials(batch))
            return
        # What a late attempt reads first is of no matter here: it is refused when it writes.
        before = self._before(batch)
        self.state.put(attempt, {(word,): updated(before.get(word, ABSENT), part) for word, part in batch.items()})

    def _before(self, batch: Batch) -> Batch:
        current = TransactionAttempt(TxId(self.model.txid), AttemptId(self.attempt_id))
        found = self.state.get(current, [(word,) for word in batch])
        return {word: (values[0], values[1]) for (word,), values in found.items()}

    def _read(self, committed_txid: int | None) -> Batch:
        read = self.state.read(None if committed_txid is None else TxId(committed_txid)).to_pylist()
        return {row["word"]: (row["count"], row["note"]) for row in read}

    @invariant()
    def the_table_is_that_of_the_model(self) -> None:
        assert self._read(None) == self.model.now

    @invariant()
    def who_does_not_see_the_last_transaction_sees_what_was_before(self) -> None:
        assert self._read(self.model.txid - 1) == self.model.before

    @invariant()
    @precondition(lambda self: self.model.txid)
    def the_last_transaction_starts_from_what_was_before(self) -> None:
        assert self._before(dict.fromkeys("abc", (None, None))) == self.model.before


def partials(batch: Batch) -> Partials:
    columns = {
        "word": pa.array(batch.keys(), pa.string()),
        "count": pa.array([count for count, _ in batch.values()], pa.int64()),
        "note": pa.array([note for _, note in batch.values()], pa.string()),
    }
    return Partials({"count": "sum", "note": "last"}, pa.table(columns))


class OpaqueTables(Tables):
    kind = StateKind.OPAQUE


class TransactionalTables(Tables):
    kind = StateKind.TRANSACTIONAL


QUICK = settings(stateful_step_count=20)

TestValues = Values.TestCase
TestOpaqueTables = OpaqueTables.TestCase
TestTransactionalTables = TransactionalTables.TestCase
TestValues.settings = QUICK
TestOpaqueTables.settings = TestTransactionalTables.settings = QUICK
