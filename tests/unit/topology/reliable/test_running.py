"""Whole runs over memory: which messages come again, when they are given up, what restarts and failed jobs do."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from sinks import DeltaSink, KafkaSink
from spouts.memory import MemoryTransactionalSpout
from state.dead_letters import DeadLetterTable
from state.memory import MemoryMapState, MemoryTable
from tests.unit.runtime.publishing.word_sink import TARGETS, Target, WordSink
from tests.unit.topology.reliable.runs import committed, fresh, mails, run
from transactional.bolts import BasicBolt, OutputCollector, TopologyContext
from transactional.core.machine.protocol import ProcessingSucceeded, RecordCommit, StartProcessing
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.errors import BoltFailed, ConfigError, OperatingError, RetriesExhausted, SinkUnavailable
from transactional.model.user_code.failures import TaskFailed
from transactional.model.user_code.tuples import Tuple
from transactional.reliable import TopologyBuilder
from transactional.runtime.engine.letter_spout import LetterSpout, all_letters
from transactional.testing import MemoryCoordinatorStore

LINES = [[("a b",), ("c bad",), ("d",)], [("e",), ("f",)]]
ALL = {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "bad": 1}


class Killed(Exception):
    """The process dies here."""


@pytest.mark.parametrize("opaque", [False, True])
def test_a_message_on_which_a_bolt_fails_comes_again_alone(*, opaque: bool) -> None:
    """Storm row C1: by its id, which is its partition and offset."""
    given = fresh(lambda word, times: word == "bad" and times <= 2)
    store = run(mails("at-least-once", LINES, opaque=opaque, ackers=2).build())
    assert given.sent == {**ALL, "c": 3}, "its other words are sent again with it"
    assert given.split == {"a b": 1, "c bad": 3, "d": 1, "e": 1, "f": 1}
    batches = committed(store)
    assert [(m.offset, m.tries) for m in batches[1].pending] == [(1, 1)]
    assert "bolt 'send' raised ValueError: can't send bad" in batches[1].pending[0].error
    again = [batch for batch in batches.values() if batch.again]
    assert [(m.offset, m.tries) for batch in again for m in batch.again] == [(1, 1), (1, 2)]
    assert batches[max(batches)].pending == ()


def test_after_a_restart_only_what_has_failed_comes_again() -> None:
    given = fresh(lambda word, times: word == "bad")
    store = MemoryCoordinatorStore()
    topology = mails("at-least-once", LINES).build()

    def stop(at_ms: int, event: Any, actions: Any) -> None:
        if given.sent["d"] and any(isinstance(action, RecordCommit) for action in actions):
            raise Killed

    with pytest.raises(Killed):
        run(topology, store, observers=[stop])
    before = dict(given.split)
    given.fails = lambda word, times: False
    run(topology, store)
    assert given.sent["bad"] == 1
    assert {line: count - before[line] for line, count in given.split.items() if count != before[line]} == {"c bad": 1}


def test_a_message_is_given_up_after_its_retries_and_counted() -> None:
    given = fresh(lambda word, times: word == "bad")
    store = run(mails("at-least-once", LINES).build(), message_retries_max=3)
    assert given.split["c bad"] == 1 + 3
    assert sum(batch.lost for batch in committed(store).values()) == 1


def test_more_failed_messages_than_are_recorded_are_a_failed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the bolt, not an outage: it counts against `attempts_max`."""
    monkeypatch.setattr("transactional.runtime.engine.runner.PENDING_MAX", 1)
    given = fresh(lambda word, times: word in ("b", "bad"))
    with pytest.raises(RetriesExhausted, match="TX302 2 messages of one batch failed and 0 wait, more than the 1 that"):
        run(mails("at-least-once", LINES).build(), attempts_max=3, message_retries_max=0)
    assert given.split["c bad"] == 3


def test_a_message_that_is_given_up_is_a_dead_letter_if_there_is_a_table() -> None:
    fresh(lambda word, times: word == "bad")
    made = mails("at-least-once", LINES)
    table = MemoryMapState(LETTER_KEY, LETTER_VALUES, table=MemoryTable("letters"))
    made.set_dead_letters(table)
    store = run(made.build(), message_retries_max=2)
    [letter] = table.read().to_pylist()
    assert (letter["component"], letter["source"]) == ("lines", "lines")
    assert letter["tuple"] == '{"$message": "memory[0]@1", "line": "c bad"}'
    assert letter["error"] == "bolt 'send' raised ValueError: can't send bad"
    assert sum(batch.lost for batch in committed(store).values()) == 0


