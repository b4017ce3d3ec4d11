"""Examines the source: whether it still has the records that come next, and whether the topology has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from transactional.core.ports import Spout
from transactional.core.ports.examining import Diagnosis, Problem
from transactional.core.store import StoreReader, TopologyStatus
from transactional.core.store.rules import ANEW, COMMITTED, fingerprint_changes, meanings_lost
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, OffsetRange, PartitionId
from transactional.model.errors import BatchLost, ConfigError, OperatingError
from transactional.runtime.engine.streams import fingerprint_as_stored, stream_names
from transactional.topology.topology import Topology

ATTEMPTS_MAX = 1_000


def committed_batch(store: StoreReader, topology: Topology) -> BatchMetadata:
    """Return the batch of the last committed transaction by its partitions' present names, or an empty batch."""
    for record in store.attempts(topology.id, limit=ATTEMPTS_MAX):
        if record.phase == COMMITTED:
            return stream_names(topology, store).with_current_names(record.batch, record.attempt.txid)
    return EMPTY_BATCH


def examine_source(
    topology: Topology, store: StoreReader, status: TopologyStatus | None, *, has_sinks: bool
) -> Iterator[Diagnosis]:
    """Yield what is wrong with the source, and with the topology's fingerprint, which is computed from the source.

    Without `has_sinks` the targets of the sinks can't be read, so the fingerprint is not examined.
    """
    if status is None or not status.committed_txid:
        return
    batch = committed_batch(store, topology)
    source = f"source of {topology.spout_id!r}"
    try:
        names = stream_names(topology, store)
        held_ranges = topology.spout.parts.examination.read_held_ranges(
            [partition for partition in batch.ranges if not names.is_removed(partition)]
        )
        positions = list(_examine_positions(topology.spout, batch, held_ranges, source))
        yield from positions
        with topology.with_open_spout(prepares_sinks=has_sinks) as examined:
            if has_sinks:
                yield from _examine_fingerprint(examined, store, status)
            is_unknown = not batch.ranges.keys() <= held_ranges.keys()
            is_queue = topology.spout.parts.messages.is_acked  # it does not hold what it handed out
            if is_unknown and not positions and not is_queue:
                examined.spout.plan(batch, replay=False)
    except BatchLost as error:
        yield Diagnosis(Problem.SOURCE_LOST, source, str(error), "as it says")
    except (ConfigError, OperatingError) as error:
        remedy = "make sure that the source can be reached, and try again"
        yield Diagnosis(Problem.SOURCE_UNAVAILABLE, source, str(error), remedy)


def _examine_fingerprint(topology: Topology, store: StoreReader, status: TopologyStatus) -> Iterator[Diagnosis]:
    is_bound = status.committed_txid and status.fingerprint
    fingerprint = fingerprint_as_stored(topology, store, topology.fingerprint())
    changes = fingerprint_changes(status.fingerprint, fingerprint) if is_bound else []
    if changes:
        remedy = "give it a new id to start over; or start it with --accept-changes, if the progress still applies"
        if lost_meanings := list(meanings_lost(status.fingerprint, fingerprint)):
            changes, remedy = lost_meanings, f"this can not be accepted. {ANEW}"
        yield Diagnosis(Problem.TOPOLOGY_CHANGED, f"topology {topology.id!r}", "; ".join(changes), remedy)


def _examine_positions(
    spout: Spout, batch: BatchMetadata, held_ranges: Mapping[PartitionId, OffsetRange | None], source: str
) -> Iterable[Diagnosis]:
    replays_exactly = spout.replays_exactly
    for partition, position in sorted(batch.positions().items()):
        if partition not in held_ranges:
            continue
        held_range, place = held_ranges[partition], f"{source}, {partition}"
        if held_range is None:
            problem = f"the topic that was read up to offset {position} is gone, or was recreated"
            yield _diagnosis_of_loss(Problem.SOURCE_RECREATED, place, problem, replays_exactly=replays_exactly)
        elif held_range.start > position:
            lost_records = held_range.start - position
            problem = f"offset {position} comes next, and the log starts at {held_range.start}: {lost_records} are lost"
            yield _diagnosis_of_loss(Problem.SOURCE_LOST, place, problem, replays_exactly=replays_exactly)
        elif held_range.until < position:
            problem = (
                f"offset {position} comes next, and the log ends at {held_range.until}: what was read has been "
                "truncated"
            )
            remedy = (
                "records under these offsets can't be distinguished from those that were read; restore the topic, or "
                "start a topology with a new id"
            )
            yield Diagnosis(Problem.SOURCE_CUT_OFF, place, problem, remedy)


def _diagnosis_of_loss(problem: Problem, place: str, text: str, *, replays_exactly: bool) -> Diagnosis:
    if replays_exactly:
        remedy = (
            "a transactional spout may not skip records: restore the source, continue with the opaque spout, or start "
            "a topology with a new id"
        )
        return Diagnosis(problem, place, text, remedy)
    remedy = "no repair is needed: the opaque spout continues with what is available, from its beginning"
    return Diagnosis(problem, place, text, remedy, is_harmless=True)
