"""Cases of replays: what was recorded is read again, in any process, or is an error."""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice

from transactional.core.ports import RefusedRecord
from transactional.model.batch import BatchMetadata, Offset, OffsetRange
from transactional.model.errors import BatchLost, OperatingError
from transactional.testing.cases.register import BrokenPromise, NotOffered
from transactional.testing.spouts.trial import Rows, SpoutTrial, case, read_rows


@case
def a_batch_reads_the_same_again(trial: SpoutTrial) -> None:
    """The same batch has the same tuples in the same order, however often it is read."""
    process = trial.open()
    trial.append_to_all(4)
    batch = process.plan_some()
    rows = process.read(batch)
    for _ in range(2):
        trial.check_equal("the same batch", process.read(batch), rows)


@case
def a_batch_is_stored_as_it_is(trial: SpoutTrial) -> None:
    """A batch and its metadata come back from JSON as they were."""
    process = trial.open()
    trial.append_to_all(2)
    batch = process.plan_some()
    stored = process.record(batch)
    for partition in batch.ranges:
        metadata, stored_metadata = (repr(some.metadata.get(partition)) for some in (batch, stored))
        trial.check_equal("the metadata in the store", stored_metadata, metadata)


@case
def tasks_read_with_a_reader_from_before_open(trial: SpoutTrial) -> None:
    """A reader is sent to tasks as it was when the topology was built: it needs nothing of what `open` has made."""
    process = trial.open()
    trial.append_to_all(2)
    batch = process.plan_some()
    rows = process.read(batch)
    trial.note("a spout that is not open has the reader")
    trial.check_equal("the same batch", process.read(batch, trial.new_spout().reader()), rows)


@case
def a_restart_continues(trial: SpoutTrial) -> None:
    """Another process reads a recorded batch again, whatever has come since, and continues after it."""
    process = trial.open()
    trial.append_to_all(2)
    batch = process.plan_some()
    rows = process.read(batch)
    recorded = batch.to_json()
    process.spout.close()
    trial.append_to_all(2)
    second = trial.open()
    batch = second.record(BatchMetadata.from_json(recorded))
    second.spout.parts.replays.check_replay(batch)
    trial.check_equal("the recorded batch", second.read(batch), rows)
    second.rows = {partition: part for partition, part in rows.items() if part}
    trial.check_rows(second.read_all())


@case
def another_number_of_tasks_reads_the_same(trial: SpoutTrial) -> None:
    """Three tasks share a batch without loss, and one task reads a batch that was planned for three."""
    process = trial.open(parallelism=3)
    trial.append_to_all(5)
    rows = process.read_all()
    trial.check_rows(rows, in_order=False)
    second = trial.open()
    trial.append_to_all(2)
    batch = process.plan_some()
    trial.check_equal("a batch that was planned for three tasks", second.read(batch), process.read(batch))
    second.last, second.rows = process.last, rows
    trial.check_rows(second.read_all(), in_order=False)


@case
def a_reader_that_is_left_does_no_harm(trial: SpoutTrial) -> None:
    """A task that stops in the middle of a batch has no effect on others."""
    process = trial.open()
    trial.append(0, 1_200)
    batch = process.plan_some()
    [(partition, offsets), *_] = batch.non_empty()
    trial.note("a task begins to read, and stops")
    records = process.spout.reader().read(partition, offsets, batch.metadata.get(partition))
    next(records, None)
    if isinstance(records, Generator):
        records.close()
    trial.check_rows(process.read_all())


@case
def less_than_a_batch_is_an_error(trial: SpoutTrial) -> None:
    """If records of a batch are missing, reading it raises an error: it never yields fewer tuples."""
    process = trial.open()
    trial.append(0, 4)
    batch = process.plan_last()
    rows = process.read(batch)
    trial.truncate(0)
    try:
        less = process.read(batch)
    except BrokenPromise:
        raise
    except Exception as error:
        trial.note(f"that raises {type(error).__name__}")
        return
    trial.check_equal("the same batch, or an error", less, rows)


@case
def a_lost_batch_ends_the_run(trial: SpoutTrial) -> None:
    """`check_replay` raises `BatchLost` for a batch that can never be read again, so that nobody waits for it."""
    process = trial.open()
    if not process.spout.replays_exactly:
        raise NotOffered("an opaque spout plans a replay again")
    trial.append(0, 4)
    batch = process.plan_last()
    check_replay = process.spout.parts.replays.check_replay
    check_replay(batch)
    trial.truncate(0)
    trial.note("the batch is to be replayed")
    try:
        check_replay(batch)
    except (BatchLost, OperatingError):
        return
    raise NotOffered("check_replay accepts a batch that has lost records: it is tried again and again")


