"""Keys that expire, and pass into a second table as they do: real expiry horizons, a real stream of what closes.

And the truth.

How old a key is depends on the amounts that were counted for it: some are too old when they come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from state.rows.expiring import ExpiryHorizons, is_expired
from state.rows.stored_value import StoredValue
from tests.simulation.changes import SimulatedUpdate
from tests.simulation.source import OUTPUT
from tests.simulation.tables import Counts, SimulatedState, SimulatedTable
from transactional.core.ports import Windowed
from transactional.model.absent import ABSENT
from transactional.model.aggregates import Max, Sum, TableAggregator, describe_aggregates
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

GONE = "gone"
"""The table into which passes what expires."""
AFTER_MS = 1_000
BEHIND_MS = (0, 700, 300)
"""By how much the clocks of processes are behind, in turn."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEY, VALUES = Schema.parse("word string"), Schema.parse("count long, at timestamp")
COLUMNS = Schema((*KEY, *VALUES))
AGGREGATES = (("count", Sum("count")), ("at", Max("at")))
AGGREGATOR = TableAggregator(KEY, VALUES, AGGREGATES)
Record = tuple[str, int]


def key_of(word: str, amount: int) -> str:
    """There are more keys than words, so that some do not come for a while."""
    return f"{word}{amount}"


def time_of(amount: int, time_ms: int) -> datetime:
    """When a record was, that is counted in a transaction of this time."""
    return EPOCH + timedelta(milliseconds=time_ms + 250 * (amount - 5))


def rows_of(records: Sequence[Record], facts: BatchFacts | None) -> pa.Table:
    """Partial aggregates, as a processing phase gives them."""
    assert facts is not None
    counts, times = Counter[str](), dict[str, datetime]()
    for word, amount in records:
        key, at = key_of(word, amount), time_of(amount, facts.time_ms)
        counts[key] += amount
        times[key] = max(at, times.get(key, at))
    schema = arrow_schema(COLUMNS)
    columns = [list(counts), list(counts.values()), [times[key] for key in counts]]
    return pa.table([pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)], schema=schema)


class ExpiringTable(SimulatedTable):
    """A table whose rows expire."""

    __slots__ = ()

    def seen(self, committed_txid: TxId) -> dict[str, int]:
        """What a reader sees: of rows that have expired, nothing."""
        horizon, seen = self.horizons.for_reader(committed_txid), Counter[str]()
        for rows in (self.rows, self.twice):
            for key, row in rows.items():
                values = row.value_for_reader(committed_txid)
                if values is not ABSENT and not is_expired(values[1], horizon):
                    seen[key[0]] += values[0]
        return dict(seen)


class ExpiringState(SimulatedState):
    """One process' handle of it."""

    values_declared = str(VALUES)
    expires: Mapping[str, str] = {"expires": "at", "after": f"{AFTER_MS} milliseconds"}
    forgotten = (-1_000_000, None)

    def rows_between(self, attempt: TransactionAttempt, column: str, after: int | None, until: int) -> pa.Table:
        self._before(f"read what of {self.stored.name} expires for {attempt}")
        found = super().rows_between(attempt, column, after, until)
        self._reached["a replay passes on again what expires"] += bool(found.num_rows) and self.is_replay(attempt)
        return found

    def _rows_of_partials(self, partials: Counts) -> Mapping[Key, tuple[Any, ...]]:
        columns = [partials.table[name].to_pylist() for name in COLUMNS.names]
        return {(word,): (count, at) for word, count, at in zip(*columns, strict=True)}

    def _written(self, txid: TxId, rows: Mapping[Key, Any], *how: Any) -> dict[Key, StoredValue]:
        horizons: ExpiryHorizons = how[-1]
        old = self.stored.rows
        before = [old[key].value_before(txid) for key in rows if key in old]
        again = [each for each in before if each is not ABSENT and is_expired(each[1], horizons.current)]
        self._reached["a key comes again that has expired"] += bool(again)
        written = super()._written(txid, rows, *how)
        past = [key for key, row in old.items() if key not in written and row.txid < txid]
        self._reached["rows that have expired are removed"] += bool(past)
        return written


class Expiring(SimulatedUpdate, Windowed):
    """The update of such a table, which passes on what expires in the transaction in which it does."""

    windows_shown, longest_wait_us, combine = "", 0, AGGREGATOR.combine_kinds
    aggregates_shown = describe_aggregates(dict(AGGREGATOR.aggregates))
    closed_fields = OUTPUT

    def __init__(self, state: ExpiringState) -> None:
        self.state = state

    def first_time(self, watermark_us: int, *, by_end: bool) -> int:
        """Nothing is behind it."""
        return watermark_us

    def aggregator(self) -> TableAggregator:
        """The real one."""
        return AGGREGATOR

    def closing(self, facts: BatchFacts | None) -> tuple[str, int | None, int] | None:
        """What is below the transaction's horizon, and was not below the one before."""
        return None if facts is None else ("at", None, (facts.time_ms - AFTER_MS) * 1_000)

    def close_windows(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """As it is."""
        return rows.select(list(OUTPUT.names))


class Expired:
    """What is right: rows as they are after each transaction, and those that have passed on."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, datetime]] = {}
        self.gone: Counter[str] = Counter()

    def commit(self, time_ms: int, records: Iterable[Record]) -> None:
        """What a transaction of this time counts."""
        horizon = EPOCH + timedelta(milliseconds=time_ms - AFTER_MS)
        for key, (count, at) in list(self.rows.items()):
            if at <= horizon:
                self.gone[key] += count
                del self.rows[key]
        for word, amount in records:
            key, at = key_of(word, amount), time_of(amount, time_ms)
            known, latest = self.rows.get(key, (0, at))
            self.rows[key] = known + amount, max(latest, at)
        self.rows = {key: row for key, row in self.rows.items() if row[1] > horizon}

    def counts(self) -> dict[str, int]:
        """What a reader sees."""
        return {key: count for key, (count, _) in self.rows.items()}
