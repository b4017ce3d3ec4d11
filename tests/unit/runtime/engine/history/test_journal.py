"""The journal: what a run has done comes back as it was, and fresh coordinators do the same again."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.drivers import DRAINED, WAIT_S, Gate, Recorder, World, in_background
from tests.unit.fakes import opaque_words, words
from transactional.core.machine.coordinator import Coordinator
from transactional.core.machine.protocol import (
    AbortAttempt,
    AttemptFailed,
    BatchPlanned,
    CommitSucceeded,
    Halt,
    PauseRequested,
    PlanBatch,
    ProcessingSucceeded,
    ProgressMade,
    RecordAttempt,
    RecordCommit,
    RecordFailure,
    RecordProcessed,
    ResumeRequested,
    SinksBehind,
    SinksSettled,
    StartCommit,
    StartProcessing,
    StopRequested,
    Tick,
)
from transactional.core.machine.report import CommitReport
from transactional.core.store.progress import Phase, Progress
from transactional.errors import CorruptRecord, FailedException, RetriesExhausted
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, BatchLimit, BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.engine.history.journal import JournalWriter, RunStarted, decode, encode, read_journal
from transactional.runtime.engine.history.replay import replay
from transactional.testing import ManualClock

ATTEMPT = TransactionAttempt(TxId(3), AttemptId(7))
WORDS_0 = PartitionId("words", 0)
DIGESTS = {WORDS_0: Digest(2, 99), PartitionId("words", 1): Digest(0, 0)}
BATCH = BatchMetadata({WORDS_0: OffsetRange(Offset(1), Offset(3))}, {WORDS_0: Digest(2, 99)})

EVERY_WORD = [
    BatchPlanned(ATTEMPT, BATCH),
    BatchPlanned(ATTEMPT, None),
    BatchPlanned(ATTEMPT, BATCH, BatchLimit(1_000, None, "nothing is measured yet")),
    BatchPlanned(ATTEMPT, None, BatchLimit(8_000, 70, "55 ms + 55 µs a record")),
    ProcessingSucceeded(ATTEMPT, DIGESTS),
    ProcessingSucceeded(ATTEMPT),
    ProgressMade(ATTEMPT),
    CommitSucceeded(ATTEMPT, sink_bytes=7),
    AttemptFailed(ATTEMPT, "TX302 component 'é' raised …\nTraceback\x00\udc80"),
    SinksBehind(TxId(3), 12, 4_096),
    SinksSettled(TxId(3)),
    Tick(17),
    PauseRequested(),
    ResumeRequested(),
    StopRequested(),
    PlanBatch(ATTEMPT, BATCH, replay=True),
    RecordAttempt(ATTEMPT, BATCH, forget_later=False),
    StartProcessing(ATTEMPT, BATCH),
    RecordProcessed(ATTEMPT, BATCH),
    StartCommit(ATTEMPT, BATCH),
    RecordCommit(ATTEMPT, BATCH),
    *(RecordFailure(ATTEMPT, phase, "no", 100) for phase in Phase),
    AbortAttempt(ATTEMPT, "transaction 2 failed"),
    Halt("TX408", "enough"),
]


@pytest.mark.parametrize("word", EVERY_WORD, ids=lambda word: type(word).__name__)
def test_every_event_and_action_comes_back_as_it_was(word: Any) -> None:
    assert decode(json.loads(json.dumps(encode(word)))) == word


def test_a_report_is_left_to_the_store() -> None:
    report = CommitReport({("spout", "default", "count"): 3})
    for word in (CommitSucceeded(ATTEMPT, "", report), RecordCommit(ATTEMPT, BATCH, report)):
        line = encode(word)
        assert "report" not in line
        assert decode(json.loads(json.dumps(line))).report == CommitReport()


def test_how_a_run_begins_comes_back_as_it_was() -> None:
    progress = Progress(TxId(2), BATCH, {TxId(3): BATCH, TxId(4): BatchMetadata({})}, AttemptId(9))
    started = RunStarted(progress, TopologyConfig(attempts_max=3), replays_exactly=False)
    assert RunStarted.from_json(json.loads(json.dumps(started.to_json()))) == started


# --- replaying ----------------------------------------------------------------------------------------------------


class Trip:
    """Fails for "banana" the first time."""

    left = 1


def trip(row: Tuple) -> Tuple:
    if row["word"] == "banana" and Trip.left:
        Trip.left -= 1
        raise FailedException("no banana yet")
    return row


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalWriter]:
    Trip.left = 1
    writer = JournalWriter(tmp_path / "journal")
    yield writer
    writer.close()


@pytest.mark.parametrize("spout", [words, opaque_words])
def test_a_journal_replays_to_the_same_actions(journal: JournalWriter, tmp_path: Path, spout: Any) -> None:
    """Two runs in one file: one with a failure that is stopped, one that goes on."""
    world, recorder = World(), Recorder()
    driver = world.driver(world.topology(spout(), trip), observers=[recorder, journal])
    with in_background(driver) as running:
        recorder.wait_for(lambda: bool(recorder.of(RecordFailure)))
        driver.stop()
        running.result(WAIT_S)
    world.run(world.topology(spout(), trip), observers=[recorder, journal])
    lines = list(read_journal(tmp_path / "journal"))
    assert [action for _, _, actions in lines for action in actions] == recorder.actions
    assert sum(isinstance(event, RunStarted) for _, event, _ in lines) == 2
    assert replay(lines) == len(lines) - 2


def test_the_last_event_of_a_run_that_halts_is_there(journal: JournalWriter, tmp_path: Path) -> None:
    world = World()
    Trip.left = 1_000
    with pytest.raises(RetriesExhausted):
        world.run(world.topology(bolt=trip), replace(DRAINED, attempts_max=2), observers=[journal])
    *_, (_, event, actions) = lines = list(read_journal(tmp_path / "journal"))
    assert isinstance(event, AttemptFailed)
    assert isinstance(actions[-1], Halt)
    assert replay(lines) == len(lines) - 1


def test_the_time_of_an_event_comes_back_though_ticks_are_left_out(journal: JournalWriter, tmp_path: Path) -> None:
    """Long after the last tick that led to anything a processing phase begins: its time-out counts from there."""
    world, recorder, gate, clock = World(), Recorder(), Gate(), ManualClock()
    spout = words([[("cat",)], [("dog",)]])
    topology = world.topology(spout)
    planned = spout.plan

    def plan(previous_batch: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        gate.pass_through()
        return planned(previous_batch, replay=replay)

    spout.plan = plan  # type: ignore[method-assign]
    hold = Gate()
    world.states["total"].before = lambda attempt: hold.pass_through()
    config = TopologyConfig(max_spout_pending=2, stop_when_drained=True, tick_ms=1, idle_pause_ms=1)
    with in_background(world.driver(topology, config, clock=clock, observers=[recorder, journal])) as running:
        gate.wait_until_entered()
        clock.advance(20_000)
        recorder.wait_for_more(3)
        gate.opened.set()
        hold.wait_until_entered()
        clock.advance(20_000)
        recorder.wait_for_more(3)
        hold.opened.set()
        assert running.result(WAIT_S).failures == 0
    lines = list(read_journal(tmp_path / "journal"))
    ticks = sum(isinstance(event, Tick) and not actions for _, event, actions in lines)
    assert 0 < ticks < sum(isinstance(event, Tick) and not actions for event, actions in recorder.lines)
    assert replay(lines) == len(lines) - 1


def test_of_silent_ticks_the_last_one_before_a_line_is_kept_and_none_over_runs(
    journal: JournalWriter, tmp_path: Path
) -> None:
    progress, config = Progress(), TopologyConfig()
    journal.begin(1, progress, config, replays_exactly=True)
    for now_ms in (10, 20, 30):
        journal(now_ms, Tick(now_ms), [])
    journal(31, PauseRequested(), [])
    journal(40, Tick(40), [])
    journal.begin(2, progress, config, replays_exactly=True)
    journal(3, Tick(3), [Halt("TX408", "enough")])
    started = RunStarted(progress, config, replays_exactly=True)
    assert [event for _, event, _ in read_journal(tmp_path / "journal")] == [
        started,
        Tick(30),
        PauseRequested(),
        started,
        Tick(3),
    ]


def test_a_difference_is_reported_with_its_line(journal: JournalWriter, tmp_path: Path) -> None:
    World().run(observers=[journal])
    lines = list(read_journal(tmp_path / "journal"))
    number = next(n for n, (_, _, actions) in enumerate(lines) if any(isinstance(a, RecordCommit) for a in actions))
    at_ms, event, actions = lines[number]
    lines[number] = (at_ms, event, actions[:-1])
    with pytest.raises(AssertionError, match=f"^line {number + 1}: CommitSucceeded.* gave .*, and now gives "):
        replay(lines)


def test_events_need_a_coordinator() -> None:
    lines: list[Any] = [(0, Tick(0), [])]
    with pytest.raises(CorruptRecord, match="line 1 is an event, but the journal does not say how its run began"):
        replay(lines)
    paused = Coordinator(Progress(), TopologyConfig(), replays_exactly=True)
    paused.paused = True
    assert replay(lines, paused) == 1


@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")
def test_the_command_line_replays_a_file(
    journal: JournalWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    World().run(observers=[journal])
    monkeypatch.setattr(sys, "argv", ["replay", str(tmp_path / "journal")])
    capsys.readouterr()
    runpy.run_module(replay.__module__, run_name="__main__")
    count = len((tmp_path / "journal").read_text().splitlines()) - 1
    assert capsys.readouterr().out == f"{count} events, every action the same\n"


# --- what can't be read -------------------------------------------------------------------------------------------

GOOD = json.dumps({"at_ms": 1, "event": {"is": "Tick", "now_ms": 1}, "actions": []})


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"",
        b"5",
        b"[]",
        b"\xff\xfe",
        b'{"at_ms": 1}',
        b'{"at_ms": 1, "event": {"is": "Nothing"}, "actions": []}',
        b'{"at_ms": 1, "event": {"is": "Tick"}, "actions": []}',
        b'{"at_ms": 1, "event": {"is": "Tick", "now_ms": 1, "more": 2}, "actions": []}',
        b'{"at_ms": 1, "event": {"is": "ProgressMade", "attempt": [1]}, "actions": []}',
        b'{"at_ms": 1, "event": {"is": "ProgressMade", "attempt": [0, 1]}, "actions": []}',
        b'{"at_ms": 1, "event": {"is": "BatchPlanned", "attempt": [1, 1], "batch": "{}"}, "actions": []}',
        b'{"at_ms": 1, "event": {"is": "Tick", "now_ms": 1}, "actions": [{"is": "RecordFailure", "phase": "no"}]}',
        b'{"at_ms": 1, "run": {}}',
        b'{"at_ms": 1, "run": {"snapshot": {}, "config": {}, "replays_exactly": true}}',
        b'{"at_ms": 1, "event": "Tick", "actions": []}',
    ],
)
def test_a_line_that_is_none_is_reported_with_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(GOOD.encode() + b"\n" + line + b"\n")
    lines = read_journal(path)
    assert next(lines) == (1, Tick(1), [])
    with pytest.raises(CorruptRecord, match=r"journal, line 2 is not a line of a journal: "):
        next(lines)


def test_a_wrong_option_of_a_run_is_reported(tmp_path: Path) -> None:
    row = RunStarted(Progress(), TopologyConfig(), replays_exactly=True).to_json()
    row["config"]["tick_ms"] = 0
    (tmp_path / "journal").write_text(json.dumps({"at_ms": 1, "run": row}) + "\n")
    with pytest.raises(CorruptRecord, match="line 1 is not a line of a journal: tick_ms must be at least 1"):
        list(read_journal(tmp_path / "journal"))


def test_a_line_that_a_power_cut_has_torn_is_left_out(tmp_path: Path) -> None:
    """Also when the next run has gone on behind it; every later start, and the doctor, have to read it."""
    path = tmp_path / "journal"

    def run() -> None:
        with closing(JournalWriter(path)) as journal:
            journal.begin(1, Progress(), TopologyConfig(), replays_exactly=True)
            journal(2, Tick(2), [Halt("TX401", "over")])

    run()
    whole = path.read_bytes()
    for torn in (whole[:-1], whole[:-20], whole + b'{"at', whole + bytes(20)):
        path.write_bytes(torn)
        kept = [event for _, event, _ in read_journal(path)]
        run()
        assert [event for _, event, _ in read_journal(path)] == [*kept, kept[0], Tick(2)]


def test_a_journal_is_durable_before_a_transaction_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    path, attempt = tmp_path / "journal", TransactionAttempt(TxId(1), AttemptId(1))
    for durability in ("disk", "process"):
        with closing(JournalWriter(path)) as journal:
            journal.begin(1, Progress(), TopologyConfig(durability=durability), replays_exactly=True)
            synced.clear()
            journal(2, ProcessingSucceeded(attempt, {}), [StartCommit(attempt, EMPTY_BATCH)])
            assert synced == ([path.stat().st_size] if durability == "disk" else [])
