"""The SQL of `SqlCoordinatorStore`, built once, and how its rows become values.

Parameters must not be named like columns: `topology` is a topology id, `id` an attempt id, `number` a txid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    BigInteger,
    Row,
    Text,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql

from state.store_schema import NowMs, attempts, fences, topologies, transactions
from transactional.attempt import AttemptId, Epoch, TransactionAttempt, TxId
from transactional.batch import BatchMetadata
from transactional.errors import CorruptRecord
from transactional.store import AttemptRecord, Desired, DesiredState, TopologyStatus
from transactional.store_rules import CARRIED_OUT, COMMITTED, FAILED, GIVEN_UP, OPEN, PROCESSED, desired_of

_TOPOLOGY = bindparam("topology", type_=Text)
_HELD = and_(
    topologies.c.topology_id == _TOPOLOGY,
    topologies.c.epoch == bindparam("lease_epoch"),
    topologies.c.owner == bindparam("lease_owner"),
)
_ATTEMPT = and_(
    attempts.c.topology_id == _TOPOLOGY,
    attempts.c.attempt_id == bindparam("id"),
    attempts.c.txid == bindparam("number"),
)
# Not `in_`: SQLAlchemy writes its list anew for each execution.
_IS_OPEN = or_(*(attempts.c.phase == phase for phase in OPEN))
_LEASED_UNTIL = NowMs() + bindparam("lease_ms", type_=BigInteger)

# --- the compare-and-set that each write starts with --------------------------------------------------------------

HOLD = update(topologies).where(_HELD).values(epoch=topologies.c.epoch)
RENEW = update(topologies).where(_HELD).values(leased_until_ms=_LEASED_UNTIL)
RELEASE = update(topologies).where(_HELD).values(owner=None, leased_until_ms=None)
_IS_CARRIED_OUT = topologies.c.desired.in_([state.value for state in CARRIED_OUT])
RELEASE_DONE = RELEASE.values(
    desired=case((_IS_CARRIED_OUT, DesiredState.ACTIVE.value), else_=topologies.c.desired),
    stop_at_ms=case((_IS_CARRIED_OUT, null()), else_=topologies.c.stop_at_ms),
)
COUNT = (
    update(topologies)
    .where(_HELD, topologies.c.attempt_id < bindparam("id"), topologies.c.committed_txid < bindparam("number"))
    .values(attempt_id=bindparam("id"))
)
ADVANCE = (
    update(topologies)
    .where(_HELD, topologies.c.committed_txid == bindparam("number", type_=BigInteger) - 1)
    .values(committed_txid=bindparam("number"), committed_attempt_id=bindparam("id"))
)
TAKE = (
    update(topologies)
    .where(topologies.c.topology_id == _TOPOLOGY, topologies.c.epoch == bindparam("epoch_before"))
    .values(
        epoch=topologies.c.epoch + 1,
        attempt_id=topologies.c.attempt_id + 1,
        owner=bindparam("new_owner"),
        leased_until_ms=_LEASED_UNTIL,
        fingerprint=bindparam("new_fingerprint"),
        name=bindparam("new_name"),
        desired=bindparam("new_desired"),
        stop_at_ms=bindparam("new_stop_at_ms"),
    )
)
# The one change to the topology's row that needs no lease: nothing that a coordinator writes rests on it.
DESIRE = update(topologies).where(topologies.c.topology_id == _TOPOLOGY)
DESIRE_FOR_GOOD = DESIRE.values(desired=bindparam("state"), stop_at_ms=None)
DESIRE_IN_TIME = DESIRE.values(desired=bindparam("state"), stop_at_ms=NowMs() + bindparam("wait_ms", type_=BigInteger))

CREATE_IN_SQLITE = insert(topologies).prefix_with("OR IGNORE")
CREATE_IN_POSTGRESQL = postgresql.insert(topologies).on_conflict_do_nothing()

# --- what follows it ------------------------------------------------------------------------------------------------

GIVE_UP = (
    update(attempts)
    .where(
        attempts.c.topology_id == _TOPOLOGY,
        _IS_OPEN,
        attempts.c.attempt_id.in_(
            select(transactions.c.attempt_id).where(
                transactions.c.topology_id == _TOPOLOGY, transactions.c.txid >= bindparam("number")
            )
        ),
    )
    .values(phase=GIVEN_UP)
)
FORGET_TRANSACTIONS = delete(transactions).where(
    transactions.c.topology_id == _TOPOLOGY, transactions.c.txid.between(bindparam("number"), bindparam("last_number"))
)
ADD_ATTEMPT = insert(attempts)
ADD_TRANSACTION = insert(transactions)
_SET_READ = (
    update(attempts)
    .where(_ATTEMPT, _IS_OPEN)
    .values(
        batch=bindparam("new_batch"),
        rows=func.coalesce(bindparam("row_count", type_=BigInteger), attempts.c.rows),
        processed_at_ms=bindparam("ended_at_ms"),
    )
)
SET_PROCESSED = _SET_READ.values(phase=PROCESSED)
TAKE_AWAY = delete(transactions).where(
    transactions.c.topology_id == _TOPOLOGY,
    transactions.c.txid == bindparam("number"),
    transactions.c.attempt_id == bindparam("id"),
)
SET_COMMITTED = _SET_READ.values(
    phase=COMMITTED, commit_started_at_ms=bindparam("started_at_ms"), committed_at_ms=bindparam("at_ms")
)
SET_FAILED = (
    update(attempts)
    .where(_ATTEMPT, _IS_OPEN)
    .values(phase=FAILED, error=bindparam("reason"), failed_at_ms=bindparam("at_ms"))
)
REMOVE_FENCE = delete(fences).where(
    fences.c.topology_id == _TOPOLOGY,
    fences.c.component_id == bindparam("component"),
    fences.c.attempt_id == bindparam("id"),
)
ADD_FENCE = insert(fences)

_kept, _later = attempts.alias("kept"), fences.alias("later")
_OLDEST_KEPT = select(func.min(_kept.c.attempt_id)).where(_kept.c.topology_id == _TOPOLOGY, _kept.c.phase == COMMITTED)
_OLDEST_KEPT_TXID = select(func.min(_kept.c.txid)).where(_kept.c.topology_id == _TOPOLOGY, _kept.c.phase == COMMITTED)
_NEWEST = select(topologies.c.committed_attempt_id).where(topologies.c.topology_id == _TOPOLOGY)
DROP_COMMITTED = delete(attempts).where(
    attempts.c.topology_id == _TOPOLOGY,
    attempts.c.phase == COMMITTED,
    attempts.c.committed_at_ms < bindparam("at_ms"),
    attempts.c.attempt_id < _NEWEST.scalar_subquery(),
)
# A table is never at an older version than its last committed attempt, so older tries and fences serve nobody.
DROP_TRIES = delete(attempts).where(
    attempts.c.topology_id == _TOPOLOGY, attempts.c.txid < _OLDEST_KEPT_TXID.scalar_subquery()
)
# A component's last fence stays: it tells that the component has joined.
DROP_FENCES = delete(fences).where(
    fences.c.topology_id == _TOPOLOGY,
    fences.c.attempt_id < _OLDEST_KEPT.scalar_subquery(),
    fences.c.attempt_id
    < select(func.max(_later.c.attempt_id))
    .where(_later.c.topology_id == _TOPOLOGY, _later.c.component_id == fences.c.component_id)
    .scalar_subquery(),
)

# --- reading --------------------------------------------------------------------------------------------------------

STATUS = select(topologies, NowMs().label("now_ms")).order_by(topologies.c.topology_id)
STATUS_OF_ONE = STATUS.where(topologies.c.topology_id == _TOPOLOGY)
DESIRED = select(topologies.c.desired, topologies.c.stop_at_ms, NowMs().label("now_ms")).where(
    topologies.c.topology_id == _TOPOLOGY
)
STATUS_TO_TAKE = STATUS_OF_ONE.with_for_update()
BATCH = select(attempts.c.batch).where(attempts.c.topology_id == _TOPOLOGY, attempts.c.attempt_id == bindparam("id"))
RECORDED = (
    select(transactions.c.txid, attempts.c.batch)
    .join_from(
        transactions,
        attempts,
        and_(attempts.c.topology_id == transactions.c.topology_id, attempts.c.attempt_id == transactions.c.attempt_id),
    )
    .where(transactions.c.topology_id == _TOPOLOGY)
    .order_by(transactions.c.txid)
)
HAS_FENCE = select(exists().where(fences.c.topology_id == _TOPOLOGY, fences.c.component_id == bindparam("component")))
TXID_OF_ATTEMPT = select(attempts.c.txid).where(
    attempts.c.topology_id == _TOPOLOGY, attempts.c.attempt_id == bindparam("id")
)
TXID_OF = union_all(
    select(fences.c.txid).where(
        fences.c.topology_id == _TOPOLOGY,
        fences.c.component_id == bindparam("component"),
        fences.c.attempt_id == bindparam("id"),
    ),
    TXID_OF_ATTEMPT,
)
ATTEMPTS = (
    select(attempts)
    .where(attempts.c.topology_id == _TOPOLOGY)
    .order_by(attempts.c.attempt_id.desc())
    .limit(bindparam("most", type_=BigInteger))
)

# --- rows and values ------------------------------------------------------------------------------------------------


def status_of(row: Row[Any]) -> TopologyStatus:
    """A row of `STATUS` as a value. Raises `CorruptRecord` when it is none."""
    with _readable(f"the row of topology {row.topology_id!r}"):
        return _status_of(row)


def _status_of(row: Row[Any]) -> TopologyStatus:
    until_ms = _whole_or_none(row.leased_until_ms)
    return TopologyStatus(
        topology_id=row.topology_id,
        epoch=Epoch(whole(row.epoch)),
        owner=row.owner,
        leased_until_ms=until_ms,
        is_leased=until_ms is not None and until_ms > row.now_ms,
        committed_txid=TxId(whole(row.committed_txid)),
        attempt_id=AttemptId(whole(row.attempt_id)),
        fingerprint=_fingerprint(row.fingerprint),
        name=row.name,
        desired=DesiredState(row.desired),
        stop_at_ms=_whole_or_none(row.stop_at_ms),
    )


def desired_in(row: Row[Any]) -> Desired:
    """A row of `DESIRED` as a value. Raises `CorruptRecord` when it is none."""
    with _readable("what a topology is to do"):
        return desired_of(DesiredState(row.desired), _whole_or_none(row.stop_at_ms), row.now_ms)


def columns_of(topology_id: str, record: AttemptRecord) -> dict[str, Any]:
    """The parameters of `ADD_ATTEMPT`."""
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
    }


def read_columns_of(batch: BatchMetadata, ended_at_ms: int) -> dict[str, Any]:
    """The parameters of `SET_PROCESSED`, and of `SET_COMMITTED`, that say what was read, and by when."""
    return {"new_batch": batch.to_json(), "row_count": batch.record_count, "ended_at_ms": ended_at_ms}


def record_of(row: Row[Any]) -> AttemptRecord:
    """A row of `ATTEMPTS` as a value. Raises `CorruptRecord` when it is none."""
    with _readable(f"the row of attempt {row.attempt_id}"):
        return AttemptRecord(
            attempt=TransactionAttempt(TxId(whole(row.txid)), AttemptId(whole(row.attempt_id))),
            phase=row.phase,
            batch=BatchMetadata.from_json(row.batch),
            rows=_whole_or_none(row.rows),
            issued_at_ms=whole(row.issued_at_ms),
            planned_at_ms=whole(row.planned_at_ms),
            processed_at_ms=_whole_or_none(row.processed_at_ms),
            commit_started_at_ms=_whole_or_none(row.commit_started_at_ms),
            committed_at_ms=_whole_or_none(row.committed_at_ms),
            error=row.error,
        )


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptRecord(
            f"{what} in the coordinator's store is not readable: {error}; restore the store from a backup"
        ) from error


def whole(value: object) -> int:
    """A whole number. Raises `CorruptRecord`: SQLite keeps anything in any column."""
    if not isinstance(value, int):
        raise CorruptRecord(f"{value!r} stands in the coordinator's store where a whole number should: restore it")
    return value


def _whole_or_none(value: object) -> int | None:
    return None if value is None else whole(value)


def _fingerprint(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"the fingerprint {text[:100]!r} is no JSON object")
    return found
