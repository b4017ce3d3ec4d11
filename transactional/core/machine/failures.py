"""Counts failed attempts: when a transaction is retried, and when the coordinator stops. Pure.

There are two kinds. A failure caused by the batch counts against `attempts_max`. An outage is not the batch's fault:
something needed was unavailable, and `outage_timeout_ms` limits its duration instead.
Some of the former end a run even where `attempts_max` is not set: their error says after how many attempts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from transactional.model.attempt import TxId
from transactional.model.config import TopologyConfig
from transactional.model.letters import Exclusion, Tries


@dataclass(slots=True)
class _Failed:
    """The failed attempts of one transaction since it was issued."""

    in_a_row: int = 0
    used_up: int = 0
    away_since_ms: int | None = None
    not_before_ms: int = 0
    tries: Tries = field(default_factory=Tries)
    alike: int = 0
    """The number of failures with an error that has a limit of its own, which is `alike_max`."""
    alike_max: int | None = None


@dataclass(slots=True)
class Failures:
    """The failed attempts of the transactions that are not committed."""

    config: TopologyConfig
    _failed: dict[TxId, _Failed] = field(default_factory=dict)

    def count(self, txid: TxId, now_ms: int, *, is_outage: bool, tries_max: int | None = None) -> None:
        """Count one more failed attempt. `tries_max` is the limit of attempts that fail with this error, if any."""
        failed = self._failed.setdefault(txid, _Failed())
        failed.in_a_row += 1
        failed.used_up += not is_outage
        if tries_max is not None:
            failed.alike, failed.alike_max = failed.alike + 1, tries_max
        if not is_outage:
            failed.away_since_ms = None
        elif failed.away_since_ms is None:
            failed.away_since_ms = now_ms
        failed.not_before_ms = now_ms + self.config.retry_pause_after(failed.in_a_row)

    def pause_ms(self, txid: TxId, now_ms: int) -> int:
        """Return the milliseconds until the next attempt, 0 for immediately."""
        return max(0, self._failed[txid].not_before_ms - now_ms) if txid in self._failed else 0

    def is_pausing(self, txid: TxId, now_ms: int) -> bool:
        """Return whether the pause after the last failure is still running."""
        return self.pause_ms(txid, now_ms) > 0

    def exhausted_tuples(self, txid: TxId, at_fault: Iterable[Exclusion]) -> tuple[Exclusion, ...]:
        """Return the tuples at fault on which `attempts_max` attempts have failed, including this one."""
        assert self.config.attempts_max is not None
        return self._failed[txid].tries.count_failures(at_fault, self.config.attempts_max)

    def is_exhausted(self, txid: TxId) -> bool:
        """Return whether the transaction has failed as often as is allowed."""
        return self.config.attempts_max is not None and self._failed[txid].used_up >= self.config.attempts_max

    def failure_count_text(self, txid: TxId) -> str:
        """Return in words how often the transaction has failed."""
        return (
            f"transaction {txid} failed {self._failed[txid].used_up} times (attempts_max = {self.config.attempts_max})"
        )

    def repeated_failure_text(self, txid: TxId) -> str | None:
        """Return in words how often it has failed with an error that has a limit of its own.

        None if the limit is not reached.
        """
        failed = self._failed[txid]
        if failed.alike_max is None or failed.alike < failed.alike_max:
            return None
        return f"transaction {txid} failed {failed.alike} times in the same way, and will do so again"

    def outage_text(self, txid: TxId, now_ms: int) -> str | None:
        """Return in words how long an outage has prevented the transaction. None if the limit is not reached."""
        since_ms, most_ms = self._failed[txid].away_since_ms, self.config.outage_timeout_ms
        if most_ms is None or since_ms is None or now_ms - since_ms < most_ms:
            return None
        away_ms = now_ms - since_ms
        return f"what transaction {txid} needs has been unavailable for {away_ms} ms (outage_timeout_ms = {most_ms})"

    def restart_count(self, txid: TxId) -> None:
        """Count the attempts from zero, without a pause, because the transaction has a different batch from now on.

        The attempts of single tuples are still counted.
        """
        failed = self._failed[txid]
        failed.in_a_row = failed.used_up = failed.alike = failed.not_before_ms = 0

    def forget(self, txid: TxId) -> None:
        """Drop the counts of a transaction that is committed."""
        self._failed.pop(txid, None)
