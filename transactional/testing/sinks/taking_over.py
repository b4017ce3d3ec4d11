"""Cases of several leaders: one that takes over fences the earlier one, and settles with what the target has."""

from __future__ import annotations

from transactional.model.errors import StoreMismatch
from transactional.testing.cases.register import NotOffered
from transactional.testing.sinks.trial import SinkTrial, case


@case
def looking_fences_nobody(trial: SinkTrial) -> None:
    """A process that only looks at the target changes nothing: the leader continues to publish."""
    leader = trial.lead().open()
    newest = leader.commit_and_publish(1, [("cat", 1)])
    second = trial.lead(leader.outbox)
    trial.note("leader 2 looks at the target")
    position = second.sink.look(second.owner)
    if position is not None:
        trial.check_equal("look()", position.publication, newest)
    leader.commit(2, [("dog", 2)])
    trial.note("leader 1 still leads")
    leader.publish_only()
    trial.check_records([("cat", 1), ("dog", 2)])


@case
def what_is_published_is_not_published_again(trial: SinkTrial) -> None:
    """A leader that dies after a publication, and before the store has noted it, has published: the next leader sees
    that in the position, or sends the records again with the same keys, and each is seen once."""
    leader = trial.lead().open()
    leader.commit_and_publish(1, [("cat", 1)])
    leader.commit(2, [("dog", 2)])
    newest = leader.commit(3, [("owl", 3)])
    leader.publish_only()
    second = trial.lead(leader.outbox).open()
    second.check_position(newest)
    second.publish()
    second.commit_and_publish(4, [("emu", 4)])
    trial.check_records([("cat", 1), ("dog", 2), ("owl", 3), ("emu", 4)])


@case
def an_earlier_leader_is_fenced(trial: SinkTrial) -> None:
    """A leader publishes nothing after another one has opened the sink, and learns that it is fenced."""
    leader = trial.lead().open()
    if not leader.sink.has_position:
        raise NotOffered("a target without a position fences nobody: late records have the same keys")
    leader.commit_and_publish(1, [("cat", 1)])
    second = trial.lead(leader.outbox).open()
    leader.commit(2, [("late", 0)])
    leader.expect_fenced()
    trial.check_records([("cat", 1)])
    second.commit_and_publish(2, [("dog", 2)])
    trial.check_records([("cat", 1), ("dog", 2)])


@case
def late_records_have_the_same_keys(trial: SinkTrial) -> None:
    """A leader that was suspended sends records that its successor has already sent: each is seen once."""
    leader = trial.lead().open()
    if leader.sink.has_position:
        raise NotOffered("the target has a position, and fences earlier leaders")
    leader.commit(1, [("cat", 1), ("dog", 2)])
    late = list(leader.outbox.waiting)
    second = trial.lead(leader.outbox).open()
    second.publish()
    trial.note("leader 1 publishes the same transaction")
    leader.sink.publish(late)
    trial.check_records([("cat", 1), ("dog", 2)])


@case
def the_same_leader_opens_again(trial: SinkTrial) -> None:
    """A leader that has lost its connection opens the sink again with the same fence id, and continues."""
    leader = trial.lead().open()
    newest = leader.commit_and_publish(1, [("cat", 1)])
    leader.open().check_position(newest)
    leader.commit_and_publish(2, [("dog", 2)])
    trial.check_records([("cat", 1), ("dog", 2)])


@case
def the_target_of_another_store(trial: SinkTrial) -> None:
    """A process with another store that looks at the target gets the position with the id of the leader's store, or
    `StoreMismatch`. The leader continues to publish."""
    leader = trial.lead().open()
    newest = leader.commit_and_publish(1, [("cat", 1)])
    second = trial.lead(store="store_2")
    trial.note("leader 2, with another store, looks at the target")
    try:
        position = second.sink.look(second.owner)
    except StoreMismatch as error:
        trial.note(f"that raises {error!r}")
    else:
        if second.sink.has_position:
            expected = (leader.owner.store_id, newest)
            actual = None if position is None else (position.store_id, position.publication)
            trial.check_equal("look()", actual, expected)
    leader.commit(2, [("dog", 2)])
    leader.publish_only()
    trial.check_records([("cat", 1), ("dog", 2)])
