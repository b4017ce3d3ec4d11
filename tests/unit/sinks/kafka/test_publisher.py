"""The publisher over a scripted client: what is done about each error of Kafka, and in which order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from sinks.kafka import connection, publisher
from sinks.kafka import sink as kafka_sink
from sinks.kafka.checksums import sum_checksums
from sinks.kafka.connection import SinkConnection
from sinks.kafka.control import ControlTopic
from sinks.kafka.publisher import Headers, split_records
from sinks.kafka.record_encoding import HEADER, KEY, PARTITION, TOPIC, VALUE
from sinks.kafka.sink import KafkaSink
from sinks.kafka.topics import TopicLimits
from transactional.core.ports import PublishedRecords, SinkOwner
from transactional.core.store.outbox import Publication
from transactional.errors import ConfigError, RecordRefused, SinkUnavailable
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from verifier.sinks.topics import compute_sink_id

NO_ANSWER = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
ABORTABLE = KafkaError(KafkaError.INVALID_PRODUCER_ID_MAPPING, "the id has expired", txn_requires_abort=True)
FATAL = KafkaError(KafkaError.INVALID_TXN_STATE, "the control topic was deleted", fatal=True)
TOO_LONG = KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT, "longer than transaction.max.timeout.ms")
SENT = ["begin", "produce", "produce"]
"""The calls of a transaction with one record and its marker."""

PAGES = 4_000
PUBLISHED_TWICE = f"""
from resource import RUSAGE_SELF, getrusage
from sinks.kafka.connection import SinkConnection
producer = SinkConnection("127.0.0.1:1").open_producer({{}}, used_by="a test")
faults = []
for _ in range(2):
    blocks = [bytes(1024) for _ in range({PAGES} * 4)]
    del blocks
    faults.append(getrusage(RUSAGE_SELF).ru_minflt)
