"""The doctor's examination of the source: are what was read, and what comes next, still there?"""

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

ATTEMPTS_LOOKED_AT = 1_000


def committed_batch(store: StoreReader, topology: Topology) -> BatchMetadata:
    """The batch of the last committed transaction, by the names of today; the empty one if there is none."""
    for record in store.attempts(topology.id, limit=ATTEMPTS_LOOKED_AT):
        if record.phase == COMMITTED:
            return stream_names(topology, store).with_current_names(record.batch, record.attempt.txid)
    return EMPTY_BATCH


def examine_source(topology: Topology, store: StoreReader, status: TopologyStatus | None) -> Iterator[Diagnosis]:
    """What is wrong with the source, and with the topology's fingerprint, which needs the source."""
    if status is None or not status.committed_txid:
        return
    after = committed_batch(store, topology)
    where = f"source of {topology.spout_id!r}"
    try:
        names = stream_names(topology, store)
        held = topology.spout.read_held_ranges(
            [partition for partition in after.ranges if not names.is_removed(partition)]
        )
        positions = list(_examine_positions(topology.spout, after, held, where))
        yield from positions
        with topology.examined() as examined:
            yield from _examine_fingerprint(examined, store, status)
            is_unknown = not after.ranges.keys() <= held.keys()
            if is_unknown and not positions and not topology.spout.is_acked:  # what a queue hands out is gone
                examined.spout.plan(after, replay=False)
    except BatchLost as error:
        yield Diagnosis(Problem.SOURCE_LOST, where, str(error), "as it says")
    except (ConfigError, OperatingError) as error:
        remedy = "make sure that the source can be reached, and try again"
        yield Diagnosis(Problem.SOURCE_UNAVAILABLE, where, str(error), remedy)


def _examine_fingerprint(topology: Topology, store: StoreReader, status: TopologyStatus) -> Iterator[Diagnosis]:
    is_bound = status.committed_txid and status.fingerprint
    given = fingerprint_as_stored(topology, store, topology.fingerprint())
    changes = fingerprint_changes(status.fingerprint, given) if is_bound else []
    if changes:
        remedy = "give it a new id to start over; or start it with --accept-changes, if the progress still applies"
        if lost := list(meanings_lost(status.fingerprint, given)):
            changes, remedy = lost, f"this can not be accepted. {ANEW}"
        yield Diagnosis(Problem.TOPOLOGY_CHANGED, f"topology {topology.id!r}", "; ".join(changes), remedy)


def _examine_positions(
    spout: Spout, after: BatchMetadata, held: Mapping[PartitionId, OffsetRange | None], where: str
) -> Iterable[Diagnosis]:
    replays_exactly = spout.replays_exactly
    for partition, position in sorted(after.positions().items()):
        if partition not in held:
            continue
        there, at = held[partition], f"{where}, {partition}"
        if there is None:
            what = f"the topic that was read up to offset {position} is gone, or was recreated"
            yield _passed(Problem.SOURCE_RECREATED, at, what, replays_exactly=replays_exactly)
        elif there.start > position:
            what = (
                f"offset {position} comes next, and the log starts at {there.start}: {there.start - position} are lost"
            )
            yield _passed(Problem.SOURCE_LOST, at, what, replays_exactly=replays_exactly)
        elif there.until < position:
            what = f"offset {position} comes next, and the log ends at {there.until}: what was read has been truncated"
            remedy = (
                "records under these offsets can't be distinguished from those that were read; restore the topic, or "
                "start a topology with a new id"
            )
            yield Diagnosis(Problem.SOURCE_CUT_OFF, at, what, remedy)


def _passed(problem: Problem, where: str, what: str, *, replays_exactly: bool) -> Diagnosis:
    if replays_exactly:
        remedy = (
            "a transactional spout may not skip records: restore the source, continue with the opaque spout, or start "
            "a topology with a new id"
        )
        return Diagnosis(problem, where, what, remedy)
    remedy = "no repair is needed: the opaque spout continues with what is available, from its beginning"
    return Diagnosis(problem, where, what, remedy, is_harmless=True)