def with_letters(letters: MemoryTable, lines: Any = LINES) -> Any:
    made = mails("at-least-once", lines)
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=letters))
    return made.build()


def tried_again(topology: Any, store: MemoryCoordinatorStore, **config: Any) -> LetterSpout:
    spout = LetterSpout(topology)
    run(replace(topology, spout=spout), store, attempts_max=1, **{"message_retries_max": 0, **config})
    return spout


def test_a_dead_letter_is_a_message_that_can_be_processed_again() -> None:
    """Alone, by its place in the source; one that fails again becomes a new letter, one that does not is done."""
    given = fresh(lambda word, times: word in {"bad", "d"})
    letters = MemoryTable("letters")
    topology = with_letters(letters)
    store = run(topology, message_retries_max=0)
    assert len(letters.rows) == 2
    before, given.fails = dict(given.split), lambda word, times: word == "d"
    tried_again(topology, store)
    assert given.sent["bad"] == 1
    assert {line: count - before[line] for line, count in given.split.items() if count != before[line]} == {
        "c bad": 1,
        "d": 1,
    }
    rows = all_letters(topology)
    assert [(row["tuple"], row["tried_again_in"] is None) for row in rows] == [
        ('{"$message": "memory[0]@1", "line": "c bad"}', False),
        ('{"$message": "memory[0]@2", "line": "d"}', False),
        ('{"$message": "memory[0]@2", "line": "d"}', True),
    ]
    given.fails = lambda word, times: False
    tried_again(topology, store)
    assert given.sent["d"] == 1
    assert all(row["tried_again_in"] is not None for row in all_letters(topology))
    assert committed(store)[max(committed(store))].pending == ()


def test_messages_that_wait_are_not_touched_while_letters_are_processed_again() -> None:
    """They have tries left; the run of the letters has a limit of its own."""
    given = fresh(lambda word, times: word == "bad")
    letters, store = MemoryTable("letters"), MemoryCoordinatorStore()
    run(with_letters(letters), store, message_retries_max=0)
    given.fails = lambda word, times: word in {"new", "bad"}
    topology = with_letters(letters, [[*LINES[0], ("new",)], LINES[1]])

    def stop(at_ms: int, event: Any, actions: Any) -> None:
        if any(isinstance(action, RecordCommit) and action.batch.pending for action in actions):
            raise Killed

    with pytest.raises(Killed):
        run(topology, store, observers=[stop], message_retries_max=9)
    [waits] = committed(store)[max(committed(store))].pending
    before = given.split["new"]
    tried_again(topology, store)
    assert given.split["new"] == before
    assert committed(store)[max(committed(store))].pending == (waits,)
    assert [row["tried_again_in"] is None for row in all_letters(topology)] == [False, True]


def test_a_job_that_fails_gives_the_messages_of_letters_back() -> None:
    given = fresh(lambda word, times: word == "bad")
    letters = MemoryTable("letters")
    topology = with_letters(letters)
    store = run(topology, message_retries_max=0)

    def fails(word: str, times: int) -> bool:
        raise TaskFailed(BoltFailed.code, "send", "the job fails")

    given.fails = fails
    assert len(tried_again(topology, store).returned) == 1
    assert [row["tried_again_in"] for row in all_letters(topology)] == [None]


def test_a_table_of_dead_letters_needs_a_limit() -> None:
    made = mails("at-least-once", LINES)
    made.set_dead_letters(DeadLetterTable("letters"))
    with pytest.raises(ConfigError, match="message_retries_max is not set"):
        run(made.build())
    with pytest.raises(ConfigError, match="is at-most-once: it does not follow its messages"):
        mails("at-most-once", LINES).set_dead_letters(DeadLetterTable("letters"))


@pytest.mark.parametrize(("guarantee", "ackers"), [("at-most-once", 1), ("at-least-once", 0)])
def test_what_fails_in_a_bolt_is_gone_where_messages_are_not_followed(guarantee: str, ackers: int) -> None:
    given = fresh(lambda word, times: word == "bad")
    store = run(mails(guarantee, LINES, ackers=ackers).build())
    assert given.sent == {word: 1 for word in ALL if word != "bad"}
    assert sum(batch.lost for batch in committed(store).values()) == 1


