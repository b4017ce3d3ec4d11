"""What the driver makes of the items that an attempt's tasks have sent: checked, combined, independent of Spark."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from transactional.core.ports import DeadLetter, DeferredTuples, Partials, Processed
from transactional.core.ports.staged import SplitRows, StagedBytes, StagedFile
from transactional.model.arrow import from_ipc, table_from_ipc
from transactional.model.batch import BatchMetadata, Digest, PartitionId
from transactional.model.errors import ReplayMismatch, TuplesLost
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.messages import find_messages
from transactional.model.user_code.failures import error_of, rank_failure, summed_up
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
    late = [late_tuples(item) for item in in_order if isinstance(item, TuplesToCommit)]
    received, edges = _check_counts(program, reports, late)
    digests = _digests(reports)
    _check_digests(batch, digests)
    instances: dict[str, list[bytes | StagedBytes]] = {}
    for bolt in (item for item in in_order if isinstance(item, PickledBolt)):
        instances.setdefault(bolt.component, []).append(bolt.data)
    partials, split = _partials(program, in_order)
    parts: dict[str, Partials | Sequence[bytes | StagedBytes]] = {**instances, **partials}
    letters = _letters(batch, [item.letter for item in in_order if isinstance(item, SetAside)])
    found = [item.what for item in in_order if isinstance(item, NotFinished)]
    roots = {root: error for each in found for root, error in each.roots.items()}
    return Processed(
        digests,
        parts,
        received,
        late,
        batch.excluded,
        letters,
        batch.letters,
        batch.facts_for_tasks,
        failed=find_messages(batch, roots) if roots else (),
        dropped=sum(each.dropped for each in found),
        reason=next((each.reason for each in found if each.reason), ""),
        edges=edges,
        late_counts=sum((Counter(report.late_counts) for report in reports), Counter()),
        counted=_counted(reports),
        batch=batch,
        executor=executor,
        split=split,
    )


def _counted(reports: Iterable[TaskReport]) -> Counter[tuple[str, str]]:
    """The sums, with those that are 0: a counter is there before it has counted anything."""
    counted = Counter[tuple[str, str]]()
    for report in reports:
        counted.update(report.counted)
    return counted


def late_tuples(item: TuplesToCommit) -> DeferredTuples:
    """Tuples for the commit phase, as they have arrived."""
    if isinstance(item.data, StagedBytes):
        return DeferredTuples(item.target, item.task, item.source, item.stream, (), item.data, item.rows)
    return DeferredTuples(item.target, item.task, item.source, item.stream, from_ipc(item.data))


def _raise_failure(failures: list[TaskFailure]) -> None:
    """Tuples are at fault only if each of the failures can be attributed to one. One that ends the run comes first."""
    if failures:
        failures = sorted(failures, key=rank_failure)
        first = failures[0]
        raise error_of(first.code, *summed_up(first.text, [failure.at_fault for failure in failures]))


def _letters(batch: BatchMetadata, letters: list[DeadLetter]) -> list[DeadLetter]:
    """With the errors, which tasks do not receive."""
    errors = {exclusion.key: exclusion for exclusion in batch.excluded}
    return [replace(letter, exclusion=errors.get(letter.exclusion.key, letter.exclusion)) for letter in letters]


def _check_reports(program: TaskProgram, reports: list[TaskReport]) -> None:
    """Every task has reported once: nothing was lost, and nothing arrived twice."""
    stages = [stage for stage in program.plan.stages if not stage.is_dataframe]
    expected = [(stage.index, task) for stage in stages for task in range(stage.task_count)]
    found = [report.order[:2] for report in reports if not program.plan.stages[report.order[0]].is_dataframe]
    if found != expected:
        raise TuplesLost(f"{len(expected)} tasks were to report once each, {len(found)} reports have come")


def _check_ranges(batch: BatchMetadata, reports: list[TaskReport]) -> None:
    """The tasks have read the ranges of this batch, and not those of another attempt."""
    expected, read = Counter(batch.portions()), Counter(portion for report in reports for portion in report.digests)
    if read != expected:
        partition, offsets = portion = min((read - expected) | (expected - read))
        raise TuplesLost(
            f"offsets {offsets} of partition {partition} were read {read[portion]} times, and are {expected[portion]} "
            "times in the batch: what has come belongs to another attempt"
        )


def _check_counts(
    program: TaskProgram, reports: list[TaskReport], late: list[DeferredTuples]
) -> tuple[dict[str, int], Counter[Subscription]]:
    """Compare, for each subscription, how many tuples were sent with how many arrived; how many each bolt received, and
    how many were sent."""
    sent: Counter[Subscription] = Counter()
    arrived: Counter[Subscription] = Counter()
    for report in reports:
        sent.update(report.sent)
        arrived.update(report.received)
    for tuples in late:
        arrived[tuples.source, tuples.stream, tuples.target] += tuples.rows
    in_tasks = [bolt for bolt in program.bolts.values() if bolt.bolt is not None and not bolt.is_dataframe]
    received = {bolt.id: 0 for bolt in in_tasks}
    for subscription in sorted({*sent, *arrived}):
        source, stream, target = subscription
        if target not in received:
            continue
        received[target] += arrived[subscription]
        if sent[subscription] != arrived[subscription]:
            of = "" if stream == DEFAULT_STREAM else f" on stream {stream!r}"
            raise TuplesLost(
                f"bolt {target!r} received {arrived[subscription]} tuples of {sent[subscription]} that {source!r} has "
                f"emitted for it{of}"
            )
    return received, sent


def _digests(reports: list[TaskReport]) -> dict[PartitionId, Digest]:
    """The digests of each partition; the checksums of one that was read in portions are combined."""
    portions: dict[PartitionId, list[Digest]] = {}
    for (partition, _), digest in sorted(part for report in reports for part in report.digests.items()):
        portions.setdefault(partition, []).append(digest)
    return {partition: parts[0] if len(parts) == 1 else _joined(parts) for partition, parts in portions.items()}


def _joined(parts: list[Digest]) -> Digest:
    checksums = [part.checksum for part in parts]
    checksum = zlib.crc32(repr(checksums).encode()) if any(checksums) else 0
    event_us = max((part.event_us for part in parts if part.event_us is not None), default=None)
    return Digest(sum(part.records for part in parts), checksum, sum(part.bytes for part in parts), event_us)


def _check_digests(batch: BatchMetadata, digests: Mapping[PartitionId, Digest]) -> None:
    for partition, known in batch.digests.items():
        found = digests.get(partition, Digest(0, 0))
        if found != known:
            raise ReplayMismatch(
                f"the replay of partition {partition} {batch.ranges[partition]} read {found.records} records with "
                f"checksum {found.checksum}, recorded were {known.records} with {known.checksum}: the source does not "
                "replay exactly; use an opaque spout in front of opaque states"
            )


def _partials(
    program: TaskProgram, sent: Iterable[Item]
) -> tuple[dict[str, Partials], dict[str, list[pa.Table | SplitRows]]]:
    """What was aggregated, combined; and what is not, from the first that was left split by key."""
    split = dict[str, list[pa.Table | SplitRows]]()
    tables: dict[str, list[pa.Table]] = {committer: [] for committer in program.aggregators}
    staged: dict[str, list[StagedFile]] = {committer: [] for committer in program.aggregators}
    for part in sent:
        if isinstance(part, PartialAggregates):
            split.get(part.committer, tables[part.committer]).append(table_from_ipc(part.data))
        elif isinstance(part, SplitAggregates):
            split.setdefault(part.committer, []).append(part.left)
        elif isinstance(part, StagedAggregates):
            staged[part.committer].append(part.file)
    partials = {
        committer: Partials(aggregator.combine_kinds, aggregator.combine(tables[committer]), staged[committer])
        for committer, aggregator in program.aggregators.items()
    }
    return partials, split
