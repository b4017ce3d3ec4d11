"""Runs one transcript: commands told to a coordinator, `----`, and the actions that it answered with.

    # a remark
    planned 1:1 0=0..10
    ----
    RecordAttempt 1:1 0=0..10
    StartProcessing 1:1 0=0..10

A block may hold several commands; their actions follow one another. `1:1` is txid:attempt. `0=5..8` are the offsets 5,
6 and 7 of partition 0. A store of four fields listens to the actions, so `restart` knows what a new process would.

    start [opaque] [windows] [option=number …]    a coordinator with nothing stored, told the time 0
    restart                             a new process: lease, fence id, progress of what was stored
    planned ATTEMPT PARTITION…          the spout has a batch      nothing ATTEMPT      the spout has nothing
    processed ATTEMPT [RECORDS]         processing succeeded       progress ATTEMPT     it goes forward
    committed ATTEMPT                   all committers are done    failed ATTEMPT WHY   it failed, nothing of it runs
    wait MS                             time passes, in one tick   pause, resume, drain, stop, show
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transactional.core.machine.coordinator import Coordinator
from transactional.core.machine.invariants import check
from transactional.core.machine.protocol import (
    AbortAttempt,
    Action,
    AttemptFailed,
    BatchPlanned,
    CommitSucceeded,
    DrainRequested,
    Event,
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
    StartCommit,
    StartProcessing,
    StopRequested,
    Tick,
)
from transactional.core.store.progress import Progress
from transactional.errors import ProtocolError
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig

SOURCE = "log"
SEPARATOR = "----"

# --- words to values, values to words -----------------------------------------------------------------------------


def attempt_of(word: str) -> TransactionAttempt:
    txid, attempt_id = word.split(":")
    return TransactionAttempt(TxId(int(txid)), AttemptId(int(attempt_id)))


def batch_of(words: list[str]) -> BatchMetadata:
    ranges: dict[PartitionId, OffsetRange] = {}
    for word in words:
        index, offsets = word.split("=")
        start, until = offsets.split("..")
        ranges[PartitionId(SOURCE, int(index))] = OffsetRange(Offset(int(start)), Offset(int(until)))
    return BatchMetadata(ranges)


def shown(batch: BatchMetadata) -> str:
    ranges = sorted(batch.ranges.items())
    words = [f"{partition.index}={offsets.start}..{offsets.until}" for partition, offsets in ranges]
    return " ".join(words) or "(the beginning)"


def line_of(action: Action) -> str:
    name = type(action).__name__
    match action:
        case PlanBatch(attempt, after, replay, is_next):
            return f"{name} {attempt} after {shown(after)}{' (replay)' if replay else ''}{' (next)' if is_next else ''}"
        case RecordAttempt(attempt, batch, forget_later, work_of):
            later = " (forget later ones)" if forget_later else ""
            return f"{name} {attempt} {shown(batch)}{later}{f' (processed by {work_of})' if work_of else ''}"
        case StartProcessing(attempt, batch) | StartCommit(attempt, batch) | RecordCommit(attempt, batch):
            return f"{name} {attempt} {shown(batch)}"
        case RecordProcessed(attempt, batch):
            return f"{name} {attempt} {batch.record_count} records"
        case RecordFailure(attempt, phase, reason, retry_in_ms):
            return f"{name} {attempt} {phase.name}: {reason} (again in {retry_in_ms} ms)"
        case AbortAttempt(attempt, reason):
            return f"{name} {attempt}: {reason}"
        case Halt(code, reason):
            return f"{name} {code}: {reason}"


# --- running ------------------------------------------------------------------------------------------------------


class Stored:
    """What a store would hold after the actions so far."""

    def __init__(self) -> None:
        self.committed_txid = TxId(0)
        self.committed_batch = BatchMetadata({})
        self.recorded: dict[TxId, BatchMetadata] = {}
        self.attempt_id = AttemptId(0)

    def perform(self, action: Action) -> None:
        match action:
            case RecordAttempt(attempt, batch, forget_later):
                kept = {txid: b for txid, b in self.recorded.items() if txid < attempt.txid or not forget_later}
                self.recorded = {**kept, attempt.txid: batch}
                self.attempt_id = attempt.attempt_id
            case RecordProcessed(attempt, batch):
                self.recorded[attempt.txid] = batch
            case RecordCommit(attempt, batch):
                self.committed_txid, self.committed_batch = attempt.txid, batch
                del self.recorded[attempt.txid]

    def acquire(self) -> Progress:
        """As a lease does it: a fence id is drawn from the same counter as attempt ids."""
        self.attempt_id = AttemptId(self.attempt_id + 1)
        return Progress(self.committed_txid, self.committed_batch, dict(self.recorded), self.attempt_id)


class Scenario:
    """One coordinator and what it was told; `run` gives a whole transcript back with the answers as they are."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.how: dict[str, Any] = {}
        self.config = TopologyConfig()
        self.stored = Stored()
        self.coordinator = Coordinator(Progress(), self.config, replays_exactly=True)

    def run(self, text: str) -> str:
        return "\n".join(self._block(block) for block in text.rstrip("\n").split("\n\n"))

    def _block(self, block: str) -> str:
        lines = block.splitlines()
        if SEPARATOR not in lines:
            return block + "\n"
        asked = lines[: lines.index(SEPARATOR)]
        answers = [answer for line in asked if not line.startswith("#") for answer in self._answer(line.split())]
        return "\n".join([*asked, SEPARATOR, *(answers or ["(nothing)"])]) + "\n"

    def _answer(self, words: list[str]) -> list[str]:
        match words:
            case ["start", *options]:
                return self._start(options)
            case ["restart"]:
                return self._restart()
            case ["show"]:
                return self._show()
            case ["wait", ms]:
                self.now_ms += int(ms)
                return self._tell(Tick(self.now_ms))
            case [("pause" | "resume" | "drain" | "stop") as command]:
                requests: dict[str, Callable[[], Event]] = {
                    "pause": PauseRequested,
                    "resume": ResumeRequested,
                    "drain": DrainRequested,
                    "stop": StopRequested,
                }
                return self._tell(requests[command]())
            case [command, attempt, *rest]:
                return self._tell(self._attempt_event(command, attempt_of(attempt), rest))
        raise ValueError(f"not a command: {' '.join(words)}")

    def _attempt_event(self, command: str, attempt: TransactionAttempt, rest: list[str]) -> Event:
        match command:
            case "planned":
                return BatchPlanned(attempt, batch_of(rest))
            case "nothing":
                return BatchPlanned(attempt, None)
            case "progress":
                return ProgressMade(attempt)
            case "processed":
                records = int(rest[0]) if rest else 0
                return ProcessingSucceeded(attempt, {PartitionId(SOURCE, 0): Digest(records, checksum=0)})
            case "committed":
                return CommitSucceeded(attempt)
            case "failed":
                return AttemptFailed(attempt, " ".join(rest))
        raise ValueError(f"not a command: {command}")

    def _start(self, options: list[str]) -> list[str]:
        self.how = {"replays_exactly": "opaque" not in options, "has_windows": "windows" in options}
        numbers = dict(option.split("=") for option in options if "=" in option)
        drained = bool(int(numbers.pop("stop_when_drained", 0)))
        given: dict[str, Any] = {name: int(number) for name, number in numbers.items()}
        self.config = TopologyConfig(**given, stop_when_drained=drained)
        self.coordinator = Coordinator(Progress(), self.config, **self.how)
        return self._tell(Tick(self.now_ms))

    def _restart(self) -> list[str]:
        progress = self.stored.acquire()
        self.coordinator = Coordinator(progress, self.config, **self.how)
        return [f"(fence id {progress.attempt_id})", *self._tell(Tick(self.now_ms))]

    def _tell(self, event: Event) -> list[str]:
        try:
            actions = self.coordinator.handle(event)
        except ProtocolError as error:
            return [f"ProtocolError: {error}"]
        check(self.coordinator)
        for action in actions:
            self.stored.perform(action)
        return [line_of(action) for action in actions]

    def _show(self) -> list[str]:
        coordinator = self.coordinator
        active = [f"{current.attempt} {current.phase.name}" for _, current in sorted(coordinator.active.items())]
        recorded = [f"{txid} {shown(batch)}" for txid, batch in sorted(self.stored.recorded.items())]
        return [
            f"committed {self.stored.committed_txid}, up to {shown(self.stored.committed_batch)}",
            f"recorded {', '.join(recorded) or 'none'}",
            f"in flight {', '.join(active) or 'none'}{'; done' if coordinator.is_done else ''}",
        ]
