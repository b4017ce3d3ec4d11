"""Reads from a store what pages show, and no more: one object for each page or part of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from transactional.core.machine.listing import awaited_partitions, format_awaited
from transactional.core.store import AttemptRecord, AttemptTimes, StoreReader, TopologyStatus
from transactional.core.store.history import RunRecord
from transactional.core.store.rules import lag_in, times_of
from transactional.model.attempt import AttemptId, TxId
from transactional.model.config import OPTIONS, TopologyConfig, option_unit
from transactional.model.plumbing.redaction import REDACTED, is_secret
from transactional.operations.console.data.figures import (
    RECENT,
    PartitionRow,
    StateRow,
    committed_of,
    lags_in,
    states_of,
)

PAGE: Final = 40
"""The number of rows on one page of a list."""
RUNS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Overview:
    """One topology at a glance: its last attempts newest first, its last runs newest first."""

    status: TopologyStatus
    recent: Sequence[AttemptTimes]
    runs: Sequence[RunRecord]

    @property
    def newest(self) -> AttemptTimes | None:
        """The newest committed attempt, if there is one."""
        return next(iter(committed_of(self.recent)), None)

    @property
    def described(self) -> Mapping[str, Any]:
        """The description of the topology by its last run, as `describe --format json` prints it."""
        return next((run.about.topology for run in self.runs if run.about.topology), {})

    @property
    def states(self) -> list[StateRow]:
        """The states of the topology as of the newest commit."""
        return states_of(self.status, self.newest)


def read_overview(store: StoreReader, status: TopologyStatus) -> Overview:
    """Read the newest attempts and the last runs of a topology."""
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
    """A page of the list of attempts. The next page begins before attempt `older`, or is missing if that is None."""

    rows: Sequence[AttemptTimes]
    older: AttemptId | None


def read_attempts_page(
    store: StoreReader, topology_id: str, *, older_than: AttemptId | None, phases: Sequence[str]
) -> AttemptPage:
    """Read one page of attempts."""
    attempts = store.times(topology_id, limit=PAGE + 1, before=older_than, phases=phases)
    return AttemptPage(attempts[:PAGE], attempts[PAGE - 1].attempt.attempt_id if len(attempts) > PAGE else None)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The attempts at one transaction, newest first, and the commit of the transaction before it."""

    attempts: Sequence[AttemptRecord]
    previous: AttemptTimes | None

    @property
    def times(self) -> list[AttemptTimes]:
        """The attempts without their batches, newest first."""
        return [times_of(record) for record in self.attempts]


def read_transaction(store: StoreReader, topology_id: str, txid: TxId) -> Transaction:
    """Read the attempts at a transaction, and the commit of the one before it."""
    previous = [times_of(record) for record in store.attempts_at(topology_id, TxId(txid - 1))] if txid > 1 else []
    return Transaction(store.attempts_at(topology_id, txid), next(iter(committed_of(previous)), None))


def read_partitions(store: StoreReader, status: TopologyStatus) -> tuple[list[PartitionRow], str]:
    """Read the partitions as of the last transaction commit, and the text that names those without a record for which
    windows waited."""
    records = store.attempts_at(status.topology_id, status.committed_txid) if status.committed_txid else []
    newest = next((record for record in records if record.committed_at_ms is not None), None)
    return (
        ([], "")
        if newest is None
        else (partition_rows(newest), format_awaited(awaited_partitions(newest.batch.listed)))
    )


def partition_rows(record: AttemptRecord) -> list[PartitionRow]:
    """Return the partitions of an attempt's batch, those with the highest lag first, then by name."""
    lags = lags_in(record.details)
    most = max(lags.values(), default=0)
    ordered = sorted(
        record.batch.ranges, key=lambda partition: (-lags.get((partition.source, partition.index), -1), partition)
    )
    rows = []
    for partition in ordered:
        digest, offsets = record.batch.digests.get(partition), record.batch.ranges[partition]
        lag = lags.get((partition.source, partition.index))
        records = digest.records if digest is not None else len(offsets)
        share = (lag or 0) / most if most else 0.0
        newest_event = record.batch.event_times.get(partition)
        event_ms = None if newest_event is None else newest_event.event_us // 1_000
        rows.append(PartitionRow(str(partition), offsets.until, records, lag, share, event_ms))
    return rows


@dataclass(frozen=True, slots=True)
class OptionRow:
    """An option as of a run and of the previous one. The value of a secret is not shown, only whether it differs."""

    name: str
    value: Any
    unit: str
    default: Any
    previous: Any
    has_changed: bool
    source: str = ""
    """The source of the value, such as `--set`, or an empty text if it was not recorded."""
    instead_of: Sequence[tuple[str, Any]] = ()
    """The values that this one overrides, each with its source."""

    @property
    def is_default(self) -> bool:
        """Whether the value is the default."""
        return bool(self.value == self.default)


def options_of(run: RunRecord, previous_run: RunRecord | None) -> list[OptionRow]:
    """Return the options of a run, with those of the previous run."""
    settings, earlier = run.about.settings, {} if previous_run is None else previous_run.about.settings
    defaults = TopologyConfig()
    names = [*(name for name in OPTIONS if name in settings), *(name for name in settings if name not in OPTIONS)]
    rows = []
    for name in names:
        setting, previous_setting = settings[name], earlier.get(name, settings[name])
        has_changed, default = bool(previous_setting != setting), getattr(defaults, name, None)
        (source, _), *instead_of = run.about.sources.get(name) or [("", None)]
        if is_secret(name) and name not in OPTIONS:
            setting = previous_setting = REDACTED
            instead_of = [(source, REDACTED) for source, _ in instead_of]
        rows.append(
            OptionRow(name, setting, option_unit(name), default, previous_setting, has_changed, source, instead_of)
        )
    return rows
