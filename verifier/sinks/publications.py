"""`check_sinks` holds the records of topics against the counts, attempts and checksums that the store has of them.

The order of reading is valid even while sinks publish: first what the store says is published, then the ends of the
topics, then the store again, then the topics up to these ends. Nothing is changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from verifier.evidence.findings import Findings, Kind, Report
from verifier.evidence.publications import COMMITTED, REWOUND, Publications, StoredRecords
from verifier.evidence.store import Store
from verifier.sinks.topics import (
    CheckedTopic,
    SinkRecords,
    TopicEnd,
    TopicRecords,
    compute_sink_id,
    read_end,
    read_records,
)


def check_sinks(store_url: str, topology_id: str, topics: Sequence[CheckedTopic]) -> Report:
    """Decide whether topics have the records of each committed transaction once, whole and in order.

    Raises `CheckImpossible` if the store or a topic can't be read.
    """
    findings = Findings()
    with closing(Store(store_url)) as store:
        earlier = store.publications(topology_id)
        if topics and earlier.store_id is None:
            findings.note(
                "the store was repaired, and has no id before the next run: the topics of sinks were not checked"
            )
            return findings.report()
        ends = [read_end(checked) for checked in topics]
        stored = store.publications(topology_id)
    read_topics = []
    for checked, end in zip(topics, ends, strict=True):
        sinks = {compute_sink_id(topology_id, sink, str(earlier.store_id)): sink for sink in checked.sinks}
        read_topics.append(ReadTopic(checked.topic, end, read_records(checked, end, sinks), sinks))
    check_topics(read_topics, earlier, stored, findings)
    return findings.report()


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """A topic that was read up to its end. `sinks` are the names of the sinks with these ids, which publish to it."""

    topic: str
    end: TopicEnd
    records: TopicRecords
    sinks: Mapping[bytes, str]


def check_topics(topics: Sequence[ReadTopic], earlier: Publications, stored: Publications, findings: Findings) -> None:
    """Compare the records that sinks have in their topics with the store.

    `earlier` was read before the ends of the topics, `stored` after them: so everything that `earlier` calls published
    is in the topics, and `stored` knows everything that is there. A sink may have the records of a transaction in
    several topics: they are counted together.
    """
    parts_by_sink: dict[str, list[_SinkPart]] = defaultdict(list)
    for topic in topics:
        place = f"topic {topic.topic!r}"
        if topic.records.foreign_count:
            findings.note(f"{place}: {topic.records.foreign_count} records of others were passed over")
        if topic.end.is_compacted:
            findings.note(f"{place} is compacted: of its records only order and attempts were checked")
        for sink_id, sink in topic.sinks.items():
            part = _SinkPart(topic.topic, topic.end, sink, topic.records.by_sink_id[sink_id], stored)
            parts_by_sink[sink].append(part)
            findings.add_checked("published records", part.records.counts.total())
            _check_order(part, findings)
            _check_attempts(part, findings)
    for parts in parts_by_sink.values():
        _check_transactions(_SinkWhole.of_parts(parts), earlier, findings)


@dataclass(frozen=True, slots=True)
class _SinkPart:
    """The records of one sink in one topic, and what the store has."""

    topic: str
    end: TopicEnd
    sink: str
    records: SinkRecords
    stored: Publications

    @property
    def place(self) -> str:
        return f"topic {self.topic!r}, sink {self.sink!r}"


@dataclass(frozen=True, slots=True)
class _SinkWhole:
    """The records of one sink in all its topics, summed up by attempt, and what the store has.

    `deleted_up_to` is the newest attempt of which retention may have deleted records. With `is_compacted`, records may
    be missing in one of the topics.
    """

    place: str
    sink: str
    counts: Counter[int]
    checksums: Counter[int]
    deleted_up_to: float | None
    is_compacted: bool
    stored: Publications

    @classmethod
    def of_parts(cls, parts: Sequence[_SinkPart]) -> _SinkWhole:
        """Sum up the topics of one sink."""
        counts: Counter[int] = Counter()
        checksums: Counter[int] = Counter()
        for part in parts:
            counts.update(part.records.counts)
            checksums.update(part.records.checksums)
        topics = ", ".join(repr(part.topic) for part in parts)
        sink, stored = parts[0].sink, parts[0].stored
        deleted = [
            attempt_id
            for part in parts
            if not part.end.is_compacted and (attempt_id := _find_deleted(part.end, part.records)) is not None
        ]
        return cls(
            f"topic{'s' * (len(parts) > 1)} {topics}, sink {sink!r}",
            sink,
            counts,
            checksums,
            max(deleted, default=None),
            any(part.end.is_compacted for part in parts),
            stored,
        )


def _check_order(part: _SinkPart, findings: Findings) -> None:
    for step in part.records.steps_back:
        record_place = f"{part.place}, partition {step.partition}, offset {step.offset}"
        expected = f"attempt {step.previous_attempt_id} or a later one"
        findings.add(Kind.OUT_OF_ORDER, record_place, expected, f"attempt {step.attempt_id}")


def _check_attempts(part: _SinkPart, findings: Findings) -> None:
    """Check that the topic has records of committed attempts alone, each with its txid."""
    records, stored = part.records, part.stored
    oldest_id, boundary_id = min(stored.attempts, default=0), stored.boundaries.get(part.sink, 0)
    unchecked: Counter[str] = Counter()
    for attempt_id, txids in sorted(records.txids.items()):
        record_place = f"{part.place}, transaction {', '.join(map(str, sorted(txids)))}, attempt {attempt_id}"
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
        elif attempt_id not in stored.records.get(part.sink, {}):
            findings.add(Kind.WRONG_PUBLICATION, record_place, "no records for this topic", records.counts[attempt_id])
    for reason, count in unchecked.items():
        findings.note(f"{part.place}: {count} records are of transactions that {reason}")


def _check_transactions(whole: _SinkWhole, earlier: Publications, findings: Findings) -> None:
    """Check that the topics have all records of each committed transaction, unless it still waits to be published."""
    deleted_up_to = whole.deleted_up_to
    if deleted_up_to is not None:
        findings.note(f"{whole.place}: its retention has deleted records; of their transactions not all was checked")
    letters, waiting = whole.stored.letters.get(whole.sink, {}), 0
    for attempt_id, published in sorted(whole.stored.records.get(whole.sink, {}).items()):
        set_aside, count = letters.get(attempt_id, 0), whole.counts[attempt_id]
        expected = StoredRecords(published.count - set_aside) if set_aside else published
        is_whole = not whole.is_compacted and (deleted_up_to is None or attempt_id > deleted_up_to)
        if count < expected.count and not _is_published(whole.sink, attempt_id, earlier):
            waiting += 1
        elif is_whole or count > expected.count:
            _check_transaction(whole, attempt_id, expected, findings)
    if waiting:
        findings.note(f"{whole.place}: {waiting} committed transactions are not published yet")


def _check_transaction(whole: _SinkWhole, attempt_id: int, expected: StoredRecords, findings: Findings) -> None:
    txid, _ = whole.stored.attempts[attempt_id]
    record_place, count = f"{whole.place}, transaction {txid}", whole.counts[attempt_id]
    if count != expected.count:
        kind = Kind.TRANSACTION_TWICE if count > expected.count else Kind.PARTLY_VISIBLE
        findings.add(kind if count else Kind.TRANSACTION_LOST, record_place, f"{expected.count} records", count)
    elif expected.checksum is not None and whole.checksums[attempt_id] != expected.checksum:
        text = f"records with the checksum {expected.checksum}"
        findings.add(Kind.WRONG_PUBLICATION, record_place, text, whole.checksums[attempt_id])


def _find_deleted(end: TopicEnd, records: SinkRecords) -> float | None:
    """Return the newest attempt that may lack records in a partition without a beginning, None if there is no such
    partition. It is infinite if such a partition is empty."""
    shortened = [partition for partition, (start, _) in end.ranges.items() if start]
    return max((records.first_attempts.get(partition, float("inf")) for partition in shortened), default=None)


def _is_published(sink: str, attempt_id: int, earlier: Publications) -> bool:
    """Return whether the store has said that a sink is done with an attempt."""
    is_committed = attempt_id in earlier.attempts and earlier.attempts[attempt_id][1] == COMMITTED
    return is_committed and attempt_id not in earlier.waiting.get(sink, ())
