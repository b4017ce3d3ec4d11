"""What a coordinator's store keeps of the past besides attempts: runs, minutes; and how much of it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from transactional.attempt import Epoch, TxId


class EndedHow(Enum):
    """How a run ended; `value` is the word shown."""

    DRAINED = "drained"
    """The source had nothing more, or somebody wished it; all that was in flight is committed."""
    KILLED = "killed"
    """By command, in its time."""
    STOPPED = "stopped"
    """Asked to, by a signal or by the program that runs it."""
    FAILED = "failed"
    """By an error; `code` and `reason` say which."""
    LOST = "lost"
    """Nobody said: its process was gone, or cut off from the store, when the next run took the lease."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Why a run ends. `code` is the error's, like `TX406`; None where it has none, or there was no error."""

    how: EndedHow
    code: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RunAbout:
    """What a run is, as `acquire` stores it: the version of transactional, the topology and its settings, as JSON."""

    version: str = ""
    topology: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as the store remembers it; times by the store's clock, in milliseconds since 1970.

    `end` is None while it runs, and for one that is gone until the next run takes the lease.
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
    """What one run committed in one minute, which began at `at_ms`; milliseconds since 1970 by the run's clock.

    `latencies` counts transactions by how long they took, in the buckets of whoever wrote it; `phases_ms` is the time
    spent by phase.
    """

    at_ms: int
    transactions: int
    rows: int
    failures: int
    latencies: tuple[int, ...] = ()
    lag_sum: int = 0
    lag_max: int = 0
    phases_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of the past is kept: so many attempts, none that was issued before `since_ms`."""

    attempts_max: int
    since_ms: int = 0


TRIMMED_PER_COMMIT = 2
"""So many of the oldest attempts go in a transaction commit's own write, one more than come with it: the store shrinks
to its limit, and no single write is slow."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a topology from committing: since when (by the run's clock), at which transaction, the last error."""

    since_ms: int
    txid: TxId
    error: str
