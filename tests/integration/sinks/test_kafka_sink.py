"""The Kafka sink over a real broker: publications of a topology, second starts, and what is refused."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from sinks import JsonValue, KafkaSink
from sinks.kafka.control import control_topic
from sinks.kafka.publisher import Headers, KafkaPublisher
from spouts import OpaqueMemoryTransactionalSpout
from spouts.kafka_admin import delete_topic
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from state.dead_letters import DeadLetterTable
from tests.contract.wrong_sinks import lose_kafka_answer
from tests.integration.kafka_topics import new_topic
from tests.integration.sinks.deaths import die_often
from tests.integration.sinks.publications import make_publisher, visible_records
from tests.integration.sinks.sent_records import make_sender
from tests.integration.tables import rows
from transactional import RunSummary, Topology, TopologyConfig, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.bolts import MapState
from transactional.core.machine.protocol import Action, AttemptFailed, CommitSucceeded, Event
from transactional.core.ports import PublishedRecords
from transactional.core.ports.examining import Problem
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError, RecordRefused, StoreMismatch
from transactional.model.attempt import TxId
from transactional.operations.doctor.sinks import checked_topics, examine_sinks
from transactional.reliable import TopologyBuilder
from transactional.runtime.engine.rewinding import rewind
from transactional.runtime.publishing.mending import set_aside
from transactional.testing import check_sink
from transactional.trident import Count, TridentTopology, tumbling
from verifier.evidence.findings import Kind
from verifier.sinks.publications import check_sinks

pytestmark = pytest.mark.kafka

WORDS = [[("cat",), ("dog",), ("cat",), ("owl",), ("dog",), ("cat",)]]
PUBLISHED = [("cat", "CAT"), ("dog", "DOG"), ("cat", "CAT"), ("owl", "OWL"), ("dog", "DOG"), ("cat", "CAT")]


def build_words(bootstrap: str, topic: str, folder: Path, words: list[list[tuple[str]]] = WORDS) -> Topology:
    """Publish every word to a topic, and every count behind its table to another."""
    topology = TridentTopology(f"words-{topic}")
    spout = OpaqueMemoryTransactionalSpout(words, fields="word string", take=2)
    shouted = topology.new_stream("words", spout).each(shout, "loud string")
    value = JsonValue("loud")
    shouted.partition_by("word").sink_to(KafkaSink(bootstrap, topic, key="word", value=value), name="alerts")
    counts = shouted.group_by("word").persistent_aggregate(DeltaMapState(folder / "counts"), count=Count())
    counts.new_values().sink_to(KafkaSink(bootstrap, f"{topic}-counts", key="word"), name="changes")
    return topology.build()


def run_words(bootstrap: str, topic: str, folder: Path, words: list[list[tuple[str]]] = WORDS) -> RunSummary:
    config = TopologyConfig(stop_when_drained=True, outage_timeout_ms=20_000)
    topology, store = build_words(bootstrap, topic, folder, words), f"sqlite:///{folder}/store.db"
    return run_topology(topology, store=store, config=config, master="none")


def shout(row: Tuple) -> object:
    return (row["word"].upper(),)


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A topic, and another one for counts."""
    from spouts.kafka_admin import create_topic

    topic = new_topic(bootstrap)
    create_topic(bootstrap, f"{topic}-counts", 1)
    return topic


def published_words(bootstrap: str, topic: str) -> list[tuple[str | None, object]]:
    return [(seen.key, seen.value["loud"]) for seen in visible_records(bootstrap, topic, 1)]


