"""Rows of the coordinator's store in SQL as values, and values as its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Row

from transactional.core.store import AttemptRecord, AttemptTimes, Desired, DesiredState, TopologyStatus
from transactional.core.store.history import (
    EndedHow,
    MinuteRecord,
    RunAbout,
    RunEnd,
    RunRecord,
    Trouble,
)
from transactional.core.store.rules import COMMITTERS, desired_of, lag_in
from transactional.core.store.sql.schema import PHASES
from transactional.model.attempt import AttemptId, Epoch, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.errors import CorruptRecord

COUNTED_MAX = 2**62
"""A limit that no epoch, attempt or transaction reaches."""


def status_of(row: Row[Any]) -> TopologyStatus:
    """A row of `STATUS` as a value. Raises `CorruptRecord` if it is invalid."""
    with readable(f"the row of topology {row.topology_id!r} in transactional_topologies"):
        return _status_of(row)


def _status_of(row: Row[Any]) -> TopologyStatus:
    until_ms = whole_or_none(row.leased_until_ms)
    return TopologyStatus(
        topology_id=row.topology_id,
        epoch=Epoch(counted(row.epoch)),
        owner=row.owner,
        leased_until_ms=until_ms,
        is_leased=until_ms is not None and until_ms > row.now_ms,
        committed_txid=TxId(counted(row.committed_txid)),
        attempt_id=AttemptId(counted(row.attempt_id)),
        fingerprint=_fingerprint(row.fingerprint),
        name=row.name,
        desired=DesiredState(row.desired),
        stop_at_ms=whole_or_none(row.stop_at_ms),
        committed_at_ms=whole_or_none(row.committed_at_ms),
        lag=None if row.details is None else lag_in(json_object(row.details)),
        trouble=_trouble(row),
        run=None if row.run_began_at_ms is None else run_of(row, "run_"),
        rewinding_to=None if row.rewinding_to is None else TxId(whole(row.rewinding_to)),
        store_id=row.store_id,
    )


def _fingerprint(text: str) -> dict[str, Any]:
    fingerprint = json_object(text)
    committers = fingerprint.get(COMMITTERS, {})
    if not isinstance(committers, dict) or not all(isinstance(entry, dict) for entry in committers.values()):
        raise ValueError(f"its committers are {committers!r:.100}, not an object of objects")
    return fingerprint


def _trouble(row: Row[Any]) -> Trouble | None:
    if row.failing_since_ms is None:
        return None
    return Trouble(whole(row.failing_since_ms), TxId(whole(row.failing_txid)), row.failing_error or "")


def run_of(row: Row[Any], prefix: str = "") -> RunRecord:
    """A row of `RUNS`, or a part of one of `STATUS`, as a value. Raises `CorruptRecord` if it is invalid."""

    def column(name: str) -> Any:
        return getattr(row, prefix + name)

    with readable(f"the row of the run of epoch {row.epoch} in transactional_runs"):
        ended_how, ended_at_txid = column("ended_how"), column("ended_at_txid")
        return RunRecord(
            epoch=Epoch(whole(row.epoch)),
            owner=column("owner"),
            name=column("name"),
            about=RunAbout(
                column("version"),
                json_object(column("described")),
                json_object(column("settings")),
                json_object(column("sources")),
            ),
            began_at_ms=whole(column("began_at_ms")),
            began_at_txid=TxId(whole(column("began_at_txid"))),
            ended_at_ms=whole_or_none(column("ended_at_ms")),
            ended_at_txid=None if ended_at_txid is None else TxId(whole(ended_at_txid)),
            end=None
            if ended_how is None
            else RunEnd(EndedHow(ended_how), column("ended_code"), column("ended_reason")),
        )


def desired_in(row: Row[Any]) -> Desired:
    """A row of `DESIRED` as a value. Raises `CorruptRecord` if it is invalid."""
    with readable("the desired state of a topology in transactional_topologies"):
        return desired_of(DesiredState(row.desired), whole_or_none(row.stop_at_ms), row.now_ms)


def columns_of(topology_id: str, record: AttemptRecord) -> dict[str, Any]:
    """Return the parameters of the statement `ADD_ATTEMPT`."""
    return {
        "topology_id": topology_id,
        "attempt_id": record.attempt.attempt_id,
        "txid": record.attempt.txid,
        "phase": record.phase,
        "batch": record.batch.to_json(),
        "rows": record.rows,
        "issued_at_ms": record.issued_at_ms,
        "planned_at_ms": record.planned_at_ms,
        "processed_at_ms": record.processed_at_ms,
        "commit_started_at_ms": record.commit_started_at_ms,
        "committed_at_ms": record.committed_at_ms,
        "error": record.error,
        "failed_at_ms": record.failed_at_ms,
        "details": None if record.details is None else json.dumps(dict(record.details)),
    }


def read_columns_of(batch: BatchMetadata, ended_at_ms: int) -> dict[str, Any]:
    """The parameters of `SET_PROCESSED`, and of `SET_COMMITTED`, that describe what was read, and when."""
    return {"new_batch": batch.to_json(), "row_count": batch.record_count, "ended_at_ms": ended_at_ms}


def times_of(row: Row[Any]) -> AttemptTimes:
    """A row of `TIMES` as a value. Raises `CorruptRecord` if it is invalid."""
    with readable(f"the row of attempt {row.attempt_id} in transactional_attempts"):
        return AttemptTimes(**_of_attempt(row))


def record_of(row: Row[Any]) -> AttemptRecord:
    """A row of `ATTEMPTS` as a value. Raises `CorruptRecord` if it is invalid."""
    with readable(f"the row of attempt {row.attempt_id} in transactional_attempts"):
        return AttemptRecord(batch=BatchMetadata.from_json(row.batch), **_of_attempt(row))


def _of_attempt(row: Row[Any]) -> dict[str, Any]:
    return {
        "attempt": TransactionAttempt(TxId(whole(row.txid)), AttemptId(whole(row.attempt_id))),
        "phase": row.phase,
        "rows": whole_or_none(row.rows),
        "issued_at_ms": whole(row.issued_at_ms),
        "planned_at_ms": whole(row.planned_at_ms),
        "processed_at_ms": whole_or_none(row.processed_at_ms),
        "commit_started_at_ms": whole_or_none(row.commit_started_at_ms),
        "committed_at_ms": whole_or_none(row.committed_at_ms),
        "failed_at_ms": whole_or_none(row.failed_at_ms),
        "error": row.error,
        "details": None if row.details is None else json_object(row.details),
    }


def minute_of(row: Row[Any]) -> MinuteRecord:
    """A row of `MINUTES` as a value. Raises `CorruptRecord` if it is invalid."""
    with readable(f"the row of the minute {row.at_ms} in transactional_minutes"):
        return MinuteRecord(
            at_ms=whole(row.at_ms),
            transactions=whole(row.transactions),
            rows=whole(row.rows),
            failures=whole(row.failures),
            latencies=numbers(row.latencies),
            lag_sum=whole(row.lag_sum),
            lag_max=whole(row.lag_max),
            phases_ms=_phases_of(row),
        )


def part_of(row: Row[Any], since_ms: int, each_ms: int) -> MinuteRecord:
    """A row of `MINUTES_SUMMED_UP` as a value. Raises `CorruptRecord` if it is invalid."""
    at_ms = since_ms + whole(row.part) * each_ms
    with readable(f"a row of the minutes from {at_ms} on in transactional_minutes"):
        return MinuteRecord(
            at_ms=at_ms,
            transactions=whole(row.transactions),
            rows=whole(row.rows),
            failures=whole(row.failures),
            lag_sum=whole(row.lag_sum),
            lag_max=whole(row.lag_max),
            phases_ms=_phases_of(row),
        )


def _phases_of(row: Row[Any]) -> dict[str, int]:
    sums = {phase: whole_or_none(row._mapping[f"{phase}_ms"]) for phase in PHASES}
    return {phase: spent_ms for phase, spent_ms in sums.items() if spent_ms is not None}


@contextmanager
def readable(record_name: str) -> Iterator[None]:
    """Raises `CorruptRecord` for anything inside that can't be read."""
    try:
        yield
    except CorruptRecord as error:  # which says what to do
        raise CorruptRecord(f"{record_name} is not readable: {error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptRecord(f"{record_name} is not readable: {error}; restore the store from a backup") from error


def counted(stored: object) -> int:
    """A whole number that goes up by one at a time, from 0. Raises `CorruptRecord`, also if it can't go up any more."""
    if not 0 <= (number := whole(stored)) < COUNTED_MAX:
        raise CorruptRecord(f"{number} stands in place of a number that counts up; restore the store from a backup")
    return number


def whole(stored: object) -> int:
    """A whole number. Raises `CorruptRecord`: SQLite keeps anything in any column."""
    if not isinstance(stored, int):
        raise CorruptRecord(f"{stored!r} stands in place of a whole number; restore the store from a backup")
    return stored


def whole_or_none(stored: object) -> int | None:
    """A whole number, or nothing. Raises `CorruptRecord`."""
    return None if stored is None else whole(stored)


def json_object(text: str) -> dict[str, Any]:
    """A JSON object. Raises `ValueError` or `TypeError`."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"{text[:100]!r} is not a JSON object")
    return content


def numbers(text: str) -> tuple[int, ...]:
    """A JSON list of whole numbers. Raises `ValueError`, `TypeError` or `CorruptRecord`."""
    content = json.loads(text)
    if not isinstance(content, list):
        raise ValueError(f"{text[:100]!r} is not a JSON list")
    return tuple(map(whole, content))
