"""Expiry horizons: the times up to which the rows of a table have expired, and filters of rows by them.

A transaction's horizon is a time. Rows whose expiry is at or before it do not exist for the transaction, as far as
they were there before it, nor for its readers. Rows are removed only by the horizon of the previous transaction, which
is committed and can't be replayed: so a replay sees the same rows as the dead attempt before it. A horizon never goes
back, whatever clocks and settings say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.attempt import NO_TRANSACTION, TxId
from transactional.model.names import NO_HORIZON, horizon_of, horizon_txid_of, previous_horizon_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
TIME: Final = pa.timestamp("us", tz="UTC")
_MOST_US: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ExpiryHorizons:
    """The horizon of the transaction that a table is at, and that of the transaction before it, in microseconds since
    1970. None: no row has expired.
    """

    txid: TxId = NO_TRANSACTION
    current: int | None = None
    previous: int | None = None

    def advance(self, txid: TxId, horizon_of_batch: int | None) -> ExpiryHorizons:
        """Return the horizons that transaction `txid` records over these. Its own is that of its batch, but never
        before the previous one. The horizon of a dead attempt at the same transaction does not count."""
        previous = self.previous if txid == self.txid else self.current
        candidates = [horizon for horizon in (horizon_of_batch, previous) if horizon is not None]
        return ExpiryHorizons(txid, max(candidates, default=None), previous)

    def for_reader(self, committed_txid: TxId | None) -> int | None:
        """Return the horizon for a reader of transaction `committed_txid`; None: a reader of everything."""
        return self.current if committed_txid is None or committed_txid >= self.txid else self.previous


NO_HORIZONS: Final = ExpiryHorizons()


def read_app_transactions(owner: str, version_of: Callable[[str], int | None]) -> ExpiryHorizons:
    """Return the horizons that a Delta table has recorded; `version_of` returns the version of an app transaction."""
    txid, *horizons = (version_of(app_id(owner)) for app_id in (horizon_txid_of, horizon_of, previous_horizon_of))
    if not txid:  # nothing is recorded, or a rewind has gone back to before
        return NO_HORIZONS
    current, previous = (None if horizon == NO_HORIZON else horizon for horizon in horizons)
    return ExpiryHorizons(TxId(txid), current, previous)


def app_transactions(owner: str, horizons: ExpiryHorizons) -> list[tuple[str, int]]:
    """Return the app transactions that a Delta commit records: app ids with their versions."""
    current, previous = (
        NO_HORIZON if horizon is None else max(horizon, NO_HORIZON) for horizon in (horizons.current, horizons.previous)
    )
    return [
        *((horizon_txid_of(owner), horizons.txid), (horizon_of(owner), current)),
        (previous_horizon_of(owner), previous),
    ]


def moment(horizon: int) -> datetime:
    """Return a horizon as a time. One that Python's calendar does not reach becomes the first or last time of it."""
    try:
        return _EPOCH + horizon * _MICROSECOND
    except OverflowError:
        return _EARLIEST if horizon < 0 else _LATEST


def is_expired(expiry: datetime | None, horizon: int | None) -> bool:
    """Return whether a row with this expiry is at or before the horizon. A row without expiry never is."""
    return horizon is not None and expiry is not None and (expiry - _EPOCH) // _MICROSECOND <= horizon


def select_unexpired(rows: pa.Table, column: str, horizon: int | None) -> pa.Table:
    """Return the rows whose `column` is after the horizon or NULL."""
    if horizon is None:
        return rows
    return rows.filter(pc.fill_null(pc.greater(rows[column], time_scalar(horizon)), True))


def select_range(rows: pa.Table, column: str, after: int | None, until: int) -> pa.Table:
    """Return the rows with `after < column <= until`, in microseconds since 1970; `after` None: from the beginning."""
    is_in_range = pc.less_equal(rows[column], time_scalar(until))
    if after is not None:
        is_in_range = pc.and_(is_in_range, pc.greater(rows[column], time_scalar(after)))
    return rows.filter(pc.fill_null(is_in_range, False))


def time_scalar(us: int) -> pa.Scalar:
    """Return microseconds since 1970 as a timestamp of Arrow: the first or last one for a time out of its range."""
    return pa.scalar(max(-_MOST_US, min(us, _MOST_US)), pa.int64()).cast(TIME)