print(faults[1] - faults[0])
"""

Script = Mapping[str, Sequence[KafkaError | None]]


class ScriptedProducer:
    """A producer that fails as its script says: by call the errors of the first, second, … time."""

    script: dict[str, list[KafkaError | None]]
    calls: list[str]
    headers: list[Headers | None]
    timeouts_ms: list[int]
    refused: KafkaError | None

    def __init__(self, settings: dict[str, Any]) -> None:
        self.timeouts_ms.append(settings["transaction.timeout.ms"])
        self.on_delivery = settings["on_delivery"]

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if (errors := self.script.get(name)) and (error := errors.pop(0)) is not None:
            raise KafkaException(error)

    def init_transactions(self, timeout: float) -> None:
        self._call("init")

    def begin_transaction(self) -> None:
        self._call("begin")

    def produce(self, topic: str, *record: Any, headers: Headers | None) -> None:
        self.headers.append(headers)
        self._call("produce")

    def poll(self, timeout: float) -> None:
        if self.refused is not None:
            self.on_delivery(self.refused, RefusedMessage())

    def commit_transaction(self, timeout: float) -> None:
        self._call("commit")

    def abort_transaction(self, timeout: float) -> None:
        self._call("abort")


class RefusedMessage:
    """A record as its delivery report has it: without headers."""

    def topic(self) -> str:
        return "topic"

    def key(self) -> bytes:
        return b"ann"

    def value(self) -> bytes:
        return b"{}"


def group(count: int) -> list[PublishedRecords]:
    records = pa.table({KEY: pa.array([b"ann"]), VALUE: pa.array([b"{}"])})
    attempts = [TransactionAttempt(TxId(7 + number), AttemptId(9 + number)) for number in range(count)]
    return [PublishedRecords(Publication("run", attempt), records) for attempt in attempts]


OWNER = SinkOwner("orders", "alerts/ä", "store")


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> KafkaSink:
    """A sink whose client does what `ScriptedProducer.script` says."""
    sink = KafkaSink("host:9092", "topic", value="value")
    sink._limits = [TopicLimits("topic", 1, 1_000_000)]
    fresh: dict[str, Any] = {"script": {}, "calls": [], "headers": [], "timeouts_ms": [], "refused": None}
    for name, content in fresh.items():
        monkeypatch.setattr(ScriptedProducer, name, content, raising=False)
    monkeypatch.setattr(connection, "Producer", ScriptedProducer)
    monkeypatch.setattr(kafka_sink, "AdminClient", lambda _settings: None)
    monkeypatch.setattr(ControlTopic, "create", lambda *_arguments, **_named: None)
    return sink


def open_and_publish(sink: KafkaSink, script: Script, count: int = 1) -> list[str]:
    """Open the sink, publish some transactions by a script, and return the calls after the init."""
    sink.open(OWNER, has_published=True)
    ScriptedProducer.calls.clear()
    ScriptedProducer.script.update({name: list(errors) for name, errors in script.items()})
    try:
        sink.publish(group(count))
    finally:
        ScriptedProducer.script.clear()
    return ScriptedProducer.calls


def test_a_commit_without_an_answer_is_sent_again_and_never_aborted(sink: KafkaSink) -> None:
    calls = open_and_publish(sink, {"commit": [NO_ANSWER, NO_ANSWER, None]})
    assert calls == [*SENT, "commit", "commit", "commit"]


@pytest.mark.parametrize(
    ("script", "ends", "is_fenced"),
    [
        ({"commit": [ABORTABLE]}, ["commit", "abort"], False),
        ({"commit": [ABORTABLE], "abort": [NO_ANSWER]}, ["commit", "abort", "abort"], False),
        ({"commit": [ABORTABLE], "abort": [FATAL]}, ["commit", "abort"], True),
        ({"commit": [FATAL]}, ["commit"], True),
        ({"commit": [NO_ANSWER, FATAL]}, ["commit", "commit"], True),
        ({"produce": [FATAL]}, [], True),
    ],
)
def test_a_publication_that_fails_is_aborted_or_needs_another_producer(
    sink: KafkaSink, script: Script, ends: list[str], *, is_fenced: bool
) -> None:
    with pytest.raises(SinkUnavailable, match="can't publish transactions 7 to 7 at host:9092") as failure:
        open_and_publish(sink, script)
    calls = ScriptedProducer.calls
    assert calls == [*(SENT if ends else SENT[:2]), *ends]
    assert failure.value.is_fenced is is_fenced
    assert not failure.value.has_timed_out
    if not is_fenced:
        sink.publish(group(1))
        assert calls[-4:] == [*SENT, "commit"], "the same producer goes on"


def test_headers_name_transaction_attempt_and_sink(sink: KafkaSink) -> None:
    """The independent checker makes the same id of the names, and of no others."""
    open_and_publish(sink, {}, 2)
    sink_id = compute_sink_id("orders", "alerts/ä", "store")
    assert ScriptedProducer.headers == [
        *([("txid", txid), ("attempt", attempt), ("sink", sink_id)] for txid, attempt in ((b"7", b"9"), (b"8", b"10"))),
        None,
    ]
    others = {compute_sink_id("orders", "alerts", "ä/store"), compute_sink_id("orders", "alerts/ä", "other")}
    assert sink_id not in others


def test_a_commit_whose_outcome_stays_unknown_needs_another_producer(
    sink: KafkaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_COMMIT_S", -1)
    with pytest.raises(SinkUnavailable) as failure:
        open_and_publish(sink, {"commit": [NO_ANSWER]})
    assert failure.value.is_fenced
    assert "abort" not in ScriptedProducer.calls


def test_a_record_that_is_refused_is_named(sink: KafkaSink) -> None:
    ScriptedProducer.refused = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    with pytest.raises(
        RecordRefused, match=r"record 0 of transaction 7, for topic 'topic' with key b'ann'.* is refused"
    ):
        open_and_publish(sink, {"commit": [ABORTABLE]})


def test_a_refused_record_has_the_number_by_which_it_can_be_set_aside(
    sink: KafkaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of two topics have one count. The marker has no number."""
    columns = {KEY: [b"ann", b"bob", b"ann", b"ann"], VALUE: [b"{}", b"{}", b"[]", b"{}"], TOPIC: list("aabb")}
    published = PublishedRecords(Publication("run", TransactionAttempt(TxId(7), AttemptId(9))), pa.table(columns))
    ScriptedProducer.refused = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    monkeypatch.setattr(RefusedMessage, "topic", lambda _message: "b")
    ScriptedProducer.script["commit"] = [ABORTABLE, ABORTABLE]
    sink.open(OWNER, has_published=True)
    with pytest.raises(RecordRefused, match="record 3 of transaction 7, for topic 'b' with key b'ann'"):
        sink.publish([published])
    monkeypatch.setattr(RefusedMessage, "value", lambda _message: b"marker")
    with pytest.raises(RecordRefused, match="a record for topic 'b' with key b'ann' is refused"):
        sink.publish([published])


