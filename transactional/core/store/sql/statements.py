"""The SQL of `SqlCoordinatorStore`, built once. `store_rows` converts its rows to values.

Parameters must not be named like columns: `topology` is a topology id, `id` an attempt id, `number` a txid.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
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

from transactional.core.store import DesiredState
from transactional.core.store.databases.quick import QuickQuery
from transactional.core.store.rules import CARRIED_OUT, COMMITTED, FAILED, GIVEN_UP, OPEN, PROCESSED
from transactional.core.store.sql.schema import NowMs, attempts, fences, runs, savepoints, topologies, transactions

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
# Not `in_`: SQLAlchemy renders its list for each execution.
_IS_OPEN = or_(*(attempts.c.phase == phase for phase in OPEN))
_LEASED_UNTIL = NowMs() + bindparam("lease_ms", type_=BigInteger)

# --- the compare-and-set that each write starts with --------------------------------------------------------------

HOLD = update(topologies).where(_HELD).values(epoch=topologies.c.epoch)
RENEW = update(topologies).where(_HELD).values(leased_until_ms=_LEASED_UNTIL)
RELEASE = update(topologies).where(_HELD).values(owner=None, leased_until_ms=None)
_IS_CARRIED_OUT = or_(*(topologies.c.desired == state.value for state in CARRIED_OUT))
RELEASE_DONE = RELEASE.values(
    desired=case((_IS_CARRIED_OUT, DesiredState.ACTIVE.value), else_=topologies.c.desired),
    stop_at_ms=case((_IS_CARRIED_OUT, null()), else_=topologies.c.stop_at_ms),
)
_BEFORE = bindparam("number", type_=BigInteger) - 1
_IS_RECORDED = exists().where(transactions.c.topology_id == _TOPOLOGY, transactions.c.txid == _BEFORE)
COUNT = (
    update(topologies)
    .where(_HELD, topologies.c.attempt_id < bindparam("id"), or_(topologies.c.committed_txid == _BEFORE, _IS_RECORDED))
    .values(attempt_id=bindparam("id"))
)
_TROUBLE = ("failing_since_ms", "failing_txid", "failing_error")
_IS_OVER = topologies.c.failing_txid <= bindparam("number", type_=BigInteger)
ADVANCE = (
    update(topologies)
    .where(_HELD, topologies.c.committed_txid == _BEFORE)
    .values(
        committed_txid=bindparam("number"),
        committed_attempt_id=bindparam("id"),
        **{name: case((_IS_OVER, null()), else_=topologies.c[name]) for name in _TROUBLE},
    )
)
FAIL = (
    update(topologies)
    .where(_HELD)
    .values(
        failing_since_ms=func.coalesce(topologies.c.failing_since_ms, bindparam("at_ms", type_=BigInteger)),
        failing_txid=case(
            (topologies.c.failing_txid > bindparam("number", type_=BigInteger), topologies.c.failing_txid),
            else_=bindparam("number", type_=BigInteger),
        ),
        failing_error=bindparam("reason"),
    )
)
RECOVER = update(topologies).where(_HELD).values(dict.fromkeys(_TROUBLE))
START = (
    update(topologies)
    .where(_HELD)
    .values(
        fingerprint=bindparam("new_fingerprint"),
        store_id=func.coalesce(topologies.c.store_id, bindparam("new_store_id", type_=Text)),
    )
)
TAKE = (
    update(topologies)
    .where(topologies.c.topology_id == _TOPOLOGY, topologies.c.epoch == bindparam("epoch_before"))
    .values(
        epoch=topologies.c.epoch + 1,
        attempt_id=topologies.c.attempt_id + 1,
        owner=bindparam("new_owner"),
        leased_until_ms=_LEASED_UNTIL,
        name=bindparam("new_name"),
        desired=bindparam("new_desired"),
        stop_at_ms=bindparam("new_stop_at_ms"),
    )
)
# The only change to the topology's row that needs no lease: nothing that a coordinator writes depends on it.
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
                transactions.c.topology_id == _TOPOLOGY,
                transactions.c.txid.between(bindparam("number"), bindparam("last_number")),
            )
        ),
    )
    .values(phase=GIVEN_UP, error=bindparam("why"))
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
    phase=COMMITTED,
    commit_started_at_ms=bindparam("started_at_ms"),
    committed_at_ms=bindparam("at_ms"),
    details=bindparam("new_details"),
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
_ID = bindparam("id", type_=BigInteger)
RECOUNT = HOLD.where(func.coalesce(topologies.c.committed_attempt_id, 0) <= _ID).values(
    attempt_id=_ID, store_id=bindparam("new_store_id", type_=Text)
)
FORGET_AFTER = tuple(
    delete(table).where(table.c.topology_id == _TOPOLOGY, table.c.attempt_id > _ID)
    for table in (transactions, attempts, fences)
)

_kept, _later = attempts.alias("kept"), fences.alias("later")
_OLDEST_KEPT = select(func.min(_kept.c.attempt_id)).where(_kept.c.topology_id == _TOPOLOGY, _kept.c.phase == COMMITTED)
_OLDEST_KEPT_TXID = select(func.min(_kept.c.txid)).where(_kept.c.topology_id == _TOPOLOGY, _kept.c.phase == COMMITTED)
_NEWEST = select(topologies.c.committed_attempt_id).where(topologies.c.topology_id == _TOPOLOGY)
IS_HELD = (
    select(savepoints.c.txid)
    .where(savepoints.c.topology_id == _TOPOLOGY, savepoints.c.txid <= attempts.c.txid)
    .exists()
)
"""True for the attempts at a savepoint's transaction, and at all later ones."""
DROP_COMMITTED = delete(attempts).where(
    attempts.c.topology_id == _TOPOLOGY,
    attempts.c.phase == COMMITTED,
    attempts.c.committed_at_ms < bindparam("at_ms"),
    attempts.c.attempt_id < _NEWEST.scalar_subquery(),
    ~IS_HELD,
)
# A table is never at an older version than its last committed attempt, so older attempts and fences are not needed.
DROP_TRIES = delete(attempts).where(
    attempts.c.topology_id == _TOPOLOGY, attempts.c.txid < _OLDEST_KEPT_TXID.scalar_subquery()
)
# A component's last fence is kept: it shows that the component has joined.
DROP_FENCES = delete(fences).where(
    fences.c.topology_id == _TOPOLOGY,
    fences.c.attempt_id < _OLDEST_KEPT.scalar_subquery(),
    fences.c.attempt_id
    < select(func.max(_later.c.attempt_id))
    .where(_later.c.topology_id == _TOPOLOGY, _later.c.component_id == fences.c.component_id)
    .scalar_subquery(),
)

