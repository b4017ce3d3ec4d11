"""The store's transactions, checked for consistency: txids without gaps, in order, and contiguous ranges."""

from __future__ import annotations

from collections.abc import Mapping

from verifier.evidence.findings import Findings, Kind
from verifier.evidence.store import CommittedBatch, StoreHistory

Partition = tuple[str, int]


def check_transactions(history: StoreHistory, findings: Findings, *, log_starts: Mapping[Partition, int]) -> None:
    """Check txids, attempt ids and ranges of the committed transactions in the store.

    `log_starts` says from where on a source still holds its records. A gap that ends at or before this is a loss of the
    source, which an opaque spout may skip.
    """
    _check_ends(history, findings)
    before: CommittedBatch | None = None
    positions: dict[Partition, int] = {}
    for batch in history.committed:
        if batch.told is not None and batch.told != batch.records:
            expected = f"{batch.told} records, as is noted beside its batch"
            findings.add(Kind.BROKEN_STORE, f"transaction {batch.txid}", expected, batch.records)
        if before is not None and (batch.txid != before.txid + 1 or batch.attempt_id <= before.attempt_id):
            _check_order(before, batch, history, findings)
        for partition, (start, until, _) in batch.ranges.items():
            position = positions.get(partition, start)
            if start != position or until < start:
                known_start = None if history.replays_exactly else log_starts.get(partition)
                _range_is_off(partition, batch, position, known_start, findings)
            positions[partition] = until
        if before is not None and len(positions) != len(batch.ranges):
            _check_kept(positions, batch, findings)
        if before is not None and batch.txid == before.txid + 1:
            _check_lateness(before, batch, findings)
        before = batch
    findings.looked_at("transactions", len(history.committed))


def _check_ends(history: StoreHistory, findings: Findings) -> None:
    """Compare the topology's own row with the attempts."""
    where = f"store, topology {history.topology_id!r}"
    if not history.committed:
        if history.committed_txid:
            findings.add(Kind.TRANSACTION_LOST, where, f"transaction {history.committed_txid}", "no committed attempt")
        return
    first, last = history.committed[0], history.committed[-1]
    if first.txid > 1:
        findings.note(f"the store no longer has transactions 1 to {first.txid - 1}: not checked")
    if (last.txid, last.attempt_id) != (history.committed_txid, history.committed_attempt_id):
        expected = f"transaction {history.committed_txid} as the last, by attempt {history.committed_attempt_id}"
        findings.add(Kind.BROKEN_STORE, where, expected, f"transaction {last.txid} by attempt {last.attempt_id}")
    newest = max(history.txid_of, default=0)
    if newest > history.attempt_counter:
        findings.add(Kind.BROKEN_STORE, where, f"attempt ids up to the counter's {history.attempt_counter}", newest)
    wanted = list(range(history.committed_txid + 1, history.committed_txid + 1 + len(history.in_flight)))
    if sorted(history.in_flight) != wanted:
        findings.add(Kind.BROKEN_STORE, where, f"recorded batches of {wanted}", sorted(history.in_flight))


def _check_order(before: CommittedBatch, batch: CommittedBatch, history: StoreHistory, findings: Findings) -> None:
    where = f"store, topology {history.topology_id!r}"
    if batch.txid == before.txid:
        attempts = f"attempts {before.attempt_id} and {batch.attempt_id}"
        findings.add(Kind.TRANSACTION_TWICE, where, f"transaction {batch.txid} committed once", attempts)
    elif batch.txid != before.txid + 1:
        missing = f"{before.txid + 1}" + (f" to {batch.txid - 1}" if batch.txid > before.txid + 2 else "")
        findings.add(Kind.TRANSACTION_LOST, where, f"transaction {missing}", f"{batch.txid} after {before.txid}")
    if batch.attempt_id <= before.attempt_id and batch.txid > before.txid:
        expected = f"transaction {batch.txid} by an attempt after {before.attempt_id}, which committed {before.txid}"
        findings.add(Kind.OUT_OF_ORDER, where, expected, f"attempt {batch.attempt_id}")


def _range_is_off(
    partition: Partition, batch: CommittedBatch, position: int, log_start: int | None, findings: Findings
) -> None:
    start, until, _ = batch.ranges[partition]
    where = f"transaction {batch.txid}, {named(partition)}"
    if until < start or start < position:
        expected = f"offsets from {position} on, where the previous transaction ended"
        findings.add(Kind.RANGE_OVERLAP, where, expected, f"[{start}, {until})")
    elif log_start is not None and start <= log_start:
        findings.note(
            f"{where}: [{position}, {start}) is in no transaction; the source no longer holds these offsets, and an "
            "opaque spout continues without them"
        )
    else:
        findings.add(Kind.RANGE_GAP, where, f"offsets from {position} on", f"[{start}, {until})")


def _check_kept(positions: dict[Partition, int], batch: CommittedBatch, findings: Findings) -> None:
    for partition in sorted(positions.keys() - batch.ranges.keys()):
        where = f"transaction {batch.txid}, {named(partition)}"
        findings.add(Kind.RANGE_GAP, where, f"position {positions[partition]} carried forward", "the partition missing")
        del positions[partition]


def _check_lateness(before: CommittedBatch, batch: CommittedBatch, findings: Findings) -> None:
    """Check that what is late stays so, and that nothing more becomes late while windows wait for a partition."""
    was, now = before.watermark_us, batch.watermark_us
    waits = batch.awaited and now != was
    if not waits and (was is None or (now is not None and now >= was)):
        return
    expected = f"tuples before {was} µs late, as before"
    if waits:
        expected += f", while windows wait for {named(batch.awaited[0])}"
    findings.add(Kind.BROKEN_STORE, f"transaction {batch.txid}", expected, f"those before {now} µs")


def named(partition: Partition) -> str:
    """A partition in words."""
    return f"partition {partition[1]} of {partition[0]!r}"
