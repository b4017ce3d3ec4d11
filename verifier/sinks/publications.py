"""`check_sinks` holds the records of topics against the counts, attempts and checksums that the store has of them.

The order of reading is valid even while sinks publish: first what the store says is published, then the ends of the
topics, then the store again, then the topics up to these ends. Nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing

from verifier.evidence.findings import Findings, Kind, Report
from verifier.evidence.publications import COMMITTED, REWOUND, Publications, StoredRecords
from verifier.evidence.store import Store
from verifier.sinks.topics import CheckedTopic, TopicEnd, TopicRecords, read_end, read_records


def check_sinks(store_url: str, topology_id: str, topics: Sequence[CheckedTopic]) -> Report:
    """Decide whether topics have the records of each committed transaction once, whole and in order.

    Raises `CheckImpossible` if the store or a topic can't be read.
    """
    findings = Findings()
    with closing(Store(store_url)) as store:
        earlier = store.publications(topology_id)
        ends = [read_end(checked) for checked in topics]
        stored = store.publications(topology_id)
    for checked, end in zip(topics, ends, strict=True):
        check_topic(checked, end, read_records(checked, end), earlier, stored, findings)
    return findings.report()


def check_topic(
    checked: CheckedTopic,
    end: TopicEnd,
    records: TopicRecords,
    earlier: Publications,
    stored: Publications,
    findings: Findings,
) -> None:
    """Compare the records of a topic with the store. `earlier` was read before the end of the topic, `stored` after
    it: so everything that `earlier` calls published is in the topic, and `stored` knows everything that is there."""
    findings.add_checked("published records", records.counts.total())
    place = f"topic {checked.topic!r}"
    if records.foreign:
        findings.note(f"{place}: {records.foreign} records have no headers of a sink; they were not checked")
    _check_order(checked, records, findings)
    _check_attempts(checked, records, stored, findings)
    gone_up_to = _find_deleted(end, records)
    if end.is_compacted:
        findings.note(f"{place} is compacted: of its records only order and attempts were checked")
    elif gone_up_to is not None:
        findings.note(f"{place}: its retention has deleted records; of their transactions not all was checked")
    waiting = 0
    for attempt_id, expected in sorted(_expected_records(checked, stored).items()):
        is_whole = not end.is_compacted and (gone_up_to is None or attempt_id > gone_up_to)
        if records.counts[attempt_id] < expected.count and not _is_published(checked, attempt_id, earlier):
            waiting += 1
        elif is_whole or records.counts[attempt_id] > expected.count:
            _check_transaction(place, stored.attempts[attempt_id][0], attempt_id, expected, records, findings)
    if waiting:
        findings.note(f"{place}: {waiting} committed transactions are not published yet")


def _check_transaction(
    place: str, txid: int, attempt_id: int, expected: StoredRecords, records: TopicRecords, findings: Findings
) -> None:
    record_place, count = f"{place}, transaction {txid}", records.counts[attempt_id]
    if count != expected.count:
        kind = Kind.TRANSACTION_TWICE if count > expected.count else Kind.PARTLY_VISIBLE
        findings.add(kind if count else Kind.TRANSACTION_LOST, record_place, f"{expected.count} records", count)
    elif expected.checksum is not None and records.checksums[attempt_id] != expected.checksum:
        text = f"records with the checksum {expected.checksum}"
        findings.add(Kind.WRONG_PUBLICATION, record_place, text, records.checksums[attempt_id])


def _check_order(checked: CheckedTopic, records: TopicRecords, findings: Findings) -> None:
    if len(checked.sinks) > 1:
        sinks = ", ".join(checked.sinks)
        findings.note(f"topic {checked.topic!r} is that of several sinks ({sinks}): their order was not checked")
        return
    for step in records.steps_back:
        record_place = f"topic {checked.topic!r}, partition {step.partition}, offset {step.offset}"
        expected = f"attempt {step.previous_attempt_id} or a later one"
        findings.add(Kind.OUT_OF_ORDER, record_place, expected, f"attempt {step.attempt_id}")


def _check_attempts(checked: CheckedTopic, records: TopicRecords, stored: Publications, findings: Findings) -> None:
    """Check that the topic has records of committed attempts alone, each with its txid."""
    oldest_id = min(stored.attempts, default=0)
    boundary_id = max((stored.boundaries.get(sink, 0) for sink in checked.sinks), default=0)
    unchecked: Counter[str] = Counter()
    for attempt_id, txids in sorted(records.txids.items()):
        record_place = (
            f"topic {checked.topic!r}, transaction {', '.join(map(str, sorted(txids)))}, attempt {attempt_id}"
        )
        txid, phase = stored.attempts.get(attempt_id, (None, None))
        if txid is None and (attempt_id < oldest_id or attempt_id <= boundary_id):
            unchecked["the store no longer has"] += records.counts[attempt_id]
        elif txid is None:
            findings.add(Kind.UNKNOWN_ATTEMPT, record_place, "an attempt of the store", "one that it does not know")
        elif txids != {txid}:
            findings.add(Kind.WRONG_ATTEMPT, record_place, f"transaction {txid}", f"transactions {sorted(txids)}")
        elif phase == REWOUND:
            unchecked["a rewind has taken back"] += records.counts[attempt_id]
        elif phase != COMMITTED:
            findings.add(Kind.WRONG_ATTEMPT, record_place, "the attempt that was committed", f"one that has {phase}")
        elif attempt_id in stored.restored:
            unchecked["the store has from a journal"] += records.counts[attempt_id]
        elif not any(attempt_id in stored.records.get(sink, {}) for sink in checked.sinks):
            findings.add(Kind.WRONG_PUBLICATION, record_place, "no records for this topic", records.counts[attempt_id])
    for reason, count in unchecked.items():
        findings.note(f"topic {checked.topic!r}: {count} records are of transactions that {reason}")


def _find_deleted(end: TopicEnd, records: TopicRecords) -> float | None:
    """Return the newest attempt that may lack records in a partition without a beginning, None if there is no such
    partition. It is infinite if such a partition is empty."""
    shortened = [partition for partition, (start, _) in end.ranges.items() if start]
    return max((records.first_attempts.get(partition, float("inf")) for partition in shortened), default=None)


def _expected_records(checked: CheckedTopic, stored: Publications) -> dict[int, StoredRecords]:
    """Return the records that the topic should have of each committed attempt, without those that were set aside."""
    attempt_ids = {attempt_id for sink in checked.sinks for attempt_id in stored.records.get(sink, {})}
    return {attempt_id: _sum_up(list(_parts(checked, stored, attempt_id))) for attempt_id in attempt_ids}


def _parts(checked: CheckedTopic, stored: Publications, attempt_id: int) -> Iterator[StoredRecords]:
    for sink in checked.sinks:
        part = stored.records.get(sink, {}).get(attempt_id)
        letters = stored.letters.get(sink, {}).get(attempt_id, 0)
        if part is not None:
            yield StoredRecords(part.count - letters) if letters else part


def _sum_up(parts: Sequence[StoredRecords]) -> StoredRecords:
    checksums = [part.checksum for part in parts if part.checksum is not None]
    is_known = len(checksums) == len(parts)
    return StoredRecords(sum(part.count for part in parts), sum(checksums) if is_known else None)


def _is_published(checked: CheckedTopic, attempt_id: int, earlier: Publications) -> bool:
    """Return whether the store has said that each sink of the topic is done with an attempt."""
    is_waiting = any(attempt_id in earlier.waiting.get(sink, ()) for sink in checked.sinks)
    return attempt_id in earlier.attempts and earlier.attempts[attempt_id][1] == COMMITTED and not is_waiting
