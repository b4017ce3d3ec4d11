"""Checks the transactions of the store: txids without gaps and in order, contiguous ranges, and watermarks.

Every position is carried from batch to batch, so a range begins where the range before it ended. Only an opaque spout
may skip offsets, and only those that its source no longer holds.
"""

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
    previous: CommittedBatch | None = None
    positions: dict[Partition, int] = {}
    for batch in history.committed:
        if batch.recorded_count is not None and batch.recorded_count != batch.records:
            expected = f"{batch.recorded_count} records, as is noted beside its batch"
            findings.add(Kind.BROKEN_STORE, f"transaction {batch.txid}", expected, batch.records)
        if previous is not None and (batch.txid != previous.txid + 1 or batch.attempt_id <= previous.attempt_id):
            _check_order(previous, batch, history, findings)
        for partition, (start, until, _) in batch.ranges.items():
            position = positions.get(partition, start)
            if start != position or until < start:
                known_start = None if history.replays_exactly else log_starts.get(partition)
                _report_range(partition, batch, position, known_start, findings)
            positions[partition] = until
        if previous is not None and len(positions) != len(batch.ranges):
            _check_carried_forward(positions, batch, findings)
        if previous is not None and batch.txid == previous.txid + 1:
            _check_watermark(previous, batch, findings)
        previous = batch
    findings.add_checked("transactions", len(history.committed))


def _check_ends(history: StoreHistory, findings: Findings) -> None:
    """Compare the topology's own row with the attempts."""
    place = f"store, topology {history.topology_id!r}"
    if not history.committed:
        if history.committed_txid:
            findings.add(Kind.TRANSACTION_LOST, place, f"transaction {history.committed_txid}", "no committed attempt")
        return
    first, last = history.committed[0], history.committed[-1]
    if first.txid > 1:
        findings.note(f"the store no longer has transactions 1 to {first.txid - 1}: not checked")
    if (last.txid, last.attempt_id) != (history.committed_txid, history.committed_attempt_id):
        expected = f"transaction {history.committed_txid} as the last, by attempt {history.committed_attempt_id}"
        findings.add(Kind.BROKEN_STORE, place, expected, f"transaction {last.txid} by attempt {last.attempt_id}")
    newest = max(history.txid_of, default=0)
    if newest > history.attempt_counter:
        findings.add(Kind.BROKEN_STORE, place, f"attempt ids up to the counter's {history.attempt_counter}", newest)
    txids_in_flight = list(range(history.committed_txid + 1, history.committed_txid + 1 + len(history.in_flight)))
    if sorted(history.in_flight) != txids_in_flight:
        findings.add(Kind.BROKEN_STORE, place, f"recorded batches of {txids_in_flight}", sorted(history.in_flight))


def _check_order(previous: CommittedBatch, batch: CommittedBatch, history: StoreHistory, findings: Findings) -> None:
    place = f"store, topology {history.topology_id!r}"
    if batch.txid == previous.txid:
        attempts = f"attempts {previous.attempt_id} and {batch.attempt_id}"
        findings.add(Kind.TRANSACTION_TWICE, place, f"transaction {batch.txid} committed once", attempts)
    elif batch.txid != previous.txid + 1:
        missing = f"{previous.txid + 1}" + (f" to {batch.txid - 1}" if batch.txid > previous.txid + 2 else "")
        findings.add(Kind.TRANSACTION_LOST, place, f"transaction {missing}", f"{batch.txid} after {previous.txid}")
    if batch.attempt_id <= previous.attempt_id and batch.txid > previous.txid:
        expected = (
            f"transaction {batch.txid} by an attempt after {previous.attempt_id}, which committed {previous.txid}"
        )
        findings.add(Kind.OUT_OF_ORDER, place, expected, f"attempt {batch.attempt_id}")


def _report_range(
    partition: Partition, batch: CommittedBatch, position: int, log_start: int | None, findings: Findings
) -> None:
    """Report a range that does not begin where the range before it ended, or ends before it begins."""
    start, until, _ = batch.ranges[partition]
    place = f"transaction {batch.txid}, {format_partition(partition)}"
    if until < start or start < position:
        expected = f"offsets from {position} on, where the previous transaction ended"
        findings.add(Kind.RANGE_OVERLAP, place, expected, f"[{start}, {until})")
    elif log_start is not None and start <= log_start:
        findings.note(
            f"{place}: [{position}, {start}) is in no transaction; the source no longer holds these offsets, and an "
            "opaque spout continues without them"
        )
    else:
        findings.add(Kind.RANGE_GAP, place, f"offsets from {position} on", f"[{start}, {until})")


def _check_carried_forward(positions: dict[Partition, int], batch: CommittedBatch, findings: Findings) -> None:
    for partition in sorted(positions.keys() - batch.ranges.keys()):
        place = f"transaction {batch.txid}, {format_partition(partition)}"
        findings.add(Kind.RANGE_GAP, place, f"position {positions[partition]} carried forward", "the partition missing")
        del positions[partition]


def _check_watermark(previous: CommittedBatch, batch: CommittedBatch, findings: Findings) -> None:
    """Check that the recorded watermark does not go back, nor move while windows wait for a partition."""
    old_us, new_us = previous.watermark_us, batch.watermark_us
    moves_while_waiting = batch.awaited and new_us != old_us
    if not moves_while_waiting and (old_us is None or (new_us is not None and new_us >= old_us)):
        return
    expected = f"tuples before {old_us} µs late, as before"
    if moves_while_waiting:
        expected += f", while windows wait for {format_partition(batch.awaited[0])}"
    findings.add(Kind.BROKEN_STORE, f"transaction {batch.txid}", expected, f"those before {new_us} µs")


def format_partition(partition: Partition) -> str:
    """Return a partition for a message."""
    return f"partition {partition[1]} of {partition[0]!r}"
