"""How `verify` holds the records of a topic against the store: each corruption is found, and what may be is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks.kafka.checksums import sum_checksums
from sinks.kafka.record_encoding import KEY, TOPIC, VALUE
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.attempt import AttemptId
from verifier.evidence.findings import Findings, Kind, Report
from verifier.evidence.publications import Publications, StoredRecords
from verifier.sinks.publications import ReadTopic, check_sinks, check_topics
from verifier.sinks.topics import CheckedTopic, SinkRecords, TopicEnd, TopicRecords
from verifier.source import KafkaSource

Record = tuple[int, int, bytes | None, bytes | None]
"""Txid, attempt, key and value."""

RECORDS: tuple[Record, ...] = (
    (1, 1, b"cat", b"CAT"),
    (1, 1, None, b"DOG"),
    (2, 3, b"cat", None),
    (2, 3, b"", b"OWL"),
    (4, 5, b"emu", b"EMU"),
)
"""Transaction 3 has no records; the first attempt at transaction 2 has failed."""
ATTEMPTS = {1: (1, "committed"), 2: (2, "failed"), 3: (2, "committed"), 4: (3, "committed"), 5: (4, "committed")}


def stored(committed: Iterable[Record] = RECORDS, topics: Sequence[str] = (), **changes: object) -> Publications:
    """What a store has after it has committed these records, with checksums of the sink's own code.

    `topics` are those that the records name, if they do.
    """
    rows: dict[int, list[tuple[Record, str | None]]] = {}
    for record, topic in zip_longest(committed, topics):
        rows.setdefault(record[1], []).append((record, topic))
    counted = {}
    for attempt_id, part in rows.items():
        keys, values = (pa.array([record[place] for record, _ in part], pa.binary()) for place in (2, 3))
        columns = {KEY: keys, VALUE: values} | ({TOPIC: pa.array([topic for _, topic in part])} if topics else {})
        counted[attempt_id] = StoredRecords(len(part), sum_checksums(pa.table(columns)))
    store = Publications(4, "store", ATTEMPTS, {"alerts": counted}, {}, {}, {})
    return replace(store, **changes)  # type: ignore[arg-type]


@dataclass
class Topic:
    """A topic of one partition. With a `start` its first records were deleted.

    `sinks` are those that are checked; the ids of sinks are their names. The records are those of the sink "alerts",
    and before each stands one of every sink in `others`.
    """

    records: list[Record] = field(default_factory=lambda: list(RECORDS))
    start: int = 0
    is_compacted: bool = False
    sinks: tuple[str, ...] = ("alerts",)
    others: tuple[bytes, ...] = ()
    name: str = "alerts"
    is_named: bool = False
    """Records name their topic."""

    def read(self) -> ReadTopic:
        ids = {sink.encode(): sink for sink in self.sinks}
        topic = self.name.encode() if self.is_named else None
        records = TopicRecords({sink_id: SinkRecords(topic) for sink_id in ids})
        for offset, (txid, attempt_id, key, value) in enumerate(self.records):
            headers = [("txid", b"%d" % txid), ("attempt", b"%d" % attempt_id)]
            for sink in (*self.others, b"alerts"):
                records.add(0, self.start + offset, (key, value), [*headers, ("sink", sink)])
        end = TopicEnd({0: (self.start, self.start + len(self.records))}, self.is_compacted)
        return ReadTopic(self.name, end, records, ids)

    def checked(self, store: Publications | None = None, earlier: Publications | None = None) -> Report:
        return checked_together(self, store=store, earlier=earlier)


def checked_together(*topics: Topic, store: Publications | None = None, earlier: Publications | None = None) -> Report:
    store, findings = store or stored(), Findings()
    check_topics([topic.read() for topic in topics], earlier or store, store, findings)
    return findings.report()


def test_a_topic_with_each_record_once_is_exact() -> None:
    report = Topic().checked()
    assert (report.findings, report.notes, report.checked) == ((), (), {"published records": 5})


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (RECORDS[:4], {Kind.TRANSACTION_LOST: 1}),
        ((*RECORDS[:1], *RECORDS[2:]), {Kind.PARTLY_VISIBLE: 1}),
        ((*RECORDS, RECORDS[4]), {Kind.TRANSACTION_TWICE: 1}),
        ((*RECORDS[2:4], *RECORDS[:2], RECORDS[4]), {Kind.OUT_OF_ORDER: 1}),
        ((*RECORDS[:4], (4, 5, b"emu", b"EMV")), {Kind.WRONG_PUBLICATION: 1}),
        ((*RECORDS[:3], (2, 3, None, b"OWL"), RECORDS[4]), {Kind.WRONG_PUBLICATION: 1}),
        ((*RECORDS[:4], (4, 4, b"emu", b"EMU")), {Kind.TRANSACTION_LOST: 1, Kind.WRONG_ATTEMPT: 1}),
        ((*RECORDS[:2], (2, 2, b"cat", None), *RECORDS[2:]), {Kind.WRONG_ATTEMPT: 1}),
        ((*RECORDS[:3], (3, 4, b"owl", b"OWL"), *RECORDS[3:]), {Kind.WRONG_PUBLICATION: 1, Kind.OUT_OF_ORDER: 1}),
        ((*RECORDS, (5, 9, b"fox", b"FOX")), {Kind.UNKNOWN_ATTEMPT: 1}),
    ],
)
def test_a_planted_record_is_found(records: tuple[Record, ...], expected: Mapping[Kind, int]) -> None:
    assert Topic(list(records)).checked().counts == expected


def test_a_transaction_in_the_outbox_may_be_missing() -> None:
    store = stored(waiting={"alerts": frozenset({5})})
    report = Topic(list(RECORDS[:4])).checked(store)
    assert (report.counts, len(report.notes)) == ({}, 1)
    assert Topic().checked(store).counts == {}, "a crash came before the store knew that it is published"
    earlier = replace(stored(RECORDS[:4]), attempts={number: ATTEMPTS[number] for number in (1, 2, 3, 4)})
    assert Topic(list(RECORDS[:4])).checked(stored(), earlier).counts == {}, "it was committed meanwhile"


def test_records_that_are_deleted_are_noted() -> None:
    assert Topic(list(RECORDS[1:]), start=1).checked().counts == {}
    assert Topic([], start=5).checked().counts == {}
    shortened = Topic([RECORDS[1], RECORDS[3], RECORDS[4]], start=1).checked()
    assert (shortened.counts, len(shortened.notes)) == ({Kind.PARTLY_VISIBLE: 1}, 1)
    assert Topic(list(RECORDS[3:]), is_compacted=True).checked().counts == {}


def test_records_of_attempts_that_count_for_nothing_are_noted() -> None:
    rewound = stored(RECORDS[:4], attempts={**ATTEMPTS, 5: (4, "rewound")})
    assert len(Topic().checked(rewound).notes) == 1
    restored = Topic().checked(stored(RECORDS[:4], restored=frozenset({5})))
    assert (restored.counts, len(restored.notes)) == ({}, 1)
    later = {number: ATTEMPTS[number] for number in (3, 4, 5)}
    trimmed = Topic().checked(stored(RECORDS[2:], attempts=later))
    assert (trimmed.counts, len(trimmed.notes)) == ({}, 1)


def test_records_that_were_set_aside_are_not_expected() -> None:
    store = stored(letters={"alerts": {3: 1}})
    assert Topic([*RECORDS[:3], RECORDS[4]]).checked(store).counts == {}
    assert Topic().checked(store).counts == {Kind.TRANSACTION_TWICE: 1}


def test_records_of_others_are_passed_over() -> None:
    """Neither their attempts nor their order matter, nor that some have no headers of a sink."""
    topic = Topic(others=(b"of another topology", b"of another store"))
    report = topic.checked()
    assert (report.findings, report.checked) == ((), {"published records": 5})
    assert report.notes == ("topic 'alerts': 10 records of others were passed over",)
    records = TopicRecords({b"alerts": SinkRecords()})
    for headers in (None, [("sink", b"alerts")], [("txid", b"1"), ("attempt", b"1")], [("sink", None)]):
        records.add(0, 0, (None, None), headers)
    assert (records.foreign_count, records.by_sink_id[b"alerts"].counts) == (4, {})


def test_topics_are_not_checked_for_a_store_without_an_id(tmp_path: Path) -> None:
    with closing(SqlCoordinatorStore(url := f"sqlite:///{tmp_path}/store.db")) as store:
        store.recount(store.acquire("words", {}, owner="owner", lease_ms=1_000), AttemptId(9))
    report = check_sinks(url, "words", [CheckedTopic("alerts", {"alerts": False}, KafkaSource("localhost:1"))])
    assert (report.findings, len(report.notes)) == ((), 1)


def test_each_sink_of_a_topic_is_checked_by_its_own_records() -> None:
    counted = stored().records["alerts"]
    store = stored(records={"alerts": counted, "copies": counted})
    topic = Topic(sinks=("alerts", "copies"), others=(b"copies",))
    assert topic.checked(store).counts == {}
    topic.records[0] = RECORDS[1]
    assert topic.checked(store).counts == {Kind.WRONG_PUBLICATION: 2}
    topic.others = ()
    lost = [finding.where for finding in topic.checked(store).findings if finding.kind is Kind.TRANSACTION_LOST]
    assert lost == [f"topic 'alerts', sink 'copies', transaction {txid}" for txid in (1, 2, 4)]


def test_counts_alone_are_compared_where_the_store_has_no_checksum() -> None:
    old = stored(records={"alerts": {1: StoredRecords(2), 3: StoredRecords(2), 5: StoredRecords(1)}})
    assert Topic([*RECORDS[:4], (4, 5, b"", b"")]).checked(old).counts == {}
    assert Topic(list(RECORDS[:4])).checked(old).counts == {Kind.TRANSACTION_LOST: 1}


def by_topic(*records: Record, **other: Any) -> tuple[Topic, Topic]:
    """Two topics of one sink. The other one has the last two records, and its own properties."""
    return Topic(list(records[:-2]), name="first"), Topic(list(records[-2:]), name="second", **other)


def test_records_of_a_transaction_are_counted_over_all_topics_of_their_sink() -> None:
    """Transaction 2 has records in both topics."""
    report = checked_together(*by_topic(*RECORDS))
    assert (report.findings, report.notes, report.checked) == ((), (), {"published records": 5})
    for records, kind, txid in (
        ((*RECORDS[:2], *RECORDS[3:]), Kind.PARTLY_VISIBLE, 2),
        (RECORDS[2:], Kind.TRANSACTION_LOST, 1),
        ((RECORDS[0], *RECORDS), Kind.TRANSACTION_TWICE, 1),
        ((*RECORDS[:3], (2, 3, b"", b"owl"), RECORDS[4]), Kind.WRONG_PUBLICATION, 2),
    ):
        [finding] = checked_together(*by_topic(*records)).findings
        place = f"topics 'first', 'second', sink 'alerts', transaction {txid}"
        assert (finding.kind, finding.where) == (kind, place)


def test_a_record_in_the_other_topic_of_its_sink_is_found() -> None:
    """Each transaction has its records, in a topic of its sink; two of them are in the wrong one."""
    store = stored(topics=["first", "first", "first", "second", "second"])
    first, second = (replace(topic, is_named=True) for topic in by_topic(*RECORDS))
    assert checked_together(first, second, store=store).counts == {}
    first.records[2], second.records[0] = second.records[0], first.records[2]
    [finding] = checked_together(first, second, store=store).findings
    assert (finding.kind, finding.where) == (
        Kind.WRONG_PUBLICATION,
        "topics 'first', 'second', sink 'alerts', transaction 2",
    )


def test_each_topic_of_a_sink_has_an_order_and_limits_of_its_own() -> None:
    first, second = by_topic(RECORDS[0], RECORDS[2], RECORDS[1], RECORDS[3])
    assert Kind.OUT_OF_ORDER not in checked_together(first, second).counts, "each is in order"
    second.records.reverse()
    findings = checked_together(first, second).findings
    [step] = [finding for finding in findings if finding.kind is Kind.OUT_OF_ORDER]
    assert step.where == "topic 'second', sink 'alerts', partition 0, offset 1"
    for properties in ({"is_compacted": True}, {"start": 3}):
        report = checked_together(*by_topic(*RECORDS[:4], RECORDS[4], **properties))
        assert (report.counts, len(report.notes)) == ({}, 1), "nothing is missing"
        report = checked_together(*by_topic(RECORDS[0], *RECORDS[2:], **properties))
        assert (report.counts, len(report.notes)) == ({}, 1), "the record may have been in the second topic"