class HastyClock:
    """A clock by which more than an hour passes between two looks at it."""

    now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 5_000
        return self.now_s


def test_only_a_single_transaction_that_is_too_slow_gets_more_time(
    sink: KafkaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "time", HastyClock())
    for count, error in ((2, FATAL), (1, FATAL), (1, ABORTABLE)):
        with pytest.raises(SinkUnavailable) as failure:
            open_and_publish(sink, {"commit": [error]}, count)
        assert failure.value.has_timed_out
        assert failure.value.is_fenced, "another time-out needs another producer"
    ScriptedProducer.script["init"] = [TOO_LONG]
    with pytest.raises(SinkUnavailable, match=r"longer than 20000 ms to publish, and transaction\.max\.timeout\.ms"):
        sink.open(OWNER, has_published=True)
    open_and_publish(sink, {})
    assert ScriptedProducer.timeouts_ms == [10_000, 10_000, 20_000, 40_000, 20_000]


def test_options_that_the_library_refuses_are_named(sink: KafkaSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "Producer", Producer)
    sink.connection = SinkConnection("host:9092", (("socket.timeout.ms", 60_000),))
    with pytest.raises(ConfigError, match=r"the options= of sink 'alerts/ä' can't be used: .*socket\.timeout\.ms"):
        sink.open(OWNER, has_published=False)


def test_the_memory_of_a_publication_is_kept_for_the_next_one() -> None:
    """A page that the kernel takes back and gives again takes longer than the records in it."""
    done = subprocess.run([sys.executable, "-c", PUBLISHED_TWICE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES // 10


def test_records_are_split_and_counted_by_columns_as_one_by_one() -> None:
    keys, contents = [None, b"", b"ann", b"ann"], [b"{}", None, b"", b"x" * 300]
    records = pa.table({KEY: pa.array(keys, pa.binary()), VALUE: pa.array(contents, pa.binary())})
    ours: Headers = [("txid", b"7")]
    split_as_one = [("topic", *record, ours, -1) for record in zip(keys, contents, strict=True)]
    assert list(split_records(records, "topic", ours)) == split_as_one
    more = {f"{HEADER}kind": pa.array(["a", "b", None, "d"]), PARTITION: pa.array([2, None, 0, 1], pa.int32())}
    columns = dict(zip(records.column_names, records.columns, strict=True))
    split = list(split_records(pa.table({**columns, **more}), "topic", ours))
    assert [headers for *_, headers, _ in split] == [[*ours, ("kind", kind)] for kind in ("a", "b", None, "d")]
    assert [partition for *_, partition in split] == [2, -1, 0, 1]

    def checksum(part: bytes | None, start: int) -> int:
        return crc32(part or b"", crc32((-1 if part is None else len(part)).to_bytes(4, "big", signed=True), start))

    expected = sum(checksum(content, checksum(key, 0)) for key, content in zip(keys, contents, strict=True))
    assert (
        sum_checksums(records) == sum_checksums(pa.concat_tables([records.slice(0, 1), records.slice(1)])) == expected
    )
    assert sum_checksums(records.slice(0, 0)) == 0
