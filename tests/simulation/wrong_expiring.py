"""Wrong tables whose rows expire, each with one bug. See `wrong_parts`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from state.rows.expiring import Floors
from state.rows.sums import SumCheck
from state.values import StoredValue
from tests.simulation.expiring import ExpiringState
from transactional.absent import ABSENT
from transactional.attempt import TransactionAttempt, TxId
from transactional.bolts import Key


class RemovesByTheNewFloor(ExpiringState):
    """What expires in a transaction is removed by it: its replay does not find it any more."""

    def _is_past(self, key: Key, row: StoredValue, floors: Floors) -> bool:
        return self._unexpired(key, row.value, floors.floor) is ABSENT


class AddsToWhatHasExpired(ExpiringState):
    """A key that comes again goes on where it had ended, if it is still there."""

    def _applied(
        self, stored: StoredValue | None, txid: TxId, key: Key, partial: Any, check: SumCheck, floors: Floors
    ) -> StoredValue | None:
        return super()._applied(stored, txid, key, partial, check, replace(floors, floor=None))


class CountsTheFloorOfADeadAttempt(ExpiringState):
    """The floor before a transaction is the one that is recorded, whoever has recorded it."""

    def _memory_floors(self, attempt: TransactionAttempt) -> Floors:
        return replace(super()._memory_floors(attempt), before=self.stored.floors.floor)


EXPIRING: tuple[type[ExpiringState], ...] = (RemovesByTheNewFloor, AddsToWhatHasExpired, CountsTheFloorOfADeadAttempt)