def test_each_record_of_a_committed_transaction_is_published_once(bootstrap: str, topic: str, tmp_path: Path) -> None:
    assert run_words(bootstrap, topic, tmp_path).committed_txid == 3
    assert published_words(bootstrap, topic) == PUBLISHED
    assert [seen.txid for seen in visible_records(bootstrap, topic, 1)] == [1, 1, 2, 2, 3, 3]
    counts = [
        (seen.txid, seen.value["word"], seen.value["count"])
        for seen in visible_records(bootstrap, f"{topic}-counts", 1)
    ]
    assert sorted(counts) == [(1, "cat", 1), (1, "dog", 1), (2, "cat", 2), (2, "owl", 1), (3, "cat", 3), (3, "dog", 2)]
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store:
        progress = store.sinks(f"words-{topic}")
    assert {name: (each.done_txid, each.waiting) for name, each in progress.items()} == {
        "alerts": (3, 0),
        "changes": (3, 0),
    }
    more = [[*WORDS[0], ("emu",)]]
    assert run_words(bootstrap, topic, tmp_path, more).committed_txid == 4
    assert published_words(bootstrap, topic) == [*PUBLISHED, ("emu", "EMU")]
    topology, store_url = build_words(bootstrap, topic, tmp_path, more), f"sqlite:///{tmp_path}/store.db"
    topics, notes = checked_topics(topology)
    report = check_sinks(store_url, topology.id, topics)
    assert (report.findings, report.notes, notes) == ((), (), [])
    assert report.checked == {"published records": 14}
    assert {risk.problem for risk in examine_sinks(topology, None)} == {Problem.SINK_AT_RISK}
    producer = Producer({"bootstrap.servers": bootstrap})
    newest = visible_records(bootstrap, topic, 1)[-1]
    headers: Headers = [("txid", str(newest.txid)), ("attempt", str(newest.attempt_id))]
    producer.produce(topic, "planted", "emu", 0, headers=[*headers, ("sink", newest.sink_id)])
    producer.produce(topic, "of another sink", "emu", 0, headers=[*headers, ("sink", "0")])
    producer.produce(topic, "not of a sink", "emu", 0)
    assert producer.flush(20) == 0
    planted = check_sinks(store_url, topology.id, topics)
    assert planted.counts == {Kind.TRANSACTION_TWICE: 1}
    assert planted.notes == (f"topic '{topic}': 2 records of others were passed over",)


CLICKS = [("home", 1), ("news", 2), ("home", 4), ("home", 6), ("news", 3), ("bye", 8)]


def at_minute(minute: int) -> datetime:
    return datetime(2026, 5, 1, 12, minute, tzinfo=UTC)


def remember(rows: list[Tuple], pages: MapState) -> list[tuple[Any, ...]]:
    """Remember the newest time of each page; "bye" makes it forget "home"."""
    changes = list[tuple[Any, ...]]()
    for row in rows:
        if row["page"] == "bye":
            pages.delete("home")
            changes.append(("home", None, True))
        else:
            pages.put(row["page"], row["at"])
            changes.append((row["page"], row["at"], False))
    return changes


def test_sinks_stand_behind_windows_late_tuples_changes_and_each_other(bootstrap: str, tmp_path: Path) -> None:
    """Closed windows, late tuples, and changes of a state with deletes; windows and late tuples share a topic."""
    events, pages = new_topic(bootstrap), new_topic(bootstrap, 1, {"cleanup.policy": "compact"})
    topology = TridentTopology(f"clicks-{events}")
    rows_in = [(page, at_minute(minute)) for page, minute in CLICKS]
    spout = OpaqueMemoryTransactionalSpout([rows_in], fields="page string, at timestamp", take=1)
    clicks = topology.new_stream("clicks", spout, event_time="at")
    windows = clicks.group_by("page").window(tumbling("5 minutes"))
    counts = windows.persistent_aggregate(DeltaMapState(tmp_path / "counts"), count=Count())
    closed = KafkaSink(bootstrap, events, key="page", value=JsonValue("window_end", "count"))
    counts.closed().sink_to(closed, name="closed")
    counts.late().sink_to(KafkaSink(bootstrap, events, key="page", value=JsonValue("at")), name="late")
    state = DeltaMapState(tmp_path / "pages", "page string", "at timestamp", deletes=True)
    changes = clicks.global_().partition_persist(state, remember, "page string, at timestamp, is_gone boolean")
    sink = KafkaSink(bootstrap, pages, key="page", value=JsonValue("at"), tombstone="is_gone")
    changes.new_values().sink_to(sink, name="page-times")
    config = TopologyConfig(stop_when_drained=True)
    built, store_url = topology.build(), f"sqlite:///{tmp_path}/store.db"
    run_topology(built, store=store_url, config=config, master="none")
    ends = "2026-05-01T12:05:00.000Z"
    published = [(seen.key, *seen.value.values()) for seen in visible_records(bootstrap, events, 1)]
    assert sorted(published) == [
        ("home", ends, 2),
        ("news", "2026-05-01T12:03:00.000Z"),
        ("news", ends, 1),
    ]
    newest = {seen.key: seen.value for seen in visible_records(bootstrap, pages, 1)}
    assert newest == {"home": None, "news": {"at": "2026-05-01T12:03:00.000Z"}}
    report = check_sinks(store_url, built.id, checked_topics(built)[0])
    assert (report.findings, report.checked["published records"]) == ((), 9)
    assert report.notes == (f"topic {pages!r} is compacted: of its records only order and attempts were checked",)