def failing_once(*times: int) -> Any:
    """A bolt's worker dies: the job fails when it has given this many words."""
    met = [0]

    def fails(word: str, _: int) -> bool:
        met[0] += 1
        if met[0] in times:
            raise TaskFailed(OperatingError.code, "send", "the worker died")
        return False

    return fails


@pytest.mark.parametrize("opaque", [False, True])
def test_a_batch_whose_job_fails_comes_again_at_least_once(*, opaque: bool) -> None:
    given = fresh(failing_once(2, 5))
    run(mails("at-least-once", LINES, opaque=opaque).build())
    assert set(given.sent) == set(ALL)
    assert max(given.sent.values()) > 1


@pytest.mark.parametrize(("guarantee", "times"), [("at-least-once", 2), ("at-most-once", 1)])
def test_a_batch_whose_job_fails_takes_no_other_one_with_it(guarantee: str, times: int) -> None:
    """Two batches are in flight, and the job of the first one fails once the second one is processed."""
    others_are_sent = threading.Event()

    def fails(word: str, times: int) -> bool:
        if word == "b" and times == 1:
            assert others_are_sent.wait(20)
            raise TaskFailed(OperatingError.code, "send", "the worker died")
        return False

    def note(at_ms: int, event: Any, actions: Any) -> None:
        if isinstance(event, ProcessingSucceeded) and event.attempt.txid == 2:
            others_are_sent.set()

    given = fresh(fails)
    table = MemoryMapState(LETTER_KEY, LETTER_VALUES, table=MemoryTable("letters"))
    made = mails(guarantee, [[("a",), ("b",), ("c",), ("d",)]])
    if guarantee == "at-least-once":
        made.set_dead_letters(table)  # a table, which only increasing attempts may write to
    store = run(made.build(), observers=[note], max_spout_pending=2, message_retries_max=2)
    assert (given.split["a"], given.split["c"], given.sent["c"], given.sent["d"]) == (times, 1, 1, 1)
    batches = committed(store)
    assert [batch.lost for batch in batches.values()] == ([0, 0] if times == 2 else [2, 0])
    ids = [each.attempt.attempt_id for each in store.attempts("mails", limit=9) if each.phase == "committed"]
    assert ids == sorted(ids, reverse=True)


@pytest.mark.parametrize("opaque", [False, True])
def test_a_batch_whose_job_fails_is_lost_at_most_once(*, opaque: bool) -> None:
    given = fresh(failing_once(2))
    store = run(mails("at-most-once", LINES, opaque=opaque).build())
    assert max(given.split.values()) == max(given.sent.values()) == 1
    assert sum(batch.lost for batch in committed(store).values()) == 4
    assert set(given.sent) >= {"d"}


class Counted(BasicBolt):
    """Counts what all bolts of its task were given, and notes the options."""

    output = "line string"
    met: ClassVar[list[Any]] = []

    def prepare(self, context: TopologyContext) -> None:
        self.shared = context.shared
        self.step = context.options["step"]

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        self.shared["given"] = self.shared.get("given", 0) + self.step
        self.met.append(self.shared["given"])
        collector.emit(tuple.line)


def test_observers_options_and_what_bolts_share_stand_for_hooks_of_tasks_and_workers() -> None:
    """Storm row C15."""
    Counted.met.clear()
    made = TopologyBuilder("hooks", guarantee="at-least-once")
    made.set_spout("lines", MemoryTransactionalSpout([[("a",), ("b",)]], "line string", 9))
    made.set_bolt("first", Counted()).shuffle_grouping("lines")
    made.set_bolt("second", Counted()).shuffle_grouping("first")
    seen = list[str]()
    run(made.build(options={"step": 10}), observers=[lambda at_ms, event, actions: seen.append(type(event).__name__)])
    assert sorted(Counted.met) == [10, 20, 30, 40]
    assert {"BatchPlanned", "ProcessingSucceeded", "CommitSucceeded"} <= set(seen)


# --- random worlds ----------------------------------------------------------------------------------------------


