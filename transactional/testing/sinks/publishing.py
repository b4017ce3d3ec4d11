"""Cases of one leader: each record of a committed transaction is seen once, and the position is that of the last."""

from __future__ import annotations

from functools import partial

from transactional.model.errors import ConfigError, OperatingError, StoreMismatch
from transactional.testing.cases.register import NotOffered
from transactional.testing.sinks.trial import Row, SinkTrial, case, cases, to_batch

MANY: list[Row] = [(f"word {number}", number) for number in range(2_000)]


@case
def a_new_target_is_empty(trial: SinkTrial) -> None:
    """A target to which nothing was published has no record and no position."""
    leader = trial.lead()
    trial.note("leader 1 looks at the target")
    trial.check_equal("look()", leader.sink.look(leader.owner), None)
    leader.open().check_position(None)
    trial.check_records([])


@case
def each_record_is_seen_once(trial: SinkTrial) -> None:
    """Records are seen once after their transaction is published, and the position is that of the transaction."""
    leader = trial.lead().open()
    leader.check_position(leader.commit_and_publish(1, [("cat", 1), ("dog", 2)]))
    trial.check_records([("cat", 1), ("dog", 2)])
    leader.check_position(leader.commit_and_publish(2, [("owl", 3)]))
    trial.check_records([("cat", 1), ("dog", 2), ("owl", 3)])


@case
def several_transactions_are_published_together(trial: SinkTrial) -> None:
    """A group of transactions is published in order, some txids being left out, with the position of the last one."""
    leader = trial.lead().open()
    leader.commit(1, [("cat", 1)])
    leader.commit(2, [("dog", 2)])
    newest = leader.commit(5, [("owl", 3)])
    leader.publish()
    leader.check_position(newest)
    trial.check_records([("cat", 1), ("dog", 2), ("owl", 3)])


@case
def equal_records_are_all_seen(trial: SinkTrial) -> None:
    """Records with equal content are different records, within a transaction and in several ones."""
    leader = trial.lead().open()
    leader.commit(1, [("cat", 1), ("cat", 1)])
    leader.commit(2, [("cat", 1)])
    leader.publish()
    leader.commit_and_publish(3, [("cat", 1)])
    trial.check_records([("cat", 1)] * 4)


@case
def many_records_are_all_seen(trial: SinkTrial) -> None:
    """Two thousand records of one transaction are seen, each once."""
    trial.lead().open().commit_and_publish(1, MANY)
    trial.check_records(MANY)


@case
def attempts_that_fail_are_not_seen(trial: SinkTrial) -> None:
    """Records that were encoded and staged for an attempt that is never committed are not seen."""
    leader = trial.lead().open()
    trial.note("leader 1 stages records of an attempt that fails")
    leader.stage(trial.attempt(1), to_batch([("dead", 0)]))
    leader.commit_and_publish(1, [("cat", 1)])
    trial.check_records([("cat", 1)])


@cases(("at once", "in the next process"))
def a_publication_that_fails(trial: SinkTrial, repeated: str) -> None:
    """A publication that fails raises `SinkUnavailable` unless the target has all of it, and is repeated, at once or by
    the next leader: each record is seen once."""
    break_publication = trial.require_breaking()
    leader = trial.lead().open()
    leader.commit_and_publish(1, [("cat", 1)])
    leader.commit(2, [("dog", 2), ("owl", 3)])
    leader.commit(3, [("emu", 4)])
    trial.note("the next publication fails")
    break_publication(leader.sink)
    if repeated == "at once":
        leader.publish()
    else:
        try:
            leader.publish_only()
        except OperatingError as error:
            trial.note(f"that raises {error!r}")
        leader = trial.lead(leader.outbox).open()
        leader.publish()
    leader.commit_and_publish(4, [("yak", 5)])
    trial.check_records([("cat", 1), ("dog", 2), ("owl", 3), ("emu", 4), ("yak", 5)])


@case
def a_target_that_is_gone_is_not_replaced(trial: SinkTrial) -> None:
    """A target that has lost its position is not taken for a new one: the store has publications of it."""
    leader = trial.lead()
    if not leader.sink.has_position:
        raise NotOffered("the target has no position")
    trial.note("leader 1 opens a sink that has published, on a target without a position")
    leader.sink.look(leader.owner)
    try:
        leader.sink.open(leader.owner, has_published=True)
    except StoreMismatch:
        return
    leader.check_position(None)


@cases(("sink", "topology"))
def another_publisher_of_the_target(trial: SinkTrial, part: str) -> None:
    """Two sinks on one target, of one topology or of two, do not take each other's position or records for theirs;
    or the second one is refused before it fences anybody."""
    leader = trial.lead().open()
    newest = leader.commit_and_publish(1, [("cat", 1)])
    second = trial.lead(sink="other") if part == "sink" else trial.lead(topology="other")
    trial.note(f"leader 2 is that of another {part}")
    try:
        second.open()
    except (ConfigError, StoreMismatch) as error:
        leader.commit_and_publish(2, [("dog", 2)])
        trial.check_records([("cat", 1), ("dog", 2)])
        raise NotOffered(str(error)) from error
    second.check_position(None)
    second_newest = second.commit_and_publish(newest.attempt, [("owl", 3)])
    leader.check_position(newest)
    second.check_position(second_newest)
    leader.commit_and_publish(2, [("dog", 2)])
    trial.check_records([("cat", 1), ("owl", 3), ("dog", 2)])


@case
def closing_repeats(trial: SinkTrial) -> None:
    """A sink may be closed before it was opened, and twice."""
    trial.note("a sink is closed that was not opened")
    trial.new_sink().close()
    leader = trial.lead().open()
    leader.commit_and_publish(1, [("cat", 1)])
    trial.note("leader 1 closes its sink twice")
    leader.sink.close()
    leader.sink.close()
    trial.check_records([("cat", 1)])


@case
def sending_without_a_transaction(trial: SinkTrial) -> None:
    """A sink that can send at least once sends from a task that was never opened."""
    sink = trial.new_sink()
    records = sink.encode(to_batch([("cat", 1)]))
    trial.note("a task sends a record")
    if not sink.can_send:
        error = trial.expect_error(ConfigError, partial(sink.send, records))
        raise NotOffered(str(error)) from error
    trial.check_equal("send()", dict(sink.send(records)), {})
    trial.check_records([("cat", 1)])
