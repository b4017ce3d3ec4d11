"""`QueueSpout`: open, next_tuple, ack, fail, close; ack and fail reach the instance that has emitted the message."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

from tests.unit.topology.reliable.runs import GIVEN, Send, Split, fresh, run
from transactional.errors import ConfigError, OperatingError
from transactional.model.batch import EMPTY_BATCH, PartitionId
from transactional.model.user_code.failures import TaskFailed
from transactional.reliable import QueueSpout, SpoutCollector, TopologyBuilder
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology

FIRST = PartitionId("queue", 0)


class Queue(QueueSpout):
    """A queue in memory that puts back what has failed, as Kestrel does; each instance has messages of its own."""

    output = "line string"
    message_pending_max = 3
    messages: ClassVar[dict[int, list[tuple[int, str]]]] = {}
    notes: ClassVar[list[tuple[int, str, Any]]] = []

    def open(self, instance: int, instances: int, collector: SpoutCollector) -> None:
        super().open(instance, instances, collector)
        self.instance, self.held = instance, dict[int, str]()
        self.notes.append((instance, "open", instances))

    def next_tuple(self) -> None:
        if not self.messages[self.instance]:
            return
        number, line = self.messages[self.instance].pop(0)
        if line.startswith("plain"):
            self.collector.emit(line)
            return
        self.held[number] = line
        assert len(self.held) <= self.message_pending_max
        self.collector.emit(line, message_id=number)

    def ack(self, message_id: int) -> None:
        self.notes.append((self.instance, "ack", message_id))
        del self.held[message_id]

    def fail(self, message_id: int) -> None:
        self.notes.append((self.instance, "fail", message_id))
        self.messages[self.instance].append((message_id, self.held.pop(message_id)))

    def close(self) -> None:
        self.notes.append((self.instance, "close", len(self.held)))


def queue(*lines: list[str]) -> Queue:
    numbers = iter(range(100))
    Queue.messages = {at: [(next(numbers), line) for line in part] for at, part in enumerate(lines)}
    Queue.notes = []
    return Queue()


def topology(spout: QueueSpout, guarantee: str = "at-least-once", **given: Any) -> Topology:
    built = TopologyBuilder("mails", guarantee=guarantee, **given)
    built.set_spout("lines", spout, 2)
    built.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    built.set_bolt("send", Send(), 2).fields_grouping("split", "word")
    return built.build()


def notes(what: str) -> list[tuple[int, Any]]:
    return [(instance, about) for instance, kind, about in Queue.notes if kind == what]


def test_messages_one_and_three_are_acked_and_two_fails_and_comes_again() -> None:
    """Storm row C1; its testing example."""
    given = fresh(lambda word, times: word == "two" and times == 1)
    run(topology(queue(["one", "two", "three"], ["four"])))
    assert sorted(notes("ack")) == [(0, 0), (0, 1), (0, 2), (1, 3)]
    assert notes("fail") == [(0, 1)]
    assert notes("open") == [(0, 2), (1, 2)]
    assert notes("close") == [(0, 0), (1, 0)]
    assert given.split == {"one": 1, "two": 2, "three": 1, "four": 1}


def test_no_more_messages_are_pending_than_an_instance_allows() -> None:
    """Asserted by the queue itself; one that fails has room again. Storm row C5."""
    fresh(lambda word, times: times == 1)
    run(topology(queue([f"w{number}" for number in range(10)], [])))
    assert Counter(about for _, about in notes("fail")) == Counter(range(10))
    assert Counter(about for _, about in notes("ack")) == Counter(range(10))


def test_a_message_without_an_id_is_not_followed() -> None:
    given = fresh(lambda word, times: word == "plain")
    store = run(topology(queue(["plain a", "b"], [])))
    assert notes("ack") == [(0, 1)]
    assert notes("fail") == []
    assert given.split == {"plain a": 1, "b": 1}
    assert sum(record.batch.lost for record in store.attempts("mails", limit=9)) == 1


def test_a_failed_job_is_replayed_from_the_record() -> None:
    def fails(word: str, times: int) -> bool:
        if (word, times) == ("b", 1):
            raise TaskFailed(OperatingError.code, "send", "the worker died")
        return False

    given = fresh(fails)
    run(topology(queue(["a", "b"], [])))
    assert sorted(notes("ack")) == [(0, 0), (0, 1)]
    assert given.sent["b"] == 1
    assert given.split["b"] == 2


def test_at_most_once_a_message_is_acked_when_it_is_emitted() -> None:
    def fails(word: str, times: int) -> bool:
        assert (0, "ack", 0) in Queue.notes
        raise TaskFailed(OperatingError.code, "send", "the worker died")

    fresh(fails)
    run(topology(queue(["a"], []), "at-most-once"))
    assert GIVEN.split == {"a": 1}
    assert notes("ack") == [(0, 0)]


def test_an_interrupted_batch_comes_again_from_the_record_after_a_restart() -> None:
    """The queue's own messages are its own business: these were not put back."""
    given, store = fresh(), MemoryCoordinatorStore()
    built = topology(queue(["a b"], []))

    def die(at_ms: int, event: Any, actions: Any) -> None:
        if given.split:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(built, store, observers=[die])
    run(built, store)
    assert given.split["a b"] == 2 or given.sent == {"a": 1, "b": 1}
    assert set(given.sent) == {"a", "b"}