@case
def an_opaque_replay_is_planned_again(trial: SpoutTrial) -> None:
    """A replay of an opaque spout is always a batch, with what is there by then, and nothing comes twice."""
    process = trial.open()
    if process.spout.replays_exactly:
        raise NotOffered("a transactional spout replays a batch as recorded")
    empty_replay = process.plan_some(replay=True)
    trial.check_equal("a replay of nothing", [part for part in process.read(empty_replay).values() if part], [])
    trial.append_to_all(3)
    process.plan_some()
    trial.append(0, 2)
    batch = process.plan_some(replay=True)
    process.rows = {partition: part for partition, part in process.read(process.record(batch)).items() if part}
    trial.check_rows(process.read_all())


@case
def a_range_is_read_in_parts(trial: SpoutTrial) -> None:
    """Parts of a range of offsets are read by several tasks."""
    process = trial.open()
    trial.append(0, 4)
    batch = process.plan_some()
    [(partition, offsets), *_] = batch.non_empty()
    if len(offsets) == 1:
        raise NotOffered("the offsets of the spout count batches")
    metadata, reader = batch.metadata.get(partition), process.spout.reader()
    middle = Offset(offsets.start + 1)
    trial.note(f"tasks read {offsets} in two parts")
    parts = [OffsetRange(offsets.start, middle), OffsetRange(middle, offsets.until)]
    rows = [row for part in parts for row in read_rows(process.spout, reader.read(partition, part, metadata))]
    trial.check_equal("the parts", rows, process.read(batch)[partition])


@case
def ranges_that_are_read_together_keep_their_tuples(trial: SpoutTrial) -> None:
    """A reader that reads several ranges in one record batch says which tuples are of which range."""
    process = trial.open()
    trial.append_to_all(4)
    batch = process.plan_some()
    ranges = list(batch.non_empty())
    records = process.spout.reader().read_together(ranges)
    if records is None:
        raise NotOffered("the reader reads one range after the other")
    trial.note("a task reads all ranges together")
    rows: Rows = {partition: [] for partition, _ in ranges}
    for part in records:
        if isinstance(part, RefusedRecord):
            continue
        tuples = iter(read_rows(process.spout, part[:1]))
        for number, count in part[1]:
            rows[ranges[number][0]] += islice(tuples, count)
        trial.check_equal("tuples of no range", list(tuples), [])
    trial.check_equal("the tuples of each range", rows, process.read(batch))


@case
def a_range_beyond_the_end_is_an_error(trial: SpoutTrial) -> None:
    """A reader raises an `OperatingError` for offsets that are not there."""
    process = trial.open()
    trial.append(0, 2)
    batch = process.plan_some()
    [(partition, offsets), *_] = batch.non_empty()
    beyond = OffsetRange(offsets.start, Offset(offsets.until + 1))
    trial.note(f"a task reads {beyond}")
    reader, metadata = process.spout.reader(), batch.metadata.get(partition)
    trial.expect_error(OperatingError, lambda: list(reader.read(partition, beyond, metadata)))


@case
def offsets_are_those_of_the_records(trial: SpoutTrial) -> None:
    """A reader that knows the offsets of its records gives one for each, within the range and in order."""
    process = trial.open()
    reader = process.spout.reader()
    if not reader.knows_offsets:
        raise NotOffered("the reader does not know the offsets of records")
    trial.append(0, 4)
    batch = process.plan_some()
    [(partition, offsets), *_] = batch.non_empty()
    trial.note(f"a task reads {offsets} with the offsets")
    pairs = list(reader.read_with_offsets(partition, offsets, batch.metadata.get(partition)))
    rows = read_rows(process.spout, [records for records, _ in pairs])
    trial.check_equal("the tuples", rows, process.read(batch)[partition])
    numbers = [number for _, array in pairs for number in array.to_pylist()]
    trial.check_equal("the number of offsets", len(numbers), len(rows))
    inside = sorted({number for number in numbers if offsets.start <= number < offsets.until})
    trial.check_equal("the offsets", numbers, inside)