def world(seed: int, guarantee: str) -> tuple[Any, set[str], MemoryCoordinatorStore]:
    """Random lines, failures of bolts, jobs and processes; what was given, and all words."""
    rng = random.Random(seed)
    lines = [
        [(" ".join(f"w{seed}-{p}-{n}-{k}" for k in range(rng.randrange(1, 3))),) for n in range(rng.randrange(6))]
        for p in range(rng.choice([1, 2]))
    ]
    words = {word for rows in lines for (line,) in rows for word in line.split()}
    bolts_fail, jobs_fail, crashes = rng.choice([0, 0.1, 0.4]), rng.choice([0, 0.05]), rng.choice([0, 0.05, 0.15])
    limit = [12]

    def fails(word: str, times: int) -> bool:
        if limit[0] and rng.random() < jobs_fail:
            limit[0] -= 1
            failing_once(1)("", 0)
        return times < 4 and rng.random() < bolts_fail

    def crash(at_ms: int, event: Any, actions: Any) -> None:
        if limit[0] and rng.random() < crashes:
            limit[0] -= 1
            raise Killed

    given, store = fresh(fails), MemoryCoordinatorStore()
    made = mails(guarantee, lines, take=rng.choice([1, 3]), opaque=rng.random() < 0.5, ackers=rng.choice([1, 2]))
    topology, pending = made.build(), rng.choice([1, 3])
    for _ in range(30):
        try:
            run(topology, store, observers=[crash], max_spout_pending=pending)
        except Killed:
            continue
        break
    return given, words, store


def loses_nothing(seed: int) -> bool:
    """Whether anything was given twice, in a world that is at least once."""
    given, words, store = world(seed, "at-least-once")
    assert set(given.sent) == words, f"seed {seed}"
    assert sum(batch.lost for batch in committed(store).values()) == 0, f"seed {seed}"
    return max(given.split.values(), default=0) > 1


def repeats_nothing(seed: int) -> bool:
    """Whether anything was lost, in a world that is at most once."""
    given, words, _ = world(seed, "at-most-once")
    assert set(given.split.values()) | set(given.sent.values()) <= {1}, f"seed {seed}"
    assert set(given.sent) <= words, f"seed {seed}"
    return set(given.sent) < words


@pytest.mark.sampled(20)
@pytest.mark.parametrize("first", range(0, 200, 5))
def test_at_least_once_loses_nothing(first: int) -> None:
    for seed in range(first, first + 5):
        loses_nothing(seed)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("first", range(0, 200, 5))
def test_at_most_once_repeats_nothing(first: int) -> None:
    for seed in range(first, first + 5):
        repeats_nothing(seed)


def test_the_batches_of_a_run_are_processed_as_they_were_recorded() -> None:
    """The facts, and which messages come again, are those of the record."""
    fresh(lambda word, times: word == "bad" and times <= 1)
    started: list[Any] = []

    def note(at_ms: int, event: Any, actions: Any) -> None:
        started.extend(action for action in actions if isinstance(action, StartProcessing))

    store = run(mails("at-least-once", LINES).build(), observers=[note])
    batches = committed(store)
    assert [each.batch.again for each in started] == [batches[txid].again for txid in sorted(batches)]
    assert any(each.batch.again for each in started)


def test_a_sink_sends_in_its_tasks_and_acks_what_has_arrived() -> None:
    """A word that can't be encoded, or is refused, comes again alone; an outage repeats the batch and uses no tries."""
    TARGETS["mails"] = target = Target()
    target.errors = [SinkUnavailable("the target is away"), SinkUnavailable("it is still away")]
    builder = TopologyBuilder("mails", guarantee="at-least-once")
    builder.set_spout("words", MemoryTransactionalSpout([[("a",), ("bad",), ("refused",), ("b",)]], "word string", 9))
    builder.set_sink("send", WordSink("mails")).shuffle_grouping("words")
    store = run(builder.build(), message_retries_max=1)
    assert (target.closed, target.published[0]) == (1, (0, ["a", "b"]))
    assert [words for _, words in target.published[1:]] == [[]], "only what was refused comes again"
    batches = committed(store)
    assert [(message.error, message.tries) for message in batches[1].pending] == [("a bad word", 1), ("too rude", 1)]
    assert sum(batch.lost for batch in batches.values()) == 2
    assert target.errors == []


def test_a_sink_that_can_not_send_needs_exactly_once() -> None:
    builder = TopologyBuilder("mails", guarantee="at-least-once")
    builder.set_spout("words", MemoryTransactionalSpout([[("a",)]], "word string", 9))
    with pytest.raises(ConfigError, match="which is at-least-once; a delta sink needs guarantee='exactly-once'"):
        builder.set_sink("rows", DeltaSink("/nowhere"))
    builder.set_sink("send", KafkaSink("host:9092", "t", key="wrod")).shuffle_grouping("words")
    with pytest.raises(ConfigError, match=r"sink 'send' behind 'words' uses field 'wrod'.* \(.*test_running.py:\d+\)"):
        builder.build()
