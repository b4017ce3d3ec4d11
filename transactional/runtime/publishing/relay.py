"""`Relay`: publishes the outbox of one sink, in order of txid; `step` does one group, in whatever thread calls it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

import pyarrow as pa

from transactional.core.ports import PublishedRecords, Sink
from transactional.core.store import CoordinatorStore, Lease
from transactional.core.store.outbox import OutboxRow
from transactional.core.store.rules import fenced, is_held
from transactional.model.attempt import TxId
from transactional.model.errors import CorruptRecord, OperatingError, RecordRefused, SinkUnavailable
from transactional.runtime.publishing.payload_files import PayloadFolder
from transactional.runtime.publishing.payloads import decode_payload

GROUP_MAX: Final = 64
"""The largest number of waiting transactions that are published together."""
GROUP_BYTES_MAX: Final = 8 * 2**20
"""The largest payload of transactions that are published together; a single one may have more."""
REOPENED_MAX: Final = 3
REOPENED_WITHIN_MS: Final = 600_000
"""A sink is opened so often within this time; then something else keeps fencing it."""

_log = logging.getLogger(__name__)


class Relay:
    """The relay of one sink. It publishes only transactions that the store has confirmed to this leader.

    `reopen` settles the sink once more; it raises `Fenced` if another process leads.
    """

    def __init__(
        self,
        sink_id: str,
        sink: Sink,
        store: CoordinatorStore,
        lease: Lease,
        reopen: Callable[[], None],
        now_ms: Callable[[], int],
        files: PayloadFolder,
    ) -> None:
        self.sink_id, self.sink = sink_id, sink
        self._store, self.lease, self._reopen, self._now_ms, self._files = store, lease, reopen, now_ms, files
        self._confirmed_txid = lease.progress.committed_txid
        self.settled_txid = TxId(0)
        """The transaction up to which everything is published; unknown before the first step."""
        self._published: list[OutboxRow] = []
        """Rows that the target has, and that the store has not confirmed as settled: they are never sent again."""
        self._group_max = GROUP_MAX
        self._must_reopen = self._was_slow = False
        self._reopened_at_ms: list[int] = []

    def confirm(self, txid: TxId) -> None:
        """Let the relay publish a transaction whose commit the store has confirmed."""
        self._confirmed_txid = txid

    @property
    def has_settled_all(self) -> bool:
        """True if nothing that is confirmed can be waiting."""
        return self.settled_txid == self._confirmed_txid

    def step(self) -> bool:
        """Publish some waiting transactions, and settle them in the store; False if none waits.

        Raises `SinkUnavailable` and `StoreUnavailable`, after which the same call comes again, or a `FatalError`.
        """
        if self._must_reopen:
            self._open_again()
        if self._published:
            return self._settle_published()
        if self.has_settled_all:
            return False
        confirmed = self._confirmed_txid
        rows = self._store.outbox(self.lease.topology_id, self.sink_id, last=confirmed, limit=self._group_max)
        if not rows:
            self.settled_txid = confirmed
            return False
        group = _limit_bytes(rows)
        if len(group) < len(rows):
            self._group_max = len(group)
        self._published = self._publish(group)
        return self._settle_published()

    def _settle_published(self) -> bool:
        """Settle what is published. The next step repeats it if the store does not respond."""
        newest = self._published[-1].publication
        self._store.settle_sink(self.lease, self.sink_id, newest)
        self.settled_txid = newest.attempt.txid
        self._files.delete(self._published)
        self._published = []
        return True

    def _publish(self, rows: list[OutboxRow]) -> list[OutboxRow]:
        """Publish transactions, and return those that are published: the first alone if the target refuses the group.

        Raises `RecordRefused` that names the transaction.
        """
        try:
            self.sink.publish([PublishedRecords(row.publication, self._read_records(row)) for row in rows])
        except SinkUnavailable as error:
            self._must_reopen, self._was_slow = error.is_fenced, error.has_timed_out
            self._group_max = max(1, len(rows) // 2)
            raise
        except RecordRefused as error:
            if len(rows) > 1:
                self._group_max = 1
                return self._publish(rows[:1])
            txid = rows[0].publication.attempt.txid
            raise RecordRefused(
                f"sink {self.sink_id!r} can't publish transaction {txid} to {self.sink.target_name}: {error}"
            ) from error
        self._group_max = min(GROUP_MAX, 2 * self._group_max)
        return rows

    def _read_records(self, row: OutboxRow) -> pa.Table:
        """Return the records of a row. Raises `CorruptRecord`, and `Fenced` if another leader has deleted its file."""
        try:
            return decode_payload(self._files.read(row))
        except CorruptRecord:
            for status in self._store.status(self.lease.topology_id):
                if not is_held(self.lease, status):
                    raise fenced(self.lease, status) from None
            raise

    def _open_again(self) -> None:
        now_ms = self._now_ms()
        self._reopened_at_ms = [at_ms for at_ms in self._reopened_at_ms if now_ms - at_ms < REOPENED_WITHIN_MS]
        if len(self._reopened_at_ms) >= REOPENED_MAX:
            raise OperatingError(
                f"sink {self.sink_id!r} was fenced {REOPENED_MAX} times within {REOPENED_WITHIN_MS // 60_000} minutes, "
                "although this process leads: something else publishes as this sink, or its target knows a leader of a "
                "newer store"
            )
        self._reopen()
        if not self._was_slow:
            self._reopened_at_ms.append(now_ms)
        self._must_reopen = False
        _log.warning(
            "sink %r %s and has been opened again", self.sink_id, "was too slow" if self._was_slow else "was fenced"
        )


def _limit_bytes(rows: Sequence[OutboxRow]) -> list[OutboxRow]:
    """Return the first rows, at least one, whose payloads have `GROUP_BYTES_MAX` together at most."""
    ends = accumulate(row.size_bytes for row in rows)
    return list(rows[: max(1, sum(end <= GROUP_BYTES_MAX for end in ends))])
