"""The coordinator without exactly once: batches are not planned again, failed messages come with later ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.conversation import WORDS, Conversation, attempt, batch, digest, kinds
from transactional.core.machine.protocol import (
    BatchPlanned,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    RecordCommit,
    StartCommit,
    StopRequested,
)
from transactional.core.store.progress import Phase, Progress
from transactional.model.attempt import AttemptId, TxId
from transactional.model.batch import BatchMetadata, Offset, PendingMessage
from transactional.model.config import TopologyConfig
from transactional.model.guarantees import Guarantee
from transactional.runtime.engine.history.journal import decode, encode

CONFIG = TopologyConfig(max_spout_pending=2, retry_pause_ms=100, stop_when_drained=True)
PLANNED: list[PlanBatch] = []
MESSAGE = PendingMessage(WORDS, Offset(3), 1, 500, "no")


def conversation(guarantee: Guarantee, *, exactly: bool = False, progress: Progress | None = None) -> Conversation:
    return Conversation(progress, CONFIG, replays_exactly=exactly, guarantee=guarantee)


def finish(talk: Conversation, txid: int, *pending: PendingMessage, lost: int = 0) -> BatchMetadata:
    """Process and commit; return what is committed, and what the next one is planned after."""
    actions = talk.tell(ProcessingSucceeded(talk.current(txid), digest(10), pending, lost)) + talk.committed(txid)
    [commit] = [a for a in actions if isinstance(a, RecordCommit)]
    PLANNED[:] = [a for a in actions + talk.wait(100) if isinstance(a, PlanBatch)]
    return commit.batch


@pytest.mark.parametrize("exactly", [True, False], ids=["transactional", "opaque"])
def test_at_least_once_a_failed_batch_comes_again_as_it_was_recorded(*, exactly: bool) -> None:
    talk = conversation(Guarantee.AT_LEAST_ONCE, exactly=exactly)
    talk.start()
    talk.plan(1)
    talk.tell(ProcessingSucceeded(talk.current(1), digest(10), (MESSAGE,)))
    talk.fail(1)
    again = [a for a in talk.wait(100) if isinstance(a, RecordAttempt)]
    assert [a.batch for a in again if a.attempt.txid == 1] == [batch(0, 10)]
    assert "PlanBatch" not in kinds(list(again))


@pytest.mark.parametrize("exactly", [True, False], ids=["transactional", "opaque"])
def test_at_most_once_nothing_of_a_failed_batch_is_read_again(*, exactly: bool) -> None:
    talk = conversation(Guarantee.AT_MOST_ONCE, exactly=exactly)
    talk.start()
    talk.plan(1)
    talk.fail(1)
    [again, *_] = [a for a in talk.wait(100) if isinstance(a, RecordAttempt)]
    assert again.batch == replace(batch(10, 10), lost=10)
    assert talk.phase(1) is Phase.PROCESSING


def test_at_most_once_nothing_of_a_batch_is_read_after_a_crash() -> None:
    progress = Progress(recorded={TxId(1): batch(0, 10), TxId(2): batch(10, 15)}, attempt_id=AttemptId(5))
    talk = conversation(Guarantee.AT_MOST_ONCE, progress=progress)
    recorded = [a.batch for a in talk.start() if isinstance(a, RecordAttempt)]
    assert recorded == [replace(batch(10, 10), lost=10), replace(batch(15, 15), lost=5)]


def test_failed_messages_are_committed_with_their_batch_and_offered_to_the_next_one() -> None:
    talk = conversation(Guarantee.AT_LEAST_ONCE)
    talk.start()
    talk.plan(1)
    talk.nothing(2)
    assert finish(talk, 1, MESSAGE, lost=2) == replace(batch(0, 10), digests=digest(10), pending=(MESSAGE,), lost=2)
    [plan] = PLANNED
    assert plan.after.pending == (MESSAGE,)
    assert not talk.coordinator.draining


def test_a_message_is_in_one_batch_at_a_time() -> None:
    talk = conversation(Guarantee.AT_LEAST_ONCE)
    talk.start()
    talk.plan(1)
    talk.nothing(2)
    finish(talk, 1, MESSAGE)
    actions = talk.tell(BatchPlanned(talk.current(2), replace(batch(10, 20), again=(MESSAGE,))))
    [plan] = [a for a in actions if isinstance(a, PlanBatch)]
    assert plan.attempt.txid == 3
    assert plan.after.pending == ()
    assert finish(talk, 2).pending == ()


def test_a_topology_is_drained_once_no_message_waits() -> None:
    talk = conversation(Guarantee.AT_LEAST_ONCE)
    talk.start()
    talk.plan(1)
    talk.nothing(2)
    finish(talk, 1, MESSAGE)
    talk.nothing(2)
    assert not talk.coordinator.is_done
    talk.wait(100)
    talk.tell(BatchPlanned(talk.current(2), replace(batch(10, 10), again=(MESSAGE,))))
    talk.nothing(3)
    assert finish(talk, 2).pending == ()
    talk.wait(100)
    assert talk.coordinator.draining is False
    talk.nothing(3)
    assert talk.coordinator.draining


def test_a_batch_that_fails_fails_no_later_one() -> None:
    talk = conversation(Guarantee.AT_LEAST_ONCE)
    talk.start()
    talk.plan(1)
    talk.plan(2)
    talk.process(2)
    assert kinds(talk.fail(1)) == ["RecordFailure"]
    assert talk.phases() == {2: Phase.PROCESSED}
    assert kinds(talk.wait(100)) == ["RecordAttempt", "StartProcessing"], "of 1 alone"
    processed = talk.current(2)
    talk.process(1)
    batches = {2: replace(batch(10, 20), digests=digest(10))}
    commit, again, start, *_ = talk.committed(1)
    assert commit == RecordCommit(attempt(1, 3), replace(batch(0, 10), digests=digest(10)))
    assert again == RecordAttempt(attempt(2, 4), batches[2], forget_later=False, work_of=processed)
    assert start == StartCommit(attempt(2, 4), batches[2])
    assert talk.tell(ProcessingSucceeded(processed, digest(10))) == [], "the earlier attempt is over"
    assert RecordCommit(attempt(2, 4), batches[2]) in talk.committed(2)


def test_new_batches_are_planned_while_a_failed_one_waits() -> None:
    talk = conversation(Guarantee.AT_LEAST_ONCE)
    talk.start()
    talk.plan(1)
    assert kinds(talk.fail(1)) == ["RecordFailure"]
    assert kinds(talk.plan(2)) == ["RecordAttempt", "StartProcessing"]
    talk.fail(2)
    assert kinds(talk.wait(100)) == ["RecordAttempt", "StartProcessing"] * 2


def test_a_batch_that_is_planned_while_an_earlier_one_comes_again_is_recorded_under_a_later_id() -> None:
    talk = conversation(Guarantee.AT_LEAST_ONCE)
    talk.start()
    talk.plan(1)
    planned = talk.current(2)
    talk.fail(1)
    talk.wait(100)
    record, _ = talk.plan(2)
    assert record == RecordAttempt(attempt(2, 4), batch(10, 20), forget_later=False, work_of=planned)


def test_a_batch_that_times_out_ends_no_later_one() -> None:
    config = replace(CONFIG, attempt_timeout_ms=1_000)
    talk = Conversation(None, config, guarantee=Guarantee.AT_LEAST_ONCE)
    talk.start()
    talk.plan(1)
    talk.wait(600)
    talk.plan(2)
    assert kinds(talk.wait(600)) == ["RecordFailure", "AbortAttempt"]
    assert talk.phases() == {1: Phase.ABORTING, 2: Phase.PROCESSING}


def test_at_most_once_a_failed_batch_takes_no_other_messages_with_it() -> None:
    talk = conversation(Guarantee.AT_MOST_ONCE)
    talk.start()
    talk.plan(1)
    talk.plan(2)
    talk.process(2)
    talk.fail(1)
    talk.wait(100)
    talk.process(1)
    talk.committed(1)
    [commit] = [action for action in talk.committed(2) if isinstance(action, RecordCommit)]
    assert (commit.batch.lost, commit.batch.ranges) == (0, batch(10, 20).ranges)


def test_a_stop_gives_up_all_that_is_processed() -> None:
    talk = conversation(Guarantee.AT_LEAST_ONCE)
    talk.start()
    talk.plan(1)
    talk.plan(2)
    assert kinds(talk.tell(StopRequested())) == ["AbortAttempt"] * 2


def test_the_journal_keeps_failed_messages() -> None:
    event = ProcessingSucceeded(attempt(1, 1), digest(10), (MESSAGE,), 3)
    assert decode(encode(event)) == event
    action = RecordAttempt(attempt(2, 4), batch(10, 20), forget_later=False, work_of=attempt(2, 2))
    assert decode(encode(action)) == action
