"""The history in a coordinator's store besides attempts: runs, minutes and savepoints; and how much of it is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from transactional.model.attempt import Epoch, TxId
from transactional.model.plumbing.redaction import without_login


class EndedHow(Enum):
    """How a run ended; `value` is the word displayed."""

    DRAINED = "drained"
    """The source had no more data, or an operator requested it; everything in flight was committed."""
    KILLED = "killed"
    """`transactional kill` ended it, after its wait."""
    STOPPED = "stopped"
    """A signal, or the program that runs it, ended it."""
    FAILED = "failed"
    """An error ended it; `code` and `reason` say which."""
    REWOUND = "rewound"
    """A rewind, which is no run, took the topology back to an earlier transaction; `reason` says from which to
    which."""
    LOST = "lost"
    """The process recorded no end: it was gone, or disconnected from the store, when the next run took the lease."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Why a run ends. `code` is the error's, such as `TX406`; None if it has none, or there was no error. `reason` is
    without logins."""

    how: EndedHow
    code: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            object.__setattr__(self, "reason", without_login(self.reason))


@dataclass(frozen=True, slots=True)
class RunAbout:
    """The description of a run that `acquire` stores: the version of transactional, the topology and its settings.

    `sources` has, for each option that is not left at its default, `[source, value]` of the value and of those that it
    overrides, the strongest first.
    """

    version: str = ""
    topology: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as recorded in the store; times by the store's clock, in milliseconds since 1970.

    `end` is None while it runs, and for a dead run until the next one takes the lease.
    """

    epoch: Epoch
    owner: str
    name: str | None
    about: RunAbout
    began_at_ms: int
    began_at_txid: TxId
    ended_at_ms: int | None = None
    ended_at_txid: TxId | None = None
    end: RunEnd | None = None


@dataclass(frozen=True, slots=True)
class MinuteRecord:
    """The commits of one run in the minute that started at `at_ms`, in milliseconds since 1970 by the run's clock.

    `latencies` counts transactions by duration, in the writer's buckets; `phases_ms` is the time spent by phase.
    """

    at_ms: int
    transactions: int
    rows: int
    failures: int
    latencies: tuple[int, ...] = ()
    lag_sum: int = 0
    lag_max: int = 0
    phases_ms: Mapping[str, int] = field(default_factory=dict)


def summed_up(minutes: Iterable[MinuteRecord], since_ms: int, each_ms: int) -> list[MinuteRecord]:
    """Return sums over parts of `each_ms` from `since_ms` on, oldest first; without `latencies`."""
    parts: dict[int, MinuteRecord] = {}
    for minute in minutes:
        at_ms = since_ms + (minute.at_ms - since_ms) // each_ms * each_ms
        previous = parts.get(at_ms, MinuteRecord(at_ms, 0, 0, 0))
        parts[at_ms] = MinuteRecord(
            at_ms,
            previous.transactions + minute.transactions,
            previous.rows + minute.rows,
            previous.failures + minute.failures,
            (),
            previous.lag_sum + minute.lag_sum,
            max(previous.lag_max, minute.lag_max),
            phases_summed_up((previous.phases_ms, minute.phases_ms)),
        )
    return [parts[at_ms] for at_ms in sorted(parts)]


def phases_summed_up(several: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the time spent by phase, summed over several minutes."""
    return {phase: sum([minute.get(phase, 0) for minute in several]) for phase in sorted(set[str]().union(*several))}


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of the past is kept: at most this many attempts, none that was issued before `since_ms`."""

    attempts_max: int
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A transaction to which an operator wants to be able to go back: what that takes is kept until it is dropped."""

    name: str
    txid: TxId
    noted_at_ms: int


TRIMMED_PER_COMMIT = 2
"""How many of the oldest attempts a transaction commit deletes in its own write, one more than it adds: the store
shrinks to its limit, and no single write is slow."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failure that prevents a topology from committing: since when (by the run's clock), at which transaction, the
    last error."""

    since_ms: int
    txid: TxId
    error: str