def test_a_copied_store_publishes_nothing(bootstrap: str, topic: str, tmp_path: Path) -> None:
    """It is refused before it fences the original."""
    (folder := tmp_path / "run").mkdir()
    run_words(bootstrap, topic, folder)
    shutil.copytree(folder, tmp_path / "copy")
    more = [[*WORDS[0], ("emu",)]]
    run_words(bootstrap, topic, folder, more)
    folder.rename(tmp_path / "original")
    (tmp_path / "copy").rename(folder)
    with pytest.raises(StoreMismatch, match=r"sink 'alerts' .* ends with transaction 4 .* an older backup, or a copy"):
        run_words(bootstrap, topic, folder, more)
    folder.rename(tmp_path / "copy")
    (tmp_path / "original").rename(folder)
    run_words(bootstrap, topic, folder, [[*more[0], ("fox",)]])
    assert published_words(bootstrap, topic) == [*PUBLISHED, ("emu", "EMU"), ("fox", "FOX")]


def test_another_store_of_the_same_topology_is_refused(bootstrap: str, topic: str, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    run_words(bootstrap, topic, tmp_path / "one")
    with pytest.raises(StoreMismatch, match="its target belongs to the store with the id"):
        run_words(bootstrap, topic, tmp_path / "other")


def test_a_control_topic_that_was_deleted_is_not_made_again(bootstrap: str, topic: str, tmp_path: Path) -> None:
    run_words(bootstrap, topic, tmp_path)
    delete_topic(bootstrap, f"transactional-control-words-{topic}")
    with pytest.raises(StoreMismatch, match=r"'transactional-control-words-.*' does not exist at the cluster"):
        run_words(bootstrap, topic, tmp_path)


def test_a_foreign_open_transaction_is_waited_for(bootstrap: str, topic: str, tmp_path: Path) -> None:
    """It ends by its time-out, and hides the marker until then."""
    run_words(bootstrap, topic, tmp_path)
    settings = {"bootstrap.servers": bootstrap, "transactional.id": f"foreign-{topic}", "transaction.timeout.ms": 3_000}
    foreign = Producer({**settings, "log_level": 0})
    foreign.init_transactions(30)
    foreign.begin_transaction()
    foreign.produce(f"transactional-control-words-{topic}", b"{}", b"stranger")
    foreign.flush(30)
    run_words(bootstrap, topic, tmp_path, [[*WORDS[0], ("emu",)]])
    assert published_words(bootstrap, topic) == [*PUBLISHED, ("emu", "EMU")]


@pytest.mark.long("brokers look for transactions that have timed out every ten seconds")
def test_a_publication_that_takes_too_long_gets_more_time(
    bootstrap: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker aborts it, and fences its producer, although no other process leads."""
    timeouts_ms, original = list[int](), KafkaPublisher._commit

    def commit_late(self: KafkaPublisher) -> None:
        if self._topic == topic:
            timeouts_ms.append(round(1_000 * self._timeout_s))
        if self._topic == topic and len(timeouts_ms) == 1:
            self._producer.flush(30)
            while stable_end(bootstrap, topic) < last_offset(bootstrap, topic):
                self._producer.poll(0.1)
        original(self)

    monkeypatch.setattr("sinks.kafka.sink.TRANSACTION_TIMEOUT_MS", 1_000)
    monkeypatch.setattr("sinks.kafka.connection.TIMEOUT_S", 1.0)
    monkeypatch.setattr(KafkaPublisher, "_commit", commit_late)
    run_words(bootstrap, topic, tmp_path, [[("cat",), ("dog",)]])
    assert published_words(bootstrap, topic) == PUBLISHED[:2]
    assert timeouts_ms == [1_000, 2_000]


def last_offset(bootstrap: str, topic: str, isolation: str = "read_uncommitted") -> int:
    """The end of a topic of one partition, as a reader sees it."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation})
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)[1]
    consumer.close()
    return end


def stable_end(bootstrap: str, topic: str) -> int:
    """The end for readers of committed records: no transaction is open before it."""
    return last_offset(bootstrap, topic, "read_committed")


def test_a_topic_that_does_not_exist_is_refused(bootstrap: str, topic: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"topic '{topic}-none' does not exist"):
        run_words(bootstrap, f"{topic}-none", tmp_path)


def test_many_records_go_through_a_file(bootstrap: str, topic: str, tmp_path: Path) -> None:
    noise = os.urandom(200_000).hex()
    run_words(bootstrap, topic, tmp_path, [[(noise,), ("cat",)]])
    assert published_words(bootstrap, topic) == [(noise, noise.upper()), ("cat", "CAT")]
    assert list((tmp_path / "outbox").iterdir()) == []


def test_a_sink_sends_at_least_once_without_an_outbox(bootstrap: str, tmp_path: Path) -> None:
    """A record that the topic would refuse is a lost message, and no control topic is created."""
    topic = new_topic(bootstrap, config={"max.message.bytes": "5000"})
    builder = TopologyBuilder(f"sent-{topic}", guarantee="at-least-once")
    words = [[("cat",), ("x" * 4_500,), ("dog",)]]
    builder.set_spout("words", OpaqueMemoryTransactionalSpout(words, fields="word string", take=2))
    sink = KafkaSink(bootstrap, topic, key="word", headers={"word": "word"})
    builder.set_sink("alerts", sink, 2).shuffle_grouping("words")
    config = TopologyConfig(stop_when_drained=True, message_retries_max=1)
    store = f"sqlite:///{tmp_path}/store.db"
    run_topology(builder.build(), store=store, config=config, master="none")
    sent = visible_records(bootstrap, topic, 1)
    assert sorted((seen.key, seen.value["word"]) for seen in sent) == [("cat", "cat"), ("dog", "dog")]
    assert control_topic(f"sent-{topic}") not in AdminClient({"bootstrap.servers": bootstrap}).list_topics().topics


@pytest.mark.long("thirty cases over a broker; the same run over a model of Kafka")
def test_the_sink_keeps_the_contract_of_sinks(bootstrap: str) -> None:
    topics = dict[str, str]()

    def make(target: str) -> KafkaSink:
        if target not in topics:
            topics[target] = new_topic(bootstrap)
        return KafkaSink(bootstrap, topics[target])

    def read(target: str) -> list[tuple[object, object]]:
        values = [record.value for record in visible_records(bootstrap, topics[target], 1)]
        return [(value.get("word"), value.get("count")) for value in values]

    refused = check_sink(make, read, break_publication=lose_kafka_answer)
    assert set(refused) == {"going_back_fences", "going_back_repeats", "late_records_have_the_same_keys"}


@pytest.mark.long("processes that are killed, six times; the simulation has the same deaths")
def test_deaths_at_points_of_publishing(bootstrap: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**31)
    deaths = die_often(make_publisher(bootstrap, tmp_path / "run", f"deaths-{seed}", "none"), random.Random(seed))
    assert json.dumps(deaths), seed


@pytest.mark.long("processes that are killed, and those of their tasks")
@pytest.mark.parametrize(
    ("processing", "deaths"), [("none", 6), ("workers", 6), pytest.param("spark", 3, marks=pytest.mark.spark)]
)
def test_deaths_of_runs_and_tasks_lose_no_record(bootstrap: str, tmp_path: Path, processing: str, deaths: int) -> None:
    seed = random.SystemRandom().randrange(2**31)
    sender = make_sender(bootstrap, tmp_path / "run", f"deaths-{seed}", processing)
    assert die_often(sender, random.Random(seed), deaths), seed


@pytest.mark.long("a broker of its own, which is started twice")
def test_an_outage_repeats_batches_and_uses_no_tries_of_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is killed behind the first transaction, and started again once an attempt has failed."""
    monkeypatch.setattr("sinks.kafka.sender.DELIVERY_S", 5.0)
    words, failures, kills = [f"word-{number}" for number in range(12)], list[AttemptFailed](), list[TxId]()
    with LocalBroker(tmp_path / "broker") as broker:
        topic = new_topic(broker.bootstrap)
        builder = TopologyBuilder("sent", guarantee="at-least-once")
        spout = OpaqueMemoryTransactionalSpout([[(word,) for word in words]], fields="word string", take=2)
        builder.set_spout("words", spout)
        builder.set_sink("alerts", KafkaSink(broker.bootstrap, topic, key="word")).shuffle_grouping("words")

        def restart_broker(at_ms: int, event: Event, actions: Sequence[Action]) -> None:
            if isinstance(event, AttemptFailed) and kills:
                if not failures:
                    broker.start()
                failures.append(event)
            if isinstance(event, CommitSucceeded) and not kills:
                kills.append(event.attempt.txid)
                broker.kill()

        config = TopologyConfig(stop_when_drained=True, message_retries_max=1, attempts_max=1, max_spout_pending=1)
        run_topology(
            builder.build(),
            store=f"sqlite:///{tmp_path}/store.db",
            config=config,
            master="none",
            observers=[restart_broker],
        )
        assert {seen.key for seen in visible_records(broker.bootstrap, topic, 1)} == set(words)
    assert failures
    assert all(failure.is_outage and f"can't be sent to topic '{topic}'" in failure.reason for failure in failures)


def test_records_that_the_topic_would_refuse_are_dead_letters(bootstrap: str, tmp_path: Path) -> None:
    """The largest record that tasks let pass is one that the broker takes."""
    topic = new_topic(bootstrap, 3, {"max.message.bytes": "5000", "cleanup.policy": "compact"})
    lost = new_topic(bootstrap)
    keyless = [(None, "b", 0), (None, None, 0)]
    good = [("cat", '"' + "a" * 3982 + '"', 2), ("dog", None, None)]
    rows_in = [*keyless, *good, ("cat", '"' + "a" * 3983 + '"', 2), ("emu", '"c"', 3)]
    spout = OpaqueMemoryTransactionalSpout([rows_in], fields="word string, text string, part int", take=6)
    builder = TransactionalTopologyBuilder(f"limits-{topic}", "rows", spout)
    builder.set_bolt("named", lambda row: (*row, "7"), output=f"{spout.output}, no string").shuffle_grouping("rows")
    sink = KafkaSink(bootstrap, topic, key="word", value="text", headers={"no": "no"}, partition="part")
    builder.set_sink("alerts", sink).shuffle_grouping("named")
    letters = KafkaSink(bootstrap, lost, key="component", value=JsonValue("transaction", "number", "error"))
    builder.set_dead_letters(DeadLetterTable(tmp_path / "letters"), letters)
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, retry_pause_ms=1)
    run_topology(builder.build(), store=f"sqlite:///{tmp_path}/store.db", config=config, master="none")
    published = {str(seen.key): seen for seen in visible_records(bootstrap, topic, 3)}
    assert sorted((key, str(seen.value)) for key, seen in published.items()) == [("cat", "a" * 3982), ("dog", "None")]
    assert published["cat"].partition == 2
    errors = [error for _, error in rows(tmp_path / "letters", "component", "error")]
    for reason in ("makes a record of 4001 bytes", "the partition, is 3", "field word, the key, is NULL"):
        assert any(reason in error for error in errors)
    assert len(errors) == 4
    published_letters = visible_records(bootstrap, lost, 1)
    assert [seen.key for seen in published_letters] == ["alerts"] * 4
    assert sorted(str(seen.value["error"]) for seen in published_letters) == sorted(errors)


@pytest.mark.long("a run over a broker; tests/unit/sinks/kafka/test_topics.py without one, and the simulation")
def test_a_field_names_the_topic_of_each_record(bootstrap: str, tmp_path: Path) -> None:
    """Many records for a topic of small batches, and one that only the other topic takes; none for a third one."""
    small, large = new_topic(bootstrap, 2, {"max.message.bytes": "3000"}), new_topic(bootstrap)
    noise = os.urandom(50_000).hex()
    words = [(os.urandom(200).hex(), small) for _ in range(500)]
    bad = [(noise, small), ("lost", f"{small}-none"), ("nowhere", None)]
    spout = OpaqueMemoryTransactionalSpout(
        [[*words, (noise, large), *bad]], fields="word string, target string", take=300
    )
    builder = TransactionalTopologyBuilder(f"routed-{small}", "rows", spout)
    sink = KafkaSink(bootstrap, topics=[small, large], topic_field="target", key="word", value=JsonValue("word"))
    builder.set_sink("alerts", sink, 2).fields_grouping("rows", "word")
    builder.set_dead_letters(DeadLetterTable(tmp_path / "letters"))
    topology, store_url = builder.build(), f"sqlite:///{tmp_path}/store.db"
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, retry_pause_ms=1)
    run_topology(topology, store=store_url, config=config, master="none")
    assert sorted(str(seen.key) for seen in visible_records(bootstrap, small, 2)) == sorted(word for word, _ in words)
    assert [seen.key for seen in visible_records(bootstrap, large, 1)] == [noise]
    errors = " ".join(error for _, error in rows(tmp_path / "letters", "component", "error"))
    for reason in (f"than the 2000 that topic '{small}' takes", f"the topic, is '{small}-none'", "the topic, is NULL"):
        assert reason in errors
    topics, notes = checked_topics(topology)
    report = check_sinks(store_url, topology.id, topics)
    assert (report.findings, report.notes, notes) == ((), (), [])
    assert report.checked == {"published records": 501}
    with closing(SqlCoordinatorStore(store_url)) as store:
        plan = rewind(topology, store, TxId(1), owner="operator", accepts_sent=True)
    assert f"records of transactions 2 to 2 are in topic '{small}' or '{large}'; what" in "\n".join(plan.sinks)
    delete_topic(bootstrap, large)
    with pytest.raises(ConfigError, match=f"topic '{large}' does not exist"):
        run_topology(topology, store=store_url, config=config, master="none")


def test_records_that_the_topic_refuses_after_the_decision_are_set_aside(
    bootstrap: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the topic is lowered once the record is committed. Later the topology is taken back.

    The next such record is published once the limit is raised again.
    """
    original = KafkaPublisher.publish

    def publish_with_less_room(self: KafkaPublisher, group: Sequence[PublishedRecords]) -> None:
        limit_records(bootstrap, topic, 2_000)
        original(self, group)

    words = [[("cat",), ("dog" * 1_000,), ("owl",)]]

    def refuse_words(words: list[list[tuple[str]]]) -> None:
        with monkeypatch.context() as lowered:
            lowered.setattr(KafkaPublisher, "publish", publish_with_less_room)
            with pytest.raises(
                RecordRefused, match=r"sink 'alerts' can't publish transaction \d to .*: record \d of .* is refused"
            ):
                run_words(bootstrap, topic, tmp_path, words)
        limit_records(bootstrap, topic, 1_000_000)

    refuse_words(words)
    store_url = f"sqlite:///{tmp_path}/store.db"
    built = build_words(bootstrap, topic, tmp_path, words)
    with closing(SqlCoordinatorStore(store_url)) as store:
        assert set_aside(built, store, "alerts", TxId(1), 1, TopologyConfig(), owner="operator") == 1
        run_words(bootstrap, topic, tmp_path, words)
        assert published_words(bootstrap, topic) == [("cat", "CAT"), ("owl", "OWL")]
        assert [letter.count for letter in store.sink_letters(built.id)] == [1]
        with pytest.raises(ConfigError, match="--accept-sent"):
            rewind(built, store, TxId(1), owner="operator")
        plan = rewind(built, store, TxId(1), owner="operator", accepts_sent=True)
    assert f"alerts: 1 records of transactions 2 to 2 are in topic '{topic}'" in "\n".join(plan.sinks)
    run_words(bootstrap, topic, tmp_path, words)
    assert published_words(bootstrap, topic) == [("cat", "CAT"), ("owl", "OWL"), ("owl", "OWL")]
    refuse_words(more := [[*words[0], ("emu" * 1_000,)]])
    run_words(bootstrap, topic, tmp_path, more)
    assert published_words(bootstrap, topic)[3:] == [("emu" * 1_000, "EMU" * 1_000)]


def limit_records(bootstrap: str, topic: str, size_bytes: int) -> None:
    """Set `max.message.bytes` of a topic."""
    entry = ConfigEntry("max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)
