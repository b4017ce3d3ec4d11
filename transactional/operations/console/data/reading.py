"""What the pages read from a store: one object per question, no more than the page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from transactional.core.machine.listing import awaited_partitions, format_awaited
from transactional.core.store import AttemptRecord, AttemptTimes, StoreReader, TopologyStatus
from transactional.core.store.history import RunRecord
from transactional.core.store.rules import lag_in, times_of
from transactional.model.attempt import AttemptId, TxId
from transactional.model.config import OPTIONS, TopologyConfig, unit_of
from transactional.model.plumbing.redaction import SHOWN_INSTEAD, is_secret
from transactional.operations.console.data.figures import (
    RECENT,
    PartitionRow,
    StateRow,
    committed_of,
    lags_in,
    states_of,
)

PAGE: Final = 40
"""Rows of a list."""
RUNS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Overview:
    """One topology at a glance: its last attempts newest first, its last runs newest first."""

    status: TopologyStatus
    recent: Sequence[AttemptTimes]
    runs: Sequence[RunRecord]

    @property
    def newest(self) -> AttemptTimes | None:
        """The last committed attempt."""
        return next(iter(committed_of(self.recent)), None)

    @property
    def described(self) -> Mapping[str, Any]:
        """The topology as its last run described it."""
        return next((run.about.topology for run in self.runs if run.about.topology), {})

    @property
    def states(self) -> list[StateRow]:
        """Its states."""
        return states_of(self.status, self.newest)


def overview_of(store: StoreReader, status: TopologyStatus) -> Overview:
    """Read what the overview shows."""
    recent = store.times(status.topology_id, limit=RECENT)
    return Overview(add_later_commits(status, recent), recent, store.runs(status.topology_id, limit=20))


def add_later_commits(status: TopologyStatus, recent: Sequence[AttemptTimes]) -> TopologyStatus:
    """Return a status that includes the commits among attempts that were read after it."""
    last = next(iter(committed_of(recent)), None)
    if last is None or last.attempt.txid <= status.committed_txid:
        return status
    trouble = status.trouble
    return replace(
        status,
        committed_txid=last.attempt.txid,
        committed_at_ms=last.committed_at_ms,
        lag=lag_in(last.details),
        trouble=None if trouble is not None and trouble.txid <= last.attempt.txid else trouble,
    )


@dataclass(frozen=True, slots=True)
class AttemptPage:
    """A page of the list of attempts. `older` is where the next page begins; None: this is the last."""

    rows: Sequence[AttemptTimes]
    older: AttemptId | None


def attempts_page(
    store: StoreReader, topology_id: str, *, before: AttemptId | None, phases: Sequence[str]
) -> AttemptPage:
    """Read one page of attempts."""
    found = store.times(topology_id, limit=PAGE + 1, before=before, phases=phases)
    return AttemptPage(found[:PAGE], found[PAGE - 1].attempt.attempt_id if len(found) > PAGE else None)


@dataclass(frozen=True, slots=True)
class Transaction:
    """All that is known of one transaction: its attempts, newest first, and the commit that it had to wait for."""

    attempts: Sequence[AttemptRecord]
    before: AttemptTimes | None

    @property
    def times(self) -> list[AttemptTimes]:
        """Its attempts without their batches, newest first."""
        return [times_of(record) for record in self.attempts]


def transaction_of(store: StoreReader, topology_id: str, txid: TxId) -> Transaction:
    """Read one transaction."""
    before = [times_of(record) for record in store.attempts_at(topology_id, TxId(txid - 1))] if txid > 1 else []
    return Transaction(store.attempts_at(topology_id, txid), next(iter(committed_of(before)), None))


def partitions_of(store: StoreReader, status: TopologyStatus) -> tuple[list[PartitionRow], str]:
    """The partitions as of the last transaction commit, and those without a record that windows waited for."""
    records = store.attempts_at(status.topology_id, status.committed_txid) if status.committed_txid else []
    newest = next((record for record in records if record.committed_at_ms is not None), None)
    return (
        ([], "")
        if newest is None
        else (partition_rows(newest), format_awaited(awaited_partitions(newest.batch.listed)))
    )


def partition_rows(record: AttemptRecord) -> list[PartitionRow]:
    """The partitions of one attempt's batch, those with the highest lag first, then by name."""
    lags = lags_in(record.details)
    most = max(lags.values(), default=0)
    ordered = sorted(record.batch.ranges, key=lambda each: (-lags.get((each.source, each.index), -1), each))
    rows = []
    for partition in ordered:
        digest, offsets = record.batch.digests.get(partition), record.batch.ranges[partition]
        lag = lags.get((partition.source, partition.index))
        records = digest.records if digest is not None else len(offsets)
        share = (lag or 0) / most if most else 0.0
        seen = record.batch.event_times.get(partition)
        event_ms = None if seen is None else seen.event_us // 1_000
        rows.append(PartitionRow(str(partition), offsets.until, records, lag, share, event_ms))
    return rows


@dataclass(frozen=True, slots=True)
class OptionRow:
    """An option as of a run, and as of the run before. What holds a secret is not shown, only whether it differs."""

    name: str
    value: Any
    unit: str
    default: Any
    before: Any
    has_changed: bool
    source: str = ""
    """Where the value is from; nothing: that was not recorded."""
    instead_of: Sequence[tuple[str, Any]] = ()
    """What it overrides, each with its source."""

    @property
    def is_default(self) -> bool:
        """Whether the value is the one that it would have anyhow."""
        return bool(self.value == self.default)


def options_of(run: RunRecord, before: RunRecord | None) -> list[OptionRow]:
    """The options of a run, beside those of the run before."""
    settings, earlier = run.about.settings, {} if before is None else before.about.settings
    defaults = TopologyConfig()
    names = [*(name for name in OPTIONS if name in settings), *(name for name in settings if name not in OPTIONS)]
    rows = []
    for name in names:
        value, previous = settings[name], earlier.get(name, settings[name])
        has_changed, default = bool(previous != value), getattr(defaults, name, None)
        (source, _), *instead_of = run.about.sources.get(name) or [("", None)]
        if is_secret(name) and name not in OPTIONS:
            value = previous = SHOWN_INSTEAD
            instead_of = [(where, SHOWN_INSTEAD) for where, _ in instead_of]
        rows.append(OptionRow(name, value, unit_of(name), default, previous, has_changed, source, instead_of))
    return rows
