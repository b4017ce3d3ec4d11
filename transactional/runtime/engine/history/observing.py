"""Observers of a run: the journal, the display, metrics, traces, logs, and whatever else is notified of all events.

All that a run reports comes through here, in the driver's thread and in order: the events, the actions that followed,
and notices of what is no event of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from transactional.core.machine.protocol import Action, Event
from transactional.core.store import AttemptRecord, Lease
from transactional.core.store.history import RunEnd, RunRecord
from transactional.core.store.progress import Progress
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.model.guarantees import Guarantee
from transactional.runtime.engine.history.timeline import Flight


@dataclass(frozen=True, slots=True)
class StandingBy:
    """The run waits until no other process leads the topology."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The run has the lease, and every table is fenced.

    `before` is the run before this one, None if there was none; its `end` is `LOST` if its process was gone.
    `interrupted` are the attempts that were in flight then.
    """

    lease: Lease
    before: RunRecord | None
    interrupted: Sequence[AttemptRecord] = ()


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The lease holds for this long from now on."""

    lease_ms: int


@dataclass(frozen=True, slots=True)
class StoreWritten:
    """The coordinator's store has confirmed a write. `took_ms` includes waiting for a store that did not respond."""

    write: str
    took_ms: float


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction is committed. `details` is what the store keeps about it: lag, tuples, times of states, letters."""

    flight: Flight
    batch: BatchMetadata
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Maintained:
    """A committer's table was maintained: compacted, vacuumed."""

    component: str
    took_ms: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """A problem is resolved: `what` says how."""

    txid: TxId
    failures: int
    after_ms: int
    what: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended, as `end` says; with `error`, if that is what ended it."""

    end: RunEnd
    committed_txid: TxId | None
    error: BaseException | None = None


Notice = StandingBy | Leading | LeaseRenewed | StoreWritten | Committed | Maintained | Recovered | Ended


class Observer(Protocol):
    """Notified of every event and the actions that followed, after they were performed."""

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """`at_ms` is wall-clock time."""


@runtime_checkable
class RunObserver(Observer, Protocol):
    """An observer that is also notified of the start of a run, before the first event."""

    def begin(
        self,
        at_ms: int,
        progress: Progress,
        config: TopologyConfig,
        *,
        replays_exactly: bool,
        sets_aside: bool,
        guarantee: Guarantee,
        has_windows: bool,
    ) -> None:
        """Everything that a coordinator is created from."""


@runtime_checkable
class NoticeObserver(Observer, Protocol):
    """An observer that is also notified of what is no event of the protocol."""

    def notice(self, at_ms: int, notice: Notice) -> None:
        """`at_ms` is wall-clock time."""
