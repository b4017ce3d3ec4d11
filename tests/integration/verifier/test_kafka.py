"""The checker and the doctor over a real broker: what is in the tables is what is in the topic, record by record."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer

from spouts import JsonTranslator
from spouts.decoding.translator import OnError
from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka_admin import create_topic, delete_records, delete_topic
from state.dead_letters import DeadLetterTable
from state.delta.state import DeltaMapState
from tests.integration.kafka_topics import TIMEOUT_MS, in_transaction, new_topic, put, transactional_producer
from transactional.core.ports.examining import Problem
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.operations.doctor.checked_tables import checked_sources, checked_tables
from transactional.operations.doctor.examine import examine
from transactional.operations.launch.running import run_topology
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from verifier.checker import verify
from verifier.evidence.findings import CheckImpossible, Kind, Report
from verifier.source import KafkaSource

pytestmark = pytest.mark.kafka


class Counted:
    """A topology that counts the values of a topic, in a folder."""

    def __init__(self, folder: Path, bootstrap: str, kind: type[KafkaSpout] = OpaqueKafkaSpout) -> None:
        self.folder, self.bootstrap, self.kind = folder, bootstrap, kind
        self.topic = new_topic(bootstrap, 2)
        self.url = f"sqlite:///{folder}/store.db"

    def put(self, *values: str, partition: int = 0) -> None:
        """Records for the topic."""
        put(self.bootstrap, self.topic, values, partition)

    def topology(self) -> Topology:
        """The topology; three records are a transaction."""
        spout = self.kind(self.bootstrap, [self.topic], value_type="string", timeout_ms=TIMEOUT_MS, batch_records_max=3)
        builder = TransactionalTopologyBuilder("counted", "records", spout)
        state = DeltaMapState(self.folder / "count", "value string")
        builder.set_committer_bolt("count", state.count()).fields_grouping("records", "value")
        return builder.build()

    def run(self) -> None:
        """Read what is there."""
        run_topology(self.topology(), store=self.url, master="none", config={"stop_when_drained": True})

    def report(self) -> Report:
        """What the checker says, after having read the topic again."""
        topology = self.topology()
        [kafka] = checked_sources(topology)
        return verify(self.url, topology.id, checked_tables(topology)[0], replace(kafka, reads_records=True))

    def problems(self) -> list[tuple[Problem, bool]]:
        """What the doctor finds, and whether it is harmless."""
        with closing(SqlCoordinatorStore(self.url)) as store:
            return [(each.problem, each.is_harmless) for each in examine(self.topology(), store)]


def test_the_records_of_every_range_are_those_that_were_counted(tmp_path: Path, bootstrap: str) -> None:
    counted = Counted(tmp_path, bootstrap)
    counted.put("cat", "dog", "cat", "owl")
    counted.put("cow", "cat", partition=1)
    counted.run()
    # Control records and what was aborted are offsets without records.
    with transactional_producer(bootstrap) as producer:
        in_transaction(producer, counted.topic, ["emu", "cat"], outcome="commit")
        in_transaction(producer, counted.topic, ["not this one"], outcome="abort")
    counted.put("cat")
    counted.run()
    report = counted.report()
    assert report.findings == ()
    assert report.checked["records of the source"] == 9
    assert counted.problems() == []


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_records_that_make_no_tuple_are_not_missing(tmp_path: Path, bootstrap: str, on_error: OnError) -> None:
    counted = Translated(tmp_path, bootstrap)
    counted.translator = JsonTranslator("value string", on_error=on_error)
    counted.put('{"value": "cat"}', "no JSON", '{"value": "dog"}', "none, either")
    counted.run()
    report = counted.report()
    assert report.findings == ()
    assert any(": 2 records made no tuple" in note for note in report.notes), report.notes
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        changed = (
            "UPDATE transactional_attempts SET batch = replace(batch, '0, 0, 4, 2,', '0, 0, 4, 5,') WHERE txid = 1"
        )
        assert connection.execute(changed).rowcount == 1
    assert Kind.WRONG_RECORDS in counted.report().counts


class Translated(Counted):
    """The same, of values that are JSON."""

    translator: JsonTranslator

    def topology(self) -> Topology:
        """The topology, with a table for what is set aside."""
        spout = self.kind(self.bootstrap, [self.topic], translator=self.translator, timeout_ms=TIMEOUT_MS)
        builder = TransactionalTopologyBuilder("counted", "records", spout)
        state = DeltaMapState(self.folder / "count", "value string")
        builder.set_committer_bolt("count", state.count()).fields_grouping("records", "value")
        builder.set_dead_letters(DeadLetterTable(self.folder / "letters"))
        return builder.build(config={"attempts_max": 1})


def test_a_record_that_was_counted_and_is_not_in_the_topic_is_found(tmp_path: Path, bootstrap: str) -> None:
    counted = Counted(tmp_path, bootstrap)
    counted.put(*map(str, range(7)))
    counted.run()
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute(
            "UPDATE transactional_attempts SET batch = replace(batch, '0, 0, 3, 3,', '0, 0, 3, 2,') WHERE txid = 1"
        )
    assert set(counted.report().counts) == {Kind.WRONG_RECORDS, Kind.WRONG_COUNT, Kind.BROKEN_STORE}


@pytest.mark.parametrize(("kind", "is_harmless"), [(OpaqueKafkaSpout, True), (TransactionalKafkaSpout, False)])
def test_a_topic_that_was_made_anew_is_found(
    tmp_path: Path, bootstrap: str, kind: type[KafkaSpout], *, is_harmless: bool
) -> None:
    counted = Counted(tmp_path, bootstrap, kind)
    counted.put("cat", "dog")
    counted.run()
    delete_topic(bootstrap, counted.topic)
    create_topic(bootstrap, counted.topic, 2)
    counted.put("new")
    assert set(counted.report().counts) == (set() if is_harmless else {Kind.SOURCE_CHANGED})
    problems = counted.problems()
    assert (Problem.SOURCE_RECREATED, is_harmless) in problems
    if is_harmless:
        counted.run()
        assert counted.problems() == []
        assert counted.report().findings == ()
        rows = DeltaMapState(tmp_path / "count", "value string", "count long").read().to_pylist()
        assert {row["value"]: row["count"] for row in rows} == {"cat": 1, "dog": 1, "new": 1}
    else:
        assert (Problem.TOPOLOGY_CHANGED, False) in problems


@pytest.mark.parametrize(("kind", "is_harmless"), [(OpaqueKafkaSpout, True), (TransactionalKafkaSpout, False)])
def test_records_that_retention_has_taken_unread_are_found(
    tmp_path: Path, bootstrap: str, kind: type[KafkaSpout], *, is_harmless: bool
) -> None:
    counted = Counted(tmp_path, bootstrap, kind)
    counted.put("cat", "dog")
    counted.run()
    counted.put("lost", "lost", "kept")
    delete_records(bootstrap, counted.topic, {0: 4})
    assert counted.problems() == [(Problem.SOURCE_LOST, is_harmless)]
    if is_harmless:
        counted.run()
        report = counted.report()
        assert report.findings == ()
        assert any("[2, 4) is in no transaction; the source no longer holds" in note for note in report.notes)


def test_a_broker_that_is_away_is_reported(tmp_path: Path, bootstrap: str) -> None:
    counted = Counted(tmp_path, bootstrap)
    counted.put("cat")
    counted.run()
    away = KafkaSource("localhost:1", {"socket.timeout.ms": 500}, timeout_s=1)
    topology = counted.topology()
    with pytest.raises(CheckImpossible, match="Kafka at localhost:1 does not respond"):
        verify(counted.url, topology.id, checked_tables(topology)[0], away)


class CountingConsumer(Consumer):
    """A consumer that counts what it is given, and how many of them there are."""

    made = 0
    given: ClassVar[list[int]] = []

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        CountingConsumer.made += 1

    def consume(self, number: int = 1, timeout: float = -1) -> list[Any]:
        messages = super().consume(number, timeout)
        self.given.extend(len(message.value() or b"") for message in messages)
        return messages


@pytest.mark.parametrize("is_at_the_end", [False, True])
def test_counting_reads_the_ranges_once_and_nothing_behind_them(
    tmp_path: Path, bootstrap: str, monkeypatch: pytest.MonkeyPatch, *, is_at_the_end: bool
) -> None:
    """Counted in records, for a clock says nothing. The range ends with a marker of Kafka's."""
    counted = Counted(tmp_path, bootstrap)
    counted.put(*"abcdefgh")
    with transactional_producer(bootstrap) as producer:
        in_transaction(producer, counted.topic, ["i", "j"], outcome="commit")
    counted.run()
    if not is_at_the_end:
        counted.put(*["x" * 1_000] * 5_000)
    monkeypatch.setattr(CountingConsumer, "made", 0)
    monkeypatch.setattr(CountingConsumer, "given", [])
    monkeypatch.setattr("verifier.source.Consumer", CountingConsumer)
    report = counted.report()
    assert report.findings == ()
    assert report.checked["records of the source"] == 10
    assert len(CountingConsumer.given) <= 11  # one behind the marker tells that the range is at its end
    assert CountingConsumer.made == 2  # one looks, one reads the partition that has something
