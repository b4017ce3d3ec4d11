"""Cases of a spout's life: its identity, its fields, closing and opening, and notices of commits."""

from __future__ import annotations

from transactional.model.batch import EMPTY_BATCH
from transactional.model.user_code.stored_values import read_identity
from transactional.testing.cases.register import NotOffered
from transactional.testing.spouts.trial import SpoutTrial, case


@case
def the_identity_is_that_of_the_source(trial: SpoutTrial) -> None:
    """`identity` has texts only, and is the same in each process, however the source grows."""
    process = trial.open()
    identity = read_identity(process.spout)
    trial.check_equal("the types in identity()", {type(text).__name__ for text in identity.values()}, {"str"})
    trial.append_to_all(2)
    process.read_all()
    trial.check_equal("identity() later", read_identity(process.spout), identity)
    trial.check_equal("identity() of another process", read_identity(trial.open().spout), identity)


@case
def another_source_has_another_identity(trial: SpoutTrial) -> None:
    """A topology whose source was exchanged for another one is refused, by the identity of the spout."""
    process = trial.open()
    other_source = f"{trial.source}_2"
    trial.note("a spout of another source is opened")
    trial.append_words(other_source, 0, ["a1"])
    other_spout = trial.new_spout(source=other_source)
    other_spout.open()
    if read_identity(other_spout) == read_identity(process.spout):
        raise NotOffered("identity() is the same for another source: progress in one may be continued in the other")


@case
def tuples_have_the_declared_fields(trial: SpoutTrial) -> None:
    """Record batches have the columns and types of `output`, in its order."""
    process = trial.open()
    trial.append_to_all(2)
    trial.check_rows(process.read_all())


@case
def a_spout_is_closed_and_opened_again(trial: SpoutTrial) -> None:
    """Closing twice is harmless, and a spout that was closed is opened again for the next run."""
    process = trial.open()
    trial.append_to_all(2)
    process.read_all()
    trial.note("the spout is closed twice, and opened again")
    process.spout.close()
    process.spout.close()
    process.spout.open()
    trial.append_to_all(2)
    trial.check_rows(process.read_all())


@case
def an_examination_does_not_disturb_a_run(trial: SpoutTrial) -> None:
    """A copy for the doctor is opened, plans and is closed, and the spout of the run continues."""
    process = trial.open()
    trial.append_to_all(2)
    process.read_next()
    trial.note("a copy of the spout is opened, plans a batch, and is closed")
    copy = process.spout.copy_unopened()
    copy.open()
    trial.check_equal("identity() of the copy", read_identity(copy), read_identity(process.spout))
    copy.plan(EMPTY_BATCH, replay=False)
    copy.close()
    trial.append_to_all(2)
    trial.check_rows(process.read_all())


@case
def commits_are_noticed(trial: SpoutTrial) -> None:
    """`committed` may come twice for a batch, or not at all, and takes nothing away that a later batch needs."""
    process = trial.open()
    trial.append_to_all(2)
    process.read_all()
    first = process.last
    trial.append_to_all(2)
    second = process.plan_some()
    trial.note("the first records are committed, and noticed twice")
    process.spout.committed(first)
    process.spout.committed(first)
    process.spout.committed(EMPTY_BATCH)
    process.read(second)
    process.read_all()
    trial.append_to_all(1)
    process.read_all()
    restarted = trial.open()
    restarted.last, restarted.rows = process.last, process.rows
    trial.note("the newest batch is noticed at the start")
    restarted.spout.committed(process.last)
    trial.append_to_all(1)
    trial.check_rows(restarted.read_all())
