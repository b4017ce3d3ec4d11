"""Gathers the items of an attempt's tasks on the driver: checks them, and combines them into `Processed`.

The checks compare the counts of senders with those of receivers, the ranges that were read with the batch, and the
digests of a replay with the recorded ones. The result does not depend on the executor that has run the tasks.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

import pyarrow as pa

from transactional.core.ports import DeadLetter, DeferredTuples, Partials, Processed
from transactional.core.ports.staged import SplitRows, StagedBytes, StagedFile
from transactional.model.arrow import from_ipc, table_from_ipc
from transactional.model.batch import BatchMetadata, Digest, PartitionId
from transactional.model.errors import ReplayMismatch, TuplesLost
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.messages import find_messages
from transactional.model.user_code.failures import make_error, rank_failure, sum_up_failures
from transactional.runtime.tasks.items import (
    Item,
    NotFinished,
    PartialAggregates,
    PickledBolt,
    SetAside,
    SplitAggregates,
    StagedAggregates,
    Subscription,
    TaskFailure,
    TaskReport,
    TuplesToCommit,
)
from transactional.runtime.tasks.program import TaskProgram


def gather(program: TaskProgram, batch: BatchMetadata, items: Iterable[Item], *, executor: str = "") -> Processed:
    """Check the items of an attempt that was processed by `executor`, and combine them.

    Raises the error of the first failure among them, `TuplesLost` if tuples were lost or duplicated in transit, or
    something else than the batch was read, `ReplayMismatch` if the batch was recorded with other contents.
    """
    in_order = sorted(items, key=lambda item: item.order)
    _raise_failure([item for item in in_order if isinstance(item, TaskFailure)])
    reports = [item for item in in_order if isinstance(item, TaskReport)]
    _check_reports(program, reports)
    _check_ranges(batch, reports)
    deferred = [to_deferred(item) for item in in_order if isinstance(item, TuplesToCommit)]
    received, edges = _check_counts(program, reports, deferred)
    digests = _digests(reports)
    _check_digests(batch, digests)
    instances: dict[str, list[bytes | StagedBytes]] = {}
    for bolt in (item for item in in_order if isinstance(item, PickledBolt)):
        instances.setdefault(bolt.component, []).append(bolt.data)
    partials, split = _combine_partials(program, in_order)
    parts: dict[str, Partials | Sequence[bytes | StagedBytes]] = {**instances, **partials}
    letters = _letters(batch, [item.letter for item in in_order if isinstance(item, SetAside)])
    unfinished = [item.unfinished for item in in_order if isinstance(item, NotFinished)]
    roots = {root: error for messages in unfinished for root, error in messages.roots.items()}
    return Processed(
        digests,
        parts,
        received,
        deferred,
        batch.excluded,
        letters,
        batch.letters,
        batch.facts_for_tasks,
        failed=find_messages(batch, roots) if roots else (),
        dropped=sum(messages.dropped for messages in unfinished),
        reason=next((messages.reason for messages in unfinished if messages.reason), ""),
        edges=edges,
        late_counts=sum((Counter(report.late_counts) for report in reports), Counter()),
        counted=_counted(reports),
        batch=batch,
        executor=executor,
        split=split,
    )


def _counted(reports: Iterable[TaskReport]) -> Counter[tuple[str, str]]:
    """Return the sums of the bolts' counters, including those that are 0."""
    counted = Counter[tuple[str, str]]()
    for report in reports:
        counted.update(report.counted)
    return counted


def to_deferred(item: TuplesToCommit) -> DeferredTuples:
    """Return tuples for the commit phase as the driver keeps them."""
    if isinstance(item.data, StagedBytes):
        return DeferredTuples(item.target, item.task, item.source, item.stream, (), item.data, item.rows)
    return DeferredTuples(item.target, item.task, item.source, item.stream, from_ipc(item.data))


def _raise_failure(failures: list[TaskFailure]) -> None:
    """Raise the most serious failure. Tuples are at fault only if every failure can be attributed to a tuple."""
    if failures:
        failures = sorted(failures, key=rank_failure)
        first = failures[0]
        raise make_error(first.code, *sum_up_failures(first.text, [failure.at_fault for failure in failures]))


def _letters(batch: BatchMetadata, letters: list[DeadLetter]) -> list[DeadLetter]:
    """Return the letters with the errors of their exclusions, which tasks do not receive."""
    errors = {exclusion.key: exclusion for exclusion in batch.excluded}
    return [replace(letter, exclusion=errors.get(letter.exclusion.key, letter.exclusion)) for letter in letters]


def _check_reports(program: TaskProgram, reports: list[TaskReport]) -> None:
    """Raise `TuplesLost` unless every task has reported exactly once."""
    stages = [stage for stage in program.plan.stages if not stage.is_dataframe]
    expected = [(stage.index, task) for stage in stages for task in range(stage.task_count)]
    reported = [report.order[:2] for report in reports if not program.plan.stages[report.order[0]].is_dataframe]
    if reported != expected:
        raise TuplesLost(f"{len(expected)} tasks were to report once each, {len(reported)} reports have come")


