"""The SQL of the history in the coordinator's store: runs, minutes, what is trimmed, and what a reset deletes."""

from __future__ import annotations

import json
from typing import Final

from sqlalchemy import BigInteger, Connection, Text, bindparam, cast, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from transactional.core.store import Lease
from transactional.core.store.databases.quick import change
from transactional.core.store.history import TRIMMED_PER_COMMIT, Keep, MinuteRecord, RunAbout, RunEnd
from transactional.core.store.rules import storable
from transactional.core.store.sql.schema import (
    PHASES,
    NowMs,
    attempts,
    fences,
    minutes,
    outbox,
    runs,
    savepoints,
    sink_letters,
    sinks,
    topologies,
    transactions,
)
from transactional.core.store.sql.statements import IS_HELD
from transactional.model.attempt import AttemptId
from transactional.model.errors import CorruptRecord

_TOPOLOGY = bindparam("topology", type_=Text)

BEGIN_RUN = insert(runs).values(began_at_ms=NowMs())
END_RUNS = (
    update(runs)
    .where(runs.c.topology_id == _TOPOLOGY, runs.c.ended_at_ms.is_(None))
    .values(
        ended_at_ms=NowMs(),
        ended_at_txid=select(topologies.c.committed_txid)
        .where(topologies.c.topology_id == _TOPOLOGY)
        .scalar_subquery(),
        ended_how=bindparam("how"),
        ended_code=bindparam("code"),
        ended_reason=bindparam("reason"),
    )
)
RUNS = (
    select(runs)
    .where(runs.c.topology_id == _TOPOLOGY)
    .order_by(runs.c.epoch.desc())
    .limit(bindparam("most", type_=BigInteger))
)
ADD_MINUTE = insert(minutes)
MINUTES = (
    select(minutes)
    .where(minutes.c.topology_id == _TOPOLOGY, minutes.c.at_ms >= bindparam("since_ms"))
    .order_by(minutes.c.at_ms, minutes.c.epoch)
)
_SINCE, _EACH = bindparam("since_ms", type_=BigInteger), bindparam("each_ms", type_=BigInteger)
_PART = ((minutes.c.at_ms - _SINCE) // _EACH).label("part")
MINUTES_SUMMED_UP = (
    select(
        _PART,
        *(cast(func.sum(minutes.c[name]), BigInteger).label(name) for name in ("transactions", "rows", "failures")),
        cast(func.sum(minutes.c.lag_sum), BigInteger).label("lag_sum"),
        func.max(minutes.c.lag_max).label("lag_max"),
        *(cast(func.sum(minutes.c[f"{phase}_ms"]), BigInteger).label(f"{phase}_ms") for phase in PHASES),
    )
    .where(minutes.c.topology_id == _TOPOLOGY, minutes.c.at_ms >= _SINCE)
    .group_by(_PART)
    .order_by(_PART)
)

# The oldest few are examined, whatever their number: counting attempts would take longer with each of them. There are
# at most as many as ids were drawn since.
_oldest = attempts.alias("oldest")
_OLDEST = (
    select(_oldest.c.attempt_id)
    .where(_oldest.c.topology_id == _TOPOLOGY)
    .order_by(_oldest.c.attempt_id)
    .limit(TRIMMED_PER_COMMIT)
)
_IS_RECORDED = (
    select(transactions.c.txid)
    .where(transactions.c.topology_id == _TOPOLOGY, transactions.c.attempt_id == attempts.c.attempt_id)
    .exists()
)
TRIM = delete(attempts).where(
    attempts.c.topology_id == _TOPOLOGY,
    attempts.c.attempt_id.in_(_OLDEST),
    # As expressions: otherwise SQLite would use the index, and go through all attempts but the newest.
    attempts.c.attempt_id + 0 < bindparam("newest", type_=BigInteger),
    or_(
        attempts.c.attempt_id + 0 <= bindparam("up_to", type_=BigInteger),
        attempts.c.issued_at_ms < bindparam("since_ms"),
    ),
    ~_IS_RECORDED,
    ~IS_HELD,
)

# In this order: recorded rows refer to attempts.
FORGET_ALL: Final = tuple(
    delete(table).where(table.c.topology_id == _TOPOLOGY)
    for table in (transactions, attempts, fences, runs, minutes, savepoints, outbox, sinks, sink_letters)
)
START_ANEW = (
    update(topologies)
    .where(topologies.c.topology_id == _TOPOLOGY)
    .values(
        epoch=topologies.c.epoch + 1,
        owner=None,
        leased_until_ms=None,
        committed_txid=0,
        committed_attempt_id=None,
        fingerprint="{}",
        name=None,
        desired="active",
        stop_at_ms=None,
        failing_since_ms=None,
        failing_txid=None,
        failing_error=None,
        rewinding_to=None,
    )
)


def begin_run(connection: Connection, lease: Lease, name: str | None, about: RunAbout) -> None:
    """Store the start of a run. Raises `CorruptRecord` if there is one of its epoch: epochs only grow."""
    row = {
        "topology_id": lease.topology_id,
        "epoch": lease.epoch,
        "owner": lease.owner,
        "name": name,
        "version": about.version,
        "described": json.dumps(dict(about.topology)),
        "settings": json.dumps(dict(about.settings)),
        "sources": json.dumps(dict(about.sources)),
        "began_at_txid": lease.progress.committed_txid,
    }
    try:
        connection.execute(BEGIN_RUN, row)
    except IntegrityError as error:
        raise CorruptRecord(
            f"topology {lease.topology_id!r} in the coordinator's store is at epoch {lease.epoch - 1}, and there was a "
            f"run of epoch {lease.epoch} already; restore the store from a backup"
        ) from error


def end_runs(connection: Connection, topology_id: str, end: RunEnd) -> None:
    """Store the end of every run whose end is not recorded yet."""
    reason = None if end.reason is None else storable(end.reason)
    connection.execute(END_RUNS, {"topology": topology_id, "how": end.how.value, "code": end.code, "reason": reason})


def insert_minute(connection: Connection, lease: Lease, minute: MinuteRecord) -> None:
    """Insert the row of a minute of a run. The caller has checked the lease, in the same database transaction."""
    row = {
        "topology_id": lease.topology_id,
        "at_ms": minute.at_ms,
        "epoch": lease.epoch,
        "transactions": minute.transactions,
        "rows": minute.rows,
        "failures": minute.failures,
        "latencies": json.dumps(minute.latencies),
        "lag_sum": minute.lag_sum,
        "lag_max": minute.lag_max,
        **{f"{phase}_ms": minute.phases_ms.get(phase) for phase in PHASES},
    }
    change(connection, ADD_MINUTE, row)


def trim(connection: Connection, topology_id: str, newest: AttemptId, keep: Keep) -> None:
    """Delete some of the oldest attempts, if they exceed the limits."""
    limits = {"newest": newest, "up_to": newest - keep.attempts_max, "since_ms": keep.since_ms}
    change(connection, TRIM, {"topology": topology_id, **limits})