# --- reading --------------------------------------------------------------------------------------------------------

_newest = attempts.alias("newest")
_run = runs.alias("run")
STATUS = (
    select(
        topologies,
        NowMs().label("now_ms"),
        _newest.c.committed_at_ms,
        _newest.c.details,
        *(column.label(f"run_{column.name}") for column in _run.c if column.name not in ("topology_id", "epoch")),
    )
    .outerjoin(
        _newest,
        and_(
            _newest.c.topology_id == topologies.c.topology_id,
            _newest.c.attempt_id == topologies.c.committed_attempt_id,
        ),
    )
    .outerjoin(_run, and_(_run.c.topology_id == topologies.c.topology_id, _run.c.epoch == topologies.c.epoch))
    .order_by(topologies.c.topology_id)
)
STATUS_OF_ONE = STATUS.where(topologies.c.topology_id == _TOPOLOGY)
POSITION = QuickQuery(
    select(topologies.c.committed_txid, topologies.c.rewinding_to, topologies.c.store_id).where(
        topologies.c.topology_id == _TOPOLOGY
    )
)
DESIRED = select(topologies.c.desired, topologies.c.stop_at_ms, NowMs().label("now_ms")).where(
    topologies.c.topology_id == _TOPOLOGY
)
STATUS_TO_TAKE = STATUS_OF_ONE.with_for_update(of=topologies)
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
ATTEMPTS_AT = (
    select(attempts)
    .where(attempts.c.topology_id == _TOPOLOGY, attempts.c.txid == bindparam("number"))
    # As an expression: SQLite would go through all attempts in the order of their ids, rather than sort a few.
    .order_by((attempts.c.attempt_id + 0).desc())
)
TIMES = (
    select(*(column for column in attempts.c if column.name not in ("topology_id", "batch")))
    .where(attempts.c.topology_id == _TOPOLOGY, attempts.c.attempt_id < bindparam("before", type_=BigInteger))
    .order_by(attempts.c.attempt_id.desc())
    .limit(bindparam("most", type_=BigInteger))
)
TIMES_IN = TIMES.where(attempts.c.phase.in_(bindparam("phases", expanding=True)))
_committed = TIMES.where(attempts.c.phase == COMMITTED).limit(bindparam("among", type_=BigInteger)).subquery()
TIMES_WITH_LETTERS = (
    select(_committed)
    # Text, for each database has its own way to look into JSON; who reads it looks at the number itself.
    .where(_committed.c.details.regexp_match('"letters": *[1-9]'))
    .order_by(_committed.c.attempt_id.desc())
    .limit(bindparam("most", type_=BigInteger))
)
ATTEMPTS = (
    select(attempts)
    .where(attempts.c.topology_id == _TOPOLOGY)
    .order_by(attempts.c.attempt_id.desc())
    .limit(bindparam("most", type_=BigInteger))
)
