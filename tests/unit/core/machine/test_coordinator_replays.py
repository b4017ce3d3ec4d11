"""Rules 6 to 11 of the coordinator's docstring, each by name: replays, attempt ids, and the order of commit phases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.conversation import WORDS, Conversation, attempt, batch, digest, kinds
from transactional.core.machine.protocol import (
    BatchPlanned,
    CommitSucceeded,
    PlanBatch,
    RecordAttempt,
    RecordCommit,
    RecordProcessed,
    StartCommit,
    StartProcessing,
)
from transactional.core.machine.report import CommitReport
from transactional.core.store.progress import Phase, Progress
from transactional.errors import ProtocolError
from transactional.model.attempt import AttemptId, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId


def opaque() -> Conversation:
    return Conversation(replays_exactly=False)


# --- 6: a transactional spout's batch is replayed as recorded, an opaque spout is asked again ---------------------


def test_a_transactional_batch_is_replayed_as_recorded_with_what_was_read() -> None:
    talk = Conversation()
    talk.start_processing(1)
    talk.process(1)
    talk.fail(1)
    read = batch(0, 10).with_digests(digest(10))
    assert [action for action in talk.wait(100) if isinstance(action, StartProcessing)] == [
        StartProcessing(attempt(1, 3), read)
    ]


def test_an_opaque_batch_is_planned_again_from_where_the_one_before_it_ended() -> None:
    """Storm row T23."""
    talk = opaque()
    talk.start_processing(2)
    talk.fail(2)
    talk.fail(3)
    assert talk.wait(100) == [PlanBatch(attempt(2, 4), batch(0, 10), replay=True)]
    assert talk.plan(2, 10, 13)[:2] == [
        RecordAttempt(attempt(2, 4), batch(10, 13), forget_later=False),
        StartProcessing(attempt(2, 4), batch(10, 13)),
    ]


OTHER = PartitionId("words", 1)


def with_other(start: int, until: int, **more: Any) -> BatchMetadata:
    """A batch with another partition, from which it reads this range."""
    return BatchMetadata(
        {WORDS: OffsetRange(Offset(10), Offset(10)), OTHER: OffsetRange(Offset(start), Offset(until))}, **more
    )


def test_a_replay_is_reported_where_the_partitions_begin_that_joined_with_it_also_after_a_restart() -> None:
    """Else "the end" would be another one, and what came in between would be skipped."""
    recorded = {TxId(2): with_other(100, 100), TxId(3): with_other(100, 103)}
    talk = Conversation(Progress(TxId(1), batch(0, 10), recorded, AttemptId(9)), replays_exactly=False)
    [asked] = talk.start()
    assert isinstance(asked, PlanBatch)
    assert asked.after.positions() == {WORDS: 10, OTHER: 100}


def test_a_partition_that_joined_later_than_what_is_replayed_keeps_its_start_as_well() -> None:
    """The batches of later txids are forgotten with the replay, and with them nobody would know any more."""
    recorded = {TxId(2): batch(10, 20), TxId(3): with_other(7, 9)}
    talk = Conversation(Progress(TxId(1), batch(0, 10), recorded, AttemptId(9)), replays_exactly=False)
    [asked] = talk.start()
    assert isinstance(asked, PlanBatch)
    assert asked.after.positions() == {WORDS: 10, OTHER: 7}


def test_where_metadata_show_the_place_a_replay_is_not_reported_another() -> None:
    recorded = {TxId(2): with_other(0, 1, metadata={OTHER: {"file": "a"}})}
    talk = Conversation(Progress(TxId(1), batch(0, 10), recorded, AttemptId(9)), replays_exactly=False)
    assert talk.start() == [PlanBatch(attempt(2, 10), batch(0, 10), replay=True)]


# --- 7: attempt ids only grow (T47) -------------------------------------------------------------------------------


def test_attempt_ids_grow_over_txids_attempts_and_restarts() -> None:
    talk = Conversation(Progress(attempt_id=AttemptId(40)))
    talk.start()
    assert talk.current(1) == attempt(1, 41)
    talk.plan(1)
    talk.plan(2)
    talk.fail(1)
    talk.fail(2)
    talk.fail(3)
    talk.wait(100)
    assert (talk.current(1), talk.current(2)) == (attempt(1, 44), attempt(2, 45))


# --- 8: a replay always has a batch -------------------------------------------------------------------------------


def test_nothing_there_is_no_answer_for_a_replay() -> None:
    talk = opaque()
    talk.start_processing(1)
    talk.fail(1)
    talk.fail(2)
    talk.wait(100)
    before = talk.state()
    with pytest.raises(ProtocolError, match="nothing for 1:3, which is a replay"):
        talk.nothing(1)
    assert talk.state() == before


def test_a_replay_with_an_empty_batch_is_committed() -> None:
    talk = opaque()
    talk.start_processing(1)
    talk.fail(1)
    talk.fail(2)
    talk.wait(100)
    assert "StartProcessing" in kinds(talk.plan(1, 0, 0))
    assert kinds(talk.process(1)) == ["StartCommit"]
    assert kinds(talk.committed(1)) == ["RecordCommit"]
    assert talk.coordinator.committed_txid == 1


# --- 9: re-planning an opaque n forgets the recorded batches of all later txids -----------------------------------


def test_planning_an_opaque_batch_again_forgets_the_later_ones() -> None:
    """Storm row T24."""
    talk = opaque()
    talk.start_processing(3)
    talk.fail(1)
    talk.fail(2)
    talk.fail(3)
    talk.wait(100)
    assert talk.plan(1, 0, 6) == [
        RecordAttempt(attempt(1, 4), batch(0, 6), forget_later=True),
        StartProcessing(attempt(1, 4), batch(0, 6)),
        PlanBatch(attempt(2, 5), batch(0, 6), replay=False),
    ]
    assert talk.coordinator.recorded == {TxId(1): batch(0, 6)}


def test_a_transactional_replay_keeps_the_later_batches() -> None:
    talk = Conversation()
    talk.start_processing(2)
    talk.fail(1)
    assert [action.forget_later for action in talk.wait(100) if isinstance(action, RecordAttempt)] == [False]
    assert talk.coordinator.recorded == {TxId(1): batch(0, 10), TxId(2): batch(10, 20)}


# --- 10: RecordCommit(n) stands before StartCommit(n+1) -----------------------------------------------------------


def test_transactions_commit_one_at_a_time_and_in_order() -> None:
    """Storm rows T17, T19."""
    talk = Conversation()
    talk.start_processing(3)
    assert kinds([*talk.process(3), *talk.process(2)]) == ["RecordProcessed", "RecordProcessed"]
    read = [batch(start, start + 10).with_digests(digest(10)) for start in (0, 10)]
    assert talk.process(1)[1:] == [StartCommit(attempt(1, 1), read[0])]
    assert talk.committed(1)[:2] == [RecordCommit(attempt(1, 1), read[0]), StartCommit(attempt(2, 2), read[1])]
    assert talk.phase(3) is Phase.PROCESSED


def test_planning_goes_on_while_a_transaction_commits() -> None:
    talk = Conversation()
    talk.start_processing(1)
    talk.process(1)
    assert talk.phases() == {1: Phase.COMMITTING, 2: Phase.PLANNING}
    assert kinds(talk.tell(BatchPlanned(talk.current(2), batch(10, 20)))) == [
        "RecordAttempt",
        "StartProcessing",
        "PlanBatch",
    ]
    assert kinds(talk.tell(CommitSucceeded(attempt(1, 1)))) == ["RecordCommit"], "3 is being planned already"


def test_a_report_is_recorded_with_the_commit_of_its_own_attempt() -> None:
    talk, of_first, of_second = Conversation(), CommitReport(letters={"first": 1}), CommitReport(letters={"second": 2})
    talk.start_processing(1)
    talk.process(1)
    failed = talk.current(1)
    talk.fail(1)
    talk.wait(10_000)
    talk.process(1)
    assert talk.tell(CommitSucceeded(failed, report=of_first)) == []
    recorded = talk.tell(CommitSucceeded(talk.current(1), report=of_second))[0]
    assert isinstance(recorded, RecordCommit)
    assert recorded.report == of_second


# --- 11: what was read is recorded when it is needed --------------------------------------------------------------


@pytest.mark.parametrize("replays_exactly", [True, False])
def test_what_was_read_is_recorded_in_time_or_with_the_transaction_commit(*, replays_exactly: bool) -> None:
    talk = Conversation() if replays_exactly else opaque()
    talk.start_processing(2)
    read = [batch(start, start + 10).with_digests(digest(10)) for start in (0, 10)]
    assert talk.process(2) == ([RecordProcessed(attempt(2, 2), read[1])] if replays_exactly else [])
    *recorded, begun = talk.process(1)
    assert recorded == ([RecordProcessed(attempt(1, 1), read[0])] if replays_exactly else [])
    assert begun == StartCommit(attempt(1, 1), read[0])
    assert talk.committed(1)[0] == RecordCommit(attempt(1, 1), read[0])
