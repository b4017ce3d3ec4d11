"""What the driver makes of the items that an attempt's tasks have sent: checked, combined, free of lineage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa

from transactional import errors
from transactional.batch import BatchMetadata, Digest, PartitionId
from transactional.errors import AttemptLost, BoltFailed, OperatingError, ReplayMismatch, TransactionalError
from transactional.ports import Partials, Processed
from transactional.tasks import Item, Report, TaskProgram
from transactional.topology import GroupingKind

_ERROR_OF = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, TransactionalError)
}


def gather(program: TaskProgram, batch: BatchMetadata, items: Iterable[Item]) -> Processed:
    """Check an attempt's items and put them together.

    Raises the error of the first failure among them, `AttemptLost` when tuples were lost or doubled on their way
    (row T12), `ReplayMismatch` when the batch was recorded with other contents.
    """
    by_kind: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda item: item.order):
        by_kind.setdefault(item.kind, []).append(item)
    _raise_failure(by_kind.get("failure", []))
    _check_reports(program, by_kind.get("report", []))
    received, emitted, digests = _total([item.payload for item in by_kind.get("report", [])])
    _check_counts(program, received, emitted)
    _check_digests(batch, digests)
    parts: dict[str, Partials | list[bytes]] = {}
    for item in by_kind.get("committer", []):
        instances = parts.setdefault(item.component, [])
        assert isinstance(instances, list)
        instances.append(item.payload)
    return Processed(digests, {**parts, **_partials(program, by_kind.get("partial", []))}, received)


def _raise_failure(failures: list[Item]) -> None:
    for item in failures:
        code, text = item.payload
        error = _ERROR_OF.get(code, BoltFailed)
        raise error(text) if issubclass(error, OperatingError | errors.FailedException) else BoltFailed(text)


def _check_reports(program: TaskProgram, reports: list[Item]) -> None:
    """Every task has reported once: nothing of it was lost, and nothing came twice."""
    stages = [stage for stage in program.plan.stages if not stage.is_dataframe]
    expected = [(stage.index, task) for stage in stages for task in range(stage.task_count)]
    found = [item.order[:2] for item in reports if not program.plan.stages[item.order[0]].is_dataframe]
    if found != expected:
        raise AttemptLost(f"{len(expected)} tasks were to report once each, {len(found)} reports have come")


def _total(reports: list[Report]) -> tuple[Counter[str], Counter[str], dict[PartitionId, Digest]]:
    received: Counter[str] = Counter()
    emitted: Counter[str] = Counter()
    digests: dict[PartitionId, Digest] = {}
    for report in reports:
        received.update(report.received)
        emitted.update(report.emitted)
        digests.update(report.digests)
    return received, emitted, digests


def _check_counts(program: TaskProgram, received: Mapping[str, int], emitted: Mapping[str, int]) -> None:
    for component in program.topology.components:
        if component.id in program.aggregators or component.is_dataframe:
            continue
        copies = {g.source: component.parallelism if g.kind is GroupingKind.ALL else 1 for g in component.inputs}
        expected = sum(emitted[source] * copies[source] for source in copies)
        if received[component.id] != expected:
            raise AttemptLost(
                f"bolt {component.id!r} received {received[component.id]} tuples of {expected} that were emitted for it"
            )


def _check_digests(batch: BatchMetadata, digests: Mapping[PartitionId, Digest]) -> None:
    for partition, known in batch.digests.items():
        found = digests.get(partition, Digest(0, 0))
        if found != known:
            raise ReplayMismatch(
                f"the replay of partition {partition} {batch.ranges[partition]} read {found.records} records with "
                f"checksum {found.checksum}, recorded were {known.records} with {known.checksum}: the source does not "
                "replay exactly; use an opaque spout in front of opaque states"
            )


def _partials(program: TaskProgram, items: list[Item]) -> dict[str, Partials]:
    tables: dict[str, list[pa.Table]] = {}
    for item in items:
        tables.setdefault(item.component, []).append(pa.Table.from_batches(*_with_schema(item.payload)))
    return {
        committer: Partials(aggregator.combine_kinds, aggregator.combine(tables.get(committer, [])))
        for committer, aggregator in program.aggregators.items()
    }


def _with_schema(data: bytes) -> tuple[list[pa.RecordBatch], pa.Schema]:
    with pa.ipc.open_stream(data) as reader:
        return list(reader), reader.schema
