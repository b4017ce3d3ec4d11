"""Cases of rewinds: transactions come again with other content, under attempts that were never used."""

from __future__ import annotations

from transactional.testing.cases.register import NotOffered
from transactional.testing.sinks.trial import Row, SinkTrial, case

BEFORE: list[Row] = [("cat", 1), ("dog", 2), ("owl", 3)]


@case
def transactions_come_again(trial: SinkTrial) -> None:
    """Txids come again after a rewind, with later attempts, whose records are seen. Records of the rewound attempts
    are taken away if the sink can do that, and stay otherwise."""
    leader = trial.lead().open()
    for txid, row in enumerate(BEFORE, start=1):
        leader.commit_and_publish(txid, [row])
    rewinding = trial.lead(leader.outbox).open()
    rewinding.go_back(1)
    remaining = BEFORE[:1] if rewinding.sink.can_go_back else BEFORE
    trial.check_records(remaining)
    following = trial.lead(rewinding.outbox).open()
    newest = following.commit_and_publish(2, [("emu", 4)])
    following.check_position(newest)
    trial.check_records([*remaining, ("emu", 4)])


@case
def going_back_repeats(trial: SinkTrial) -> None:
    """A rewind that was interrupted goes back once more, and one beyond the newest transaction takes nothing away."""
    leader = trial.lead().open()
    if not leader.sink.can_go_back:
        raise NotOffered("the sink can't take published records away")
    for txid, row in enumerate(BEFORE, start=1):
        leader.commit_and_publish(txid, [row])
    leader.go_back(9)
    trial.check_records(BEFORE)
    rewinding = trial.lead(leader.outbox).open()
    rewinding.go_back(2)
    rewinding = trial.lead(rewinding.outbox).open()
    rewinding.go_back(2)
    trial.check_records(BEFORE[:2])


@case
def going_back_fences(trial: SinkTrial) -> None:
    """A leader that was suspended before a rewind publishes nothing after it."""
    leader = trial.lead().open()
    if not (leader.sink.can_go_back and leader.sink.has_position):
        raise NotOffered("the sink can't take published records away")
    leader.commit_and_publish(1, [("cat", 1)])
    leader.commit_and_publish(2, [("dog", 2)])
    rewinding = trial.lead(leader.outbox).open()
    rewinding.go_back(1)
    leader.commit(3, [("late", 0)])
    leader.expect_fenced()
    trial.check_records([("cat", 1)])
