"""Cases of planning: each batch begins where the recorded one before it ends, and says itself where it ends."""

from __future__ import annotations

from transactional.model.batch import EMPTY_BATCH, BatchLimit
from transactional.model.errors import BoltFailed, ConfigError, OperatingError
from transactional.testing.cases.register import BrokenPromise, NotOffered
from transactional.testing.spouts.trial import SpoutTrial, case


@case
def nothing_new_is_no_batch(trial: SpoutTrial) -> None:
    """A source with nothing new has no batch: neither an empty one, nor one that was read to its end."""
    process = trial.open()
    trial.check_equal("plan() of an empty source", process.plan(), None)
    trial.append(0, 2)
    trial.check_rows(process.read_all())
    trial.check_equal("plan() at the end", process.plan(), None)


@case
def records_come_once_in_order(trial: SpoutTrial) -> None:
    """Records are in one batch each, those of a partition in their order, however the source grows meanwhile."""
    process = trial.open()
    trial.append_to_all(3)
    process.read_next()
    trial.append(0, 2)
    process.read_next()
    trial.append(trial.partitions - 1, 1)
    trial.check_rows(process.read_all())


@case
def many_records_come_once(trial: SpoutTrial) -> None:
    """More than a thousand records come once, in as many batches as the spout makes of them."""
    process = trial.open()
    trial.append(0, 1_200)
    trial.append(trial.partitions - 1, 10)
    trial.check_rows(process.read_all())


@case
def a_batch_ends_where_it_was_planned(trial: SpoutTrial) -> None:
    """Records that come after the planning are in a later batch."""
    process = trial.open()
    trial.append_to_all(2)
    batch = process.plan_some()
    rows = process.read(batch)
    trial.append_to_all(2)
    trial.check_equal("the same batch", process.read(batch), rows)
    trial.check_rows(process.read_all())


@case
def a_batch_that_was_not_recorded_is_planned_again(trial: SpoutTrial) -> None:
    """If a planned batch can't be recorded, the next planning begins at the same place."""
    process = trial.open()
    trial.append_to_all(2)
    process.plan_some()
    trial.note("the store does not take the batch")
    trial.append(0, 1)
    trial.check_rows(process.read_all())


@case
def planning_goes_back_with_the_progress(trial: SpoutTrial) -> None:
    """Planning begins where the earlier batch ends after a rewind."""
    process = trial.open()
    trial.append_to_all(2)
    process.read_all()
    earlier_batch, earlier_rows = process.last, {partition: list(part) for partition, part in process.rows.items()}
    trial.append_to_all(2)
    process.read_all()
    trial.note("the progress goes back to the first records")
    process.last, process.rows = earlier_batch, earlier_rows
    trial.check_rows(process.read_all())


@case
def batches_keep_a_limit(trial: SpoutTrial) -> None:
    """A batch has no more records than the limit that `target_latency_ms` sets, and none is lost."""
    process = trial.open()
    planning = process.spout.parts.planning
    if not planning.can_limit_batches:
        raise NotOffered("the batches of the spout can't be limited")
    trial.note("the batches are limited to 2 records")
    try:
        planning.limit_batches(BatchLimit(2, None, "check_spout"))
    except ConfigError as error:
        raise NotOffered(str(error)) from error
    trial.append(0, 5)
    while (rows := process.read_next()) is not None:
        if (count := sum(map(len, rows.values()))) > 2:
            raise BrokenPromise(f"Expected of a batch: at most 2 tuples\nCame: {count}")
    trial.check_rows(process.rows)


@case
def a_partition_joins_later(trial: SpoutTrial) -> None:
    """A partition that has its first record later joins then, and all others keep their positions."""
    trial.require_partitions()
    process = trial.open()
    trial.append(1, 2)
    process.read_all()
    trial.append(0, 2)
    process.read_next()
    trial.append_to_all(1)
    trial.check_rows(process.read_all())


@case
def a_partition_that_is_away_keeps_its_position(trial: SpoutTrial) -> None:
    """While a partition is away the spout reads the others, or raises an error; when it is back it is read on."""
    process = trial.open()
    trial.append_to_all(2)
    process.read_all()
    with trial.hide(0):
        for partition in range(1, trial.partitions):
            trial.append(partition, 1)
        try:
            process.read_all()
        except (OperatingError, BoltFailed) as error:
            trial.note(f"that raises {type(error).__name__}")
    trial.note("partition 0 is back")
    trial.append_to_all(2)
    trial.check_rows(process.read_all())


@case
def the_lag_counts_unread_records(trial: SpoutTrial) -> None:
    """The lag is the number of records that no batch has read, as of the last planning, or it is unknown."""
    process = trial.open()
    trial.append(0, 3)
    batch, backlog = process.plan_some(), process.spout.parts.backlog
    if backlog.lag(EMPTY_BATCH) is None:
        raise NotOffered("the spout does not know its lag")
    trial.check_equal("lag() at the start", backlog.lag(EMPTY_BATCH), 3)
    while (following := process.plan()) is not None:
        batch = process.record(following)
    trial.check_equal("lag() at the end", backlog.lag(batch), 0)