def _check_ranges(batch: BatchMetadata, reports: list[TaskReport]) -> None:
    """Raise `TuplesLost` unless the tasks have read the ranges of this batch exactly once."""
    expected_rows, rows = batch.portion_rows(), sorted(row for report in reports for row, *_ in report.digests)
    if rows != expected_rows:
        expected, actual = Counter(expected_rows), Counter(rows)
        source, index, start, until = row = min((actual - expected) | (expected - actual))
        raise TuplesLost(
            f"offsets [{start}, {until}) of partition {PartitionId(source, index)} were read {actual[row]} times, and "
            f"are {expected[row]} times in the batch: what has come belongs to another attempt"
        )


def _check_counts(
    program: TaskProgram, reports: list[TaskReport], deferred: list[DeferredTuples]
) -> tuple[dict[str, int], Counter[Subscription]]:
    """Compare the number of sent tuples with the number of arrived ones, for each subscription.

    Returns the number of tuples that each bolt has received, and the number of sent tuples by subscription.
    """
    sent: Counter[Subscription] = Counter()
    arrived: Counter[Subscription] = Counter()
    for report in reports:
        sent.update(report.sent)
        arrived.update(report.received)
    for tuples in deferred:
        arrived[tuples.source, tuples.stream, tuples.target] += tuples.rows
    in_tasks = [bolt for bolt in program.bolts.values() if bolt.bolt is not None and not bolt.is_dataframe]
    received = {bolt.id: 0 for bolt in in_tasks}
    for subscription in sorted({*sent, *arrived}):
        source, stream, target = subscription
        if target not in received:
            continue
        received[target] += arrived[subscription]
        if sent[subscription] != arrived[subscription]:
            on_stream = "" if stream == DEFAULT_STREAM else f" on stream {stream!r}"
            raise TuplesLost(
                f"bolt {target!r} received {arrived[subscription]} tuples of {sent[subscription]} that {source!r} has "
                f"emitted for it{on_stream}"
            )
    return received, sent


def _digests(reports: list[TaskReport]) -> dict[PartitionId, Digest]:
    """Return the digest of each partition. Digests of a partition that was read in portions are combined."""
    digests: dict[PartitionId, Digest] = {}
    portions: dict[PartitionId, list[Digest]] = {}
    rows = sorted((row for report in reports for row in report.digests), key=itemgetter(0))
    for (source, index, _, _), records, checksum, size, event_us in rows:
        partition, digest = PartitionId(source, index), Digest(records, checksum, size, event_us)
        if partition in digests:
            portions.setdefault(partition, [digests[partition]]).append(digest)
        else:
            digests[partition] = digest
    return digests | {partition: _combine_digests(parts) for partition, parts in portions.items()}


def _combine_digests(parts: list[Digest]) -> Digest:
    checksums = [part.checksum for part in parts]
    checksum = zlib.crc32(repr(checksums).encode()) if any(checksums) else 0
    event_us = max((part.event_us for part in parts if part.event_us is not None), default=None)
    return Digest(sum(part.records for part in parts), checksum, sum(part.bytes for part in parts), event_us)


def _check_digests(batch: BatchMetadata, digests: Mapping[PartitionId, Digest]) -> None:
    for partition, recorded in batch.digests.items():
        replayed = digests.get(partition, Digest(0, 0))
        if replayed != recorded:
            raise ReplayMismatch(
                f"the replay of partition {partition} {batch.ranges[partition]} read {replayed.records} records with "
                f"checksum {replayed.checksum}, recorded were {recorded.records} with {recorded.checksum}: the "
                "source does not replay exactly; use an opaque spout in front of opaque states"
            )


def _combine_partials(
    program: TaskProgram, items: Iterable[Item]
) -> tuple[dict[str, Partials], dict[str, list[pa.Table | SplitRows]]]:
    """Combine the partial aggregates of each committer.

    Returns two dictionaries by the id of the committer. The first has the combined aggregates. The second has those
    that are left to be combined by key: in the order of the tasks, from the first one that is split by key.
    """
    split = dict[str, list[pa.Table | SplitRows]]()
    tables: dict[str, list[pa.Table]] = {committer: [] for committer in program.aggregators}
    staged: dict[str, list[StagedFile]] = {committer: [] for committer in program.aggregators}
    for part in items:
        if isinstance(part, PartialAggregates):
            split.get(part.committer, tables[part.committer]).append(table_from_ipc(part.data))
        elif isinstance(part, SplitAggregates):
            split.setdefault(part.committer, []).append(part.rows)
        elif isinstance(part, StagedAggregates):
            staged[part.committer].append(part.file)
    partials = {
        committer: Partials(aggregator.combine_kinds, aggregator.combine(tables[committer]), staged[committer])
        for committer, aggregator in program.aggregators.items()
    }
    return partials, split
