"""Random histories with dead attempts, take-overs and new processes, against a dict."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

from transactional.core.ports import StateKind
from transactional.model.absent import ABSENT
from transactional.model.attempt import TransactionAttempt
from transactional.testing.states.removed_rows import EXPIRY, SEEN, time_of
from transactional.testing.states.trial import KINDS, Trial, Writer, cases

WORDS = ("cat", "dog", "owl", "", None)
Model = dict[Any, Any]


@dataclass(slots=True)
class RandomHistory:
    """Random transactions over one table, and a dict as the model of its rows after each."""

    trial: Trial
    random: Random
    kind: StateKind = StateKind.OPAQUE
    deletes: bool = False
    puts: bool = True
    expires: bool = False
    model: Model = field(default_factory=dict)
    horizon: float | None = None

    def open_table(self) -> Writer:
        """Open the table as one more process."""
        values, expiry = (SEEN, EXPIRY) if self.expires else ("count long", None)
        return self.trial.open(values=values, kind=self.kind, deletes=self.deletes, expiry=expiry)

    def run_transactions(self, transactions: int) -> None:
        """Run attempt after attempt, some of which die. A replay of a transactional state has the same tuples."""
        words, time_s = self.open_table(), 5.0
        for txid in range(1, transactions + 1):
            time_s += self.random.choice((0, 1, 3, 7, 20))
            same, next_model, horizon = self.random.randrange(1_000_000), self.model, self.horizon
            for _ in range(self.random.choice((1, 1, 2, 3))):
                if self.random.random() < 0.2:
                    words.close()
                    words = self.open_table()
                    words.fence(txid if next_model is not self.model else txid - 1)
                is_same = self.kind is StateKind.TRANSACTIONAL
                seed, clock = (
                    (same, time_s) if is_same else (self.random.random(), time_s + self.random.choice((-4, 0, 4)))
                )
                next_model, horizon = self.run_attempt(words, self.trial.attempt(txid), clock, Random(seed))
                words.check_rows(next_model)
                words.check_rows(self.model, committed=txid - 1)
            words.state.parts.maintenance.maintain(self.trial.txid_of(words.state.version()), lambda: True)
            words.check_rows(self.model, committed=txid - 1)
            self.model, self.horizon = next_model, horizon

    def run_attempt(
        self, words: Writer, attempt: TransactionAttempt, time_s: float, random: Random
    ) -> tuple[Model, float | None]:
        """Run one attempt, and check what it reads. Return the rows and the expiry horizon after it."""
        horizon = max(time for time in (self.horizon, time_s - 10) if time is not None) if self.expires else None
        rows_before = self.without_expired(self.model, horizon)
        words.begin(attempt, time_s if self.expires else None)
        words.check_lookup(attempt, rows_before, WORDS)
        new = {word: self.random_value(random, time_s) for word in random.sample(WORDS, random.randrange(5))}
        if not self.puts:
            words.merge(attempt, new, {"count": "sum", "seen": "max"} if self.expires else "sum")
            return self.without_expired(
                rows_before | {w: self.merge_value(rows_before.get(w), row) for w, row in new.items()}, horizon
            ), horizon
        new |= dict.fromkeys(random.sample(WORDS, 2), ABSENT) if self.deletes else {}
        words.put(attempt, new)
        rows_after = {word: row for word, row in (rows_before | new).items() if row is not ABSENT}
        return self.without_expired(rows_after, horizon), horizon

    def random_value(self, random: Random, time_s: float) -> Any:
        """Return a random count, with a random time if rows expire."""
        count = random.choice((None, 1, 2, 3, 4))
        return (count, random.choice((time_of(time_s - random.randrange(15)), None))) if self.expires else count

    def merge_value(self, stored: Any, partial: Any) -> Any:
        """Merge a partial value into the stored one: the sum of counts, and the later time."""
        if not self.expires:
            return _add(stored, partial)
        count, last_time = stored or (None, None)
        times = [time for time in (last_time, partial[1]) if time is not None]
        return _add(count, partial[0]), max(times, default=None)

    def without_expired(self, rows: Model, horizon: float | None) -> Model:
        """Return the rows that have not expired."""
        return {word: row for word, row in rows.items() if horizon is None or _is_after(row[1], horizon)}


def _add(stored: int | None, partial: int | None) -> int | None:
    numbers = [number for number in (stored, partial) if number is not None]
    return sum(numbers) if numbers else None


def _is_after(time: datetime | None, horizon: float) -> bool:
    return time is None or time > time_of(horizon)


SEEDS = range(2)


def _run_history(trial: Trial, seed: int, **options: Any) -> None:
    """Run a random history: of an opaque state for an even seed, of a transactional one for an odd seed."""
    RandomHistory(trial, Random(seed), KINDS[seed % 2], **options).run_transactions(8)


@cases(SEEDS)
def histories_of_puts(trial: Trial, seed: int) -> None:
    """A table ends like a dict into which each transaction was put once, whatever attempts and processes die (Storm row
    C11)."""
    _run_history(trial, seed)


@cases(SEEDS)
def histories_of_puts_and_deletes(trial: Trial, seed: int) -> None:
    """The same where keys are deleted."""
    _run_history(trial, seed, deletes=True)


@cases(SEEDS)
def histories_of_merges(trial: Trial, seed: int) -> None:
    """The same where values are added up."""
    _run_history(trial, seed, puts=False)


@cases(range(4))
def histories_of_rows_that_expire(trial: Trial, seed: int) -> None:
    """The same where rows expire."""
    _run_history(trial, seed, puts=seed < 2, expires=True)


MANY = 2_500


@cases((True, False))
def many_keys(trial: Trial, puts: bool) -> None:  # noqa: FBT001 - the case's parameter
    """A transaction may have more keys than one SQL statement can hold."""
    words, write = trial.open("word string, n int"), "put" if puts else "merge"
    keys = [(f"word {number // 4}" if number % 97 else None, number % 4 or None) for number in range(MANY)]
    rows, further_rows = dict.fromkeys(keys, 1), dict.fromkeys(keys[::2], 2)
    quiet = trial.steps.copy()
    getattr(words, write)(1, rows)
    getattr(words, write)(2, dict.fromkeys(keys[1::2], 9))
    getattr(words, write)(2, further_rows)
    trial.steps[:] = [*quiet, f"{words.name}: {write} of {len(rows)} keys, a dead attempt at half, a replay at others"]
    expected = rows | dict.fromkeys(further_rows, 2 if puts else 3)
    words.check_rows(expected)
    words.check_rows(rows, committed=1)
    words.check_lookup(3, {key: expected[key] for key in keys}, dict.fromkeys(keys))
