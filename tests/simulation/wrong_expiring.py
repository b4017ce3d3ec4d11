"""Wrong tables whose rows expire, each with one bug. See `wrong_parts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from state.rows.expiring import ExpiryHorizons
from state.rows.opaque_rule import OpaqueRule, Rows
from state.rows.stored_value import StoredValue
from tests.simulation.expiring import ExpiringState
from transactional.model.attempt import TransactionAttempt
from transactional.model.user_code.tuples import Key


class RemovesByTheNewHorizon(ExpiringState):
    """What expires in a transaction is removed by it: its replay does not find it any more."""

    class rule(OpaqueRule):  # noqa: N801
        def apply(self, stored: Rows, incoming: Mapping[Key, Any]) -> dict[Key, StoredValue | None]:
            past = {key for key, row in stored.items() if self.has_expired(key, row.value, self.horizons.current)}
            return super().apply(stored, incoming) | dict.fromkeys(past - incoming.keys())


class AddsToWhatHasExpired(ExpiringState):
    """A key that comes again goes on where it had ended, if it is still there."""

    class rule(OpaqueRule):  # noqa: N801
        def update(self, key: Key, rolled_back: StoredValue | None, partial: Any) -> StoredValue | None:
            forgetful = OpaqueRule(self.columns, self.txid, self.check, replace(self.horizons, current=None))
            return forgetful.update(key, rolled_back, partial)


class CountsTheHorizonOfADeadAttempt(ExpiringState):
    """The horizon before a transaction is the one that is recorded, whoever has recorded it."""

    def _next_horizons(self, attempt: TransactionAttempt) -> ExpiryHorizons:
        return replace(super()._next_horizons(attempt), previous=self.stored.horizons.current)


EXPIRING: tuple[type[ExpiringState], ...] = (
    RemovesByTheNewHorizon,
    AddsToWhatHasExpired,
    CountsTheHorizonOfADeadAttempt,
)
