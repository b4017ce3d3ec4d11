"""The notices that the store alone gives rise to, and the doctor's findings, for the doctor's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from transactional.core.ports.examining import Diagnosis
from transactional.core.store import DesiredState, StoreReader, TopologyStatus
from transactional.core.store.history import EndedHow
from transactional.core.store.rules import COMMITTED, OPEN, upkeep_in
from transactional.core.store.troubles import retry_at_stop
from transactional.model.drawing.formats import first_line, format_date_time, format_duration
from transactional.model.errors import TransactionalError
from transactional.operations.doctor.examine import examine, unexamined
from transactional.operations.doctor.store import examine_rows
from transactional.topology.topology import Topology

_LONG_MS: Final = 300_000
"""The time in flight after which an attempt is worth a notice."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person should know: a text, what to do, and whether it prevents transaction commits."""

    text: str
    remedy: str
    is_bad: bool = True


@dataclass(frozen=True, slots=True)
class Examination:
    """The doctor's findings. `unexamined` are committers without a table that can be opened here; `problem` says why
    the examination failed, if it did."""

    findings: Sequence[Diagnosis] = ()
    unexamined: Sequence[str] = field(default_factory=list)
    problem: str = ""

    @property
    def can_repair(self) -> bool:
        """Whether `--repair` would do something."""
        return any(finding.can_repair for finding in self.findings)


def find_notices(store: StoreReader, status: TopologyStatus, now_ms: int) -> list[Notice]:
    """Return the notices that the store alone gives rise to, without an examination of tables or source."""
    return [
        *_trouble_notices(store, status),
        *_status_notices(status),
        *_attempt_notices(store, status, now_ms),
        *_maintenance_notices(store, status),
    ]


def _trouble_notices(store: StoreReader, status: TopologyStatus) -> Iterator[Notice]:
    if (trouble := status.trouble) is None:
        return
    error = f"at last with: {first_line(trouble.error)}"
    remedy = f"The page of transaction {trouble.txid} has each attempt with its traceback."
    if (retry := retry_at_stop(store, status)) is not None:
        text = f"Transaction {trouble.txid} {retry}, {error}"
        yield Notice(text, f"The next run tries it again. {remedy}", is_bad=False)
    else:
        since = format_date_time(trouble.since_ms)
        text = f"No transaction commit since {since}: transaction {trouble.txid} fails, {error}"
        yield Notice(text, remedy)


def _status_notices(status: TopologyStatus) -> Iterator[Notice]:
    if status.rewinding_to is not None:
        text = f"A rewind to transaction {status.rewinding_to} was begun and is not finished."
        yield Notice(text, "Run the same command again: it continues where it stopped.")
    run = status.run
    if not status.is_leased and run is not None and (run.end is None or run.end.how is EndedHow.LOST):
        text = f"Run {run.epoch} has no recorded end: its process was killed, or lost the store."
        yield Notice(text, "Start it again: it continues after the last committed transaction.")
    if run is not None and run.end is not None and run.end.how is EndedHow.FAILED:
        text = f"Run {run.epoch} ended with {run.end.code}: {first_line(run.end.reason)}"
        yield Notice(text, "The code leads to what to do.")
    if status.desired in (DesiredState.INACTIVE, DesiredState.KILLED):
        yield Notice(f"It is {status.desired.value}: nothing new is issued.", "Activate it.", is_bad=False)


def _attempt_notices(store: StoreReader, status: TopologyStatus, now_ms: int) -> Iterator[Notice]:
    if not status.is_leased:
        return
    for attempt in store.times(status.topology_id, limit=40, phases=OPEN):
        stands_ms = now_ms - attempt.issued_at_ms
        if stands_ms > _LONG_MS and attempt.attempt.txid == status.committed_txid + 1:
            yield Notice(
                f"Transaction {attempt.attempt.txid} is the next to be committed, and its attempt "
                f"{attempt.attempt.attempt_id} has been in flight for {format_duration(stands_ms)}.",
                "Spark's own pages show what its tasks wait for; attempt_timeout_ms limits how long it may take.",
            )


def _maintenance_notices(store: StoreReader, status: TopologyStatus) -> Iterator[Notice]:
    newest = next(iter(store.times(status.topology_id, limit=1, phases=(COMMITTED,))), None)
    for component, reason in upkeep_in(None if newest is None else newest.details).items():
        yield Notice(
            f"The table of {component} is not maintained, and others may not be able to open it: {first_line(reason)}",
            "An examination of the table shows what is missing; its files have to be restored from a backup.",
        )


def run_examination(
    topology: Topology | None, store: StoreReader, topology_id: str, store_url: str | None
) -> Examination:
    """Examine a topology, or only its rows in the store if its code is not known here."""
    try:
        if topology is not None:
            return Examination(examine(topology, store, store_url), unexamined(topology))
        return Examination([] if store_url is None else list(examine_rows(topology_id, store_url)))
    except (TransactionalError, OSError) as error:
        return Examination(problem=first_line(str(error)))