class Away(Queue):
    """Its second instance is away once, in the middle of a batch."""

    raised: ClassVar[list[int]] = []

    def next_tuple(self) -> None:
        if self.instance == 1 and not self.messages[1] and not self.raised:
            self.raised.append(1)
            raise ConnectionError("the queue is away")
        super().next_tuple()


def test_what_was_emitted_before_a_spout_raises_is_in_the_next_batch() -> None:
    Away.raised.clear()
    given = fresh()
    queue(["one", "two", "three", "four"], ["five", "six"])
    run(topology(Away()), retry_pause_ms=1)
    assert Away.raised
    assert sorted(notes("ack")) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5)]
    assert given.split == dict.fromkeys(["one", "two", "three", "four", "five", "six"], 1)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_what_is_planned_and_not_recorded_is_planned_again(guarantee: str) -> None:
    spout = topology(queue(["one", "two", "plain three"], []), guarantee).spout
    spout.open()
    first = spout.plan(EMPTY_BATCH, replay=False)
    Queue.messages[0].append((7, "four"))
    again = spout.plan(EMPTY_BATCH, replay=False)
    assert first is not None
    assert again is not None
    assert again == first
    after = spout.plan(again, replay=False)
    assert after is not None
    assert after.metadata[FIRST]["messages"] == ['{"line": "four"}']
    assert spout.plan(again, replay=False) == after
    if guarantee == "at-least-once":
        assert not notes("ack")
        spout.parts.messages.acknowledge(again, [])
        spout.parts.messages.acknowledge(after, [])
    assert notes("ack") == [(0, 0), (0, 1), (0, 7)]


class Greeting(Queue):
    """Emits as soon as it is opened, in every run."""

    greetings: ClassVar[list[tuple[int, str]]] = []

    def open(self, instance: int, instances: int, collector: SpoutCollector) -> None:
        super().open(instance, instances, collector)
        for number, line in self.greetings[instance::instances]:
            self.held[number] = line
            collector.emit(line, message_id=number)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_what_is_emitted_in_open_is_processed_in_every_run(guarantee: str) -> None:
    """Both instances have positions from the run before, which say nothing of what this run's have emitted."""
    given, store = fresh(), MemoryCoordinatorStore()
    Greeting.greetings = [(90, "hello"), (91, "hi")]
    queue(["one", "two"], ["three"])
    run(topology(Greeting(), guarantee), store)
    Greeting.greetings = [(92, "again"), (93, "too"), (94, "more")]
    Queue.messages[0].append((3, "four"))
    run(topology(Greeting(), guarantee), store)
    run(topology(Greeting(), guarantee), store)
    in_both = ["hello", "hi", "one", "two", "three", "four"]
    assert given.split == {**dict.fromkeys(in_both, 1), **dict.fromkeys(["again", "too", "more"], 2)}
    assert Counter(about for _, about in notes("ack")) == Counter([90, 91, *[92, 93, 94] * 2, *range(4)])


def test_a_message_of_open_that_fails_is_told_to_its_spout() -> None:
    fresh(lambda word, times: word == "again" and times == 1)
    store = MemoryCoordinatorStore()
    Greeting.greetings = []
    queue(["one", "two"], [])
    run(topology(Greeting()), store)
    Greeting.greetings = [(92, "again")]
    run(topology(Greeting()), store)
    assert notes("fail") == [(0, 92)]
    assert (0, 92) in notes("ack")


def test_messages_of_open_follow_the_record_of_an_interrupted_run() -> None:
    """The batch of the run before is replayed from its record, and what this run has emitted comes behind it."""
    given, store = fresh(), MemoryCoordinatorStore()
    Greeting.greetings = [(90, "hello")]
    queue(["a b"], [])

    def die(at_ms: int, event: Any, actions: Any) -> None:
        if given.split:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(topology(Greeting()), store, observers=[die])
    Queue.notes.clear()
    Greeting.greetings = [(91, "back"), (92, "here")]
    run(topology(Greeting()), store)
    assert sorted(notes("ack")) == [(0, 91), (1, 92)]
    assert {"hello", "a", "b", "back", "here"} == set(given.sent)


class Nothing(QueueSpout):
    """Declares nothing."""

    def next_tuple(self) -> None: ...


def test_mistakes_are_told() -> None:
    with pytest.raises(ConfigError, match="spout Nothing declares no output"):
        topology(Nothing())
    with pytest.raises(ConfigError, match="spout 'lines' is a queue that hands a message out once"):
        topology(queue([], []), "exactly-once")
    with pytest.raises(Exception, match=r"declares the fields .* and emitted 2 values"):
        SpoutCollector(topology(queue([], [])).spout.output, "spout Queue").emit("a", "b")
