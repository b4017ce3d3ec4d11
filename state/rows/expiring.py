"""Floors: what a table has recorded about which of its rows exist, and rows judged by it.

A transaction's floor is a time: rows whose expiry is at or below it do not exist for the transaction, judged on what
was before it, nor for readers of it. Rows are removed only at or below the floor of the transaction before, which can't
be replayed any more: so a replay finds what its dead attempt has found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.attempt import NO_TRANSACTION, TxId
from transactional.model.names import NO_FLOOR, floor_before_of, floor_of, floor_txid_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
TIME: Final = pa.timestamp("us", tz="UTC")
_MOST_US: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Floors:
    """The floor of the transaction that a table is at, and that of the one before it, in microseconds since 1970.

    None: no row has expired.
    """

    txid: TxId = NO_TRANSACTION
    floor: int | None = None
    before: int | None = None

    def of(self, txid: TxId, wanted: int | None) -> Floors:
        """What a transaction records, over this: its floor is `wanted`, but never below the one before it, whatever
        clocks and settings say. A dead attempt's floor does not count."""
        before = self.before if txid == self.txid else self.floor
        known = [floor for floor in (wanted, before) if floor is not None]
        return Floors(txid, max(known, default=None), before)

    def at(self, committed_txid: TxId | None) -> int | None:
        """The floor for a reader that must not see anything after a transaction; None: that sees everything."""
        return self.floor if committed_txid is None or committed_txid >= self.txid else self.before


def by_app_transactions(owner: str, version_of: Callable[[str], int | None]) -> Floors:
    """What a Delta table has recorded; `version_of` gives the version of an app transaction."""
    told = [version_of(app_id(owner)) for app_id in (floor_txid_of, floor_of, floor_before_of)]
    if not told[0]:  # nothing is recorded, or a rewind has gone back to before
        return NO_FLOORS
    floor, before = (None if each == NO_FLOOR else each for each in told[1:])
    return Floors(TxId(told[0]), floor, before)


def app_transactions(owner: str, floors: Floors) -> list[tuple[str, int]]:
    """What a Delta table records: app ids with their versions."""
    floor, before = (NO_FLOOR if each is None else max(each, NO_FLOOR) for each in (floors.floor, floors.before))
    return [(floor_txid_of(owner), floors.txid), (floor_of(owner), floor), (floor_before_of(owner), before)]


NO_FLOORS: Final = Floors()


def moment(floor: int) -> datetime:
    """A floor as a time; one that Python's calendar does not reach is its first or last."""
    try:
        return _EPOCH + floor * _MICROSECOND
    except OverflowError:
        return _EARLIEST if floor < 0 else _LATEST


def is_expired(expiry: datetime | None, floor: int | None) -> bool:
    """Whether a row with this expiry does not exist by the floor."""
    return floor is not None and expiry is not None and (expiry - _EPOCH) // _MICROSECOND <= floor


def alive(rows: pa.Table, column: str, floor: int | None) -> pa.Table:
    """The rows that have not expired."""
    if floor is None:
        return rows
    return rows.filter(pc.fill_null(pc.greater(rows[column], time_scalar(floor)), True))


def in_range(rows: pa.Table, column: str, after: int | None, until: int) -> pa.Table:
    """The rows with `after < column <= until`, in microseconds since 1970; `after` None: from the beginning."""
    wanted = pc.less_equal(rows[column], time_scalar(until))
    if after is not None:
        wanted = pc.and_(wanted, pc.greater(rows[column], time_scalar(after)))
    return rows.filter(pc.fill_null(wanted, False))


def time_scalar(us: int) -> pa.Scalar:
    """A time in Arrow, at the least or the greatest that there is if it lies beyond."""
    return pa.scalar(max(-_MOST_US, min(us, _MOST_US)), pa.int64()).cast(TIME)
