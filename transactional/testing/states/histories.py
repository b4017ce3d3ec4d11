"""Random histories with dead attempts, take-overs and new processes, against a dict."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

from transactional.core.ports import StateKind
from transactional.model.absent import ABSENT
from transactional.model.attempt import TransactionAttempt
from transactional.testing.states.going import EXPIRY, SEEN, at
from transactional.testing.states.trial import KINDS, Trial, Writer, cases

WORDS = ("cat", "dog", "owl", "", None)
Model = dict[Any, Any]


@dataclass(slots=True)
class RandomHistory:
    """Transactions over one table, and what a reader has to find after each."""

    trial: Trial
    random: Random
    kind: StateKind = StateKind.OPAQUE
    deletes: bool = False
    puts: bool = True
    expires: bool = False
    model: Model = field(default_factory=dict)
    horizon: float | None = None

    def opened(self) -> Writer:
        """The table as one more process opens it."""
        values, expiry = (SEEN, EXPIRY) if self.expires else ("count long", None)
        return self.trial.open(values=values, kind=self.kind, deletes=self.deletes, expiry=expiry)

    def live_through(self, transactions: int) -> None:
        """Attempt after attempt, some of them dead. A transactional spout gives a replay the same tuples."""
        words, now = self.opened(), 5.0
        for txid in range(1, transactions + 1):
            now += self.random.choice((0, 1, 3, 7, 20))
            same, after, horizon = self.random.randrange(1_000_000), self.model, self.horizon
            for _ in range(self.random.choice((1, 1, 2, 3))):
                if self.random.random() < 0.2:
                    words.close()
                    words = self.opened()
                    words.fence(txid if after is not self.model else txid - 1)
                is_same = self.kind is StateKind.TRANSACTIONAL
                seed, clock = (same, now) if is_same else (self.random.random(), now + self.random.choice((-4, 0, 4)))
                after, horizon = self.attempted(words, self.trial.attempt(txid), clock, Random(seed))
                words.holds(after)
                words.holds(self.model, committed=txid - 1)
            words.state.maintain(self.trial.txid_of(words.state.version()), lambda: True)
            words.holds(self.model, committed=txid - 1)
            self.model, self.horizon = after, horizon

    def attempted(
        self, words: Writer, attempt: TransactionAttempt, now: float, random: Random
    ) -> tuple[Model, float | None]:
        """One attempt: the rows and the horizon after it. Checks what it reads."""
        horizon = max(each for each in (self.horizon, now - 10) if each is not None) if self.expires else None
        before = self.left(self.model, horizon)
        words.begin(attempt, now if self.expires else None)
        words.finds(attempt, before, WORDS)
        new = {word: self.value(random, now) for word in random.sample(WORDS, random.randrange(5))}
        if not self.puts:
            words.merge(attempt, new, {"count": "sum", "seen": "max"} if self.expires else "sum")
            return self.left(before | {w: self.merged(before.get(w), row) for w, row in new.items()}, horizon), horizon
        new |= dict.fromkeys(random.sample(WORDS, 2), ABSENT) if self.deletes else {}
        words.put(attempt, new)
        after = {word: row for word, row in (before | new).items() if row is not ABSENT}
        return self.left(after, horizon), horizon

    def value(self, random: Random, now: float) -> Any:
        """A count, or a count and a time."""
        count = random.choice((None, 1, 2, 3, 4))
        return (count, random.choice((at(now - random.randrange(15)), None))) if self.expires else count

    def merged(self, stored: Any, partial: Any) -> Any:
        """What becomes of a value with one that comes."""
        if not self.expires:
            return _total(stored, partial)
        count, seen = stored or (None, None)
        times = [each for each in (seen, partial[1]) if each is not None]
        return _total(count, partial[0]), max(times, default=None)

    def left(self, rows: Model, horizon: float | None) -> Model:
        """The rows that have not expired."""
        return {word: row for word, row in rows.items() if horizon is None or _is_after(row[1], horizon)}


def _total(stored: int | None, partial: int | None) -> int | None:
    there = [each for each in (stored, partial) if each is not None]
    return sum(there) if there else None


def _is_after(time: datetime | None, horizon: float) -> bool:
    return time is None or time > at(horizon)


SEEDS = range(2)


def _each_kind(trial: Trial, seed: int, **how: Any) -> None:
    """Even numbers are opaque."""
    RandomHistory(trial, Random(seed), KINDS[seed % 2], **how).live_through(8)


@cases(SEEDS)
def histories_of_puts(trial: Trial, seed: int) -> None:
    """Whatever attempts and processes die, a table ends as a dict does that each transaction was put into once (Storm
    row C11)."""
    _each_kind(trial, seed)


@cases(SEEDS)
def histories_of_puts_and_deletes(trial: Trial, seed: int) -> None:
    """The same where keys are deleted."""
    _each_kind(trial, seed, deletes=True)


@cases(SEEDS)
def histories_of_merges(trial: Trial, seed: int) -> None:
    """The same where values are added up."""
    _each_kind(trial, seed, puts=False)


@cases(range(4))
def histories_of_rows_that_expire(trial: Trial, seed: int) -> None:
    """The same where rows expire."""
    _each_kind(trial, seed, puts=seed < 2, expires=True)


MANY = 2_500


@cases((True, False))
def many_keys(trial: Trial, puts: bool) -> None:  # noqa: FBT001 - the case's parameter
    """So many keys that no statement holds them all at once."""
    words, write = trial.open("word string, n int"), "put" if puts else "merge"
    keys = [(f"word {number // 4}" if number % 97 else None, number % 4 or None) for number in range(MANY)]
    rows, more = dict.fromkeys(keys, 1), dict.fromkeys(keys[::2], 2)
    quiet = trial.steps.copy()
    getattr(words, write)(1, rows)
    getattr(words, write)(2, dict.fromkeys(keys[1::2], 9))
    getattr(words, write)(2, more)
    trial.steps[:] = [*quiet, f"{words.name}: {write} of {len(rows)} keys, a dead attempt at half, a replay at others"]
    after = rows | dict.fromkeys(more, 2 if puts else 3)
    words.holds(after)
    words.holds(rows, committed=1)
    words.finds(3, {key: after[key] for key in keys}, dict.fromkeys(keys))
