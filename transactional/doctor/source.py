"""The doctor's look at the source: is what was read, and what comes next, still there?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from transactional.batch import EMPTY_BATCH, BatchMetadata
from transactional.doctor.findings import Diagnosis, Problem
from transactional.errors import BatchLost, ConfigError, OperatingError
from transactional.store import CoordinatorStore, TopologyStatus
from transactional.store_rules import COMMITTED, fingerprint_changes
from transactional.topology.topology import Topology
from verifier.findings import CheckImpossible
from verifier.source import KafkaSource, look, topic_of

ATTEMPTS_LOOKED_AT = 1_000


def committed_batch(store: CoordinatorStore, topology_id: str) -> BatchMetadata:
    """The batch of the last committed transaction; the empty one when there is none."""
    attempts = store.attempts(topology_id, limit=ATTEMPTS_LOOKED_AT)
    return next((record.batch for record in attempts if record.phase == COMMITTED), EMPTY_BATCH)


def kafka_of(topology: Topology) -> KafkaSource | None:
    """The Kafka cluster that a topology reads from; None for another source."""
    connection: Any = getattr(topology.spout, "connection", None)
    if connection is None or not hasattr(connection, "bootstrap_servers"):
        return None
    seconds = connection.timeout_ms / 1000
    return KafkaSource(connection.bootstrap_servers, connection.client(), connection.isolation, seconds)


def examine_source(topology: Topology, store: CoordinatorStore, status: TopologyStatus | None) -> Iterator[Diagnosis]:
    """What is wrong with the source, and with the topology's fingerprint, which needs the source."""
    if status is None or not status.committed_txid:
        return
    after = committed_batch(store, topology.id)
    kafka, spout = kafka_of(topology), topology.spout
    where = f"source of {topology.spout_id!r}"
    try:
        if kafka is not None:
            yield from _examine_kafka(kafka, after, where, replays_exactly=spout.replays_exactly)
        spout.open()
        try:
            yield from _examine_fingerprint(topology, status)
            if kafka is None:
                spout.plan(after, replay=False)
        finally:
            spout.close()
    except BatchLost as error:
        yield Diagnosis(Problem.SOURCE_LOST, where, str(error), "as it says")
    except (CheckImpossible, ConfigError, OperatingError) as error:
        remedy = "see to it that the source can be reached, and ask again"
        yield Diagnosis(Problem.SOURCE_UNAVAILABLE, where, str(error), remedy)


def _examine_fingerprint(topology: Topology, status: TopologyStatus) -> Iterator[Diagnosis]:
    is_bound = status.committed_txid and status.fingerprint
    changes = fingerprint_changes(status.fingerprint, topology.fingerprint()) if is_bound else []
    if changes:
        remedy = "give it a new id to start anew; or start it with --accept-changes, if the stored progress still fits"
        yield Diagnosis(Problem.TOPOLOGY_CHANGED, f"topology {topology.id!r}", "; ".join(changes), remedy)


def _examine_kafka(
    kafka: KafkaSource, after: BatchMetadata, where: str, *, replays_exactly: bool
) -> Iterable[Diagnosis]:
    states = look(kafka, [(partition.source, partition.index) for partition in sorted(after.ranges)])
    # Of a topic that was made anew, and is read already, the positions in the old one are kept.
    current = {topic_of(partition.source) for partition in after.ranges if states[(partition.source, partition.index)]}
    for partition, position in sorted(after.positions().items()):
        state = states[(partition.source, partition.index)]
        at = f"{where}, {partition}"
        if state is None:
            if topic_of(partition.source) in current:
                continue
            what = f"the topic that was read up to offset {position} is gone, or was made anew"
            yield _passed(Problem.SOURCE_RECREATED, at, what, replays_exactly=replays_exactly)
        elif state.start > position:
            what = (
                f"offset {position} comes next, and the log starts at {state.start}: {state.start - position} are lost"
            )
            yield _passed(Problem.SOURCE_LOST, at, what, replays_exactly=replays_exactly)
        elif state.end < position:
            what = f"offset {position} comes next, and the log ends at {state.end}: what was read has been cut off"
            remedy = (
                "records that come under these offsets can't be told from those that were read; restore the topic, or "
                "start a topology with a new id"
            )
            yield Diagnosis(Problem.SOURCE_CUT_OFF, at, what, remedy)


def _passed(problem: Problem, where: str, what: str, *, replays_exactly: bool) -> Diagnosis:
    if replays_exactly:
        remedy = (
            "a transactional spout may not skip records: restore the source, go on with the opaque spout, or start a "
            "topology with a new id"
        )
        return Diagnosis(problem, where, what, remedy)
    remedy = "nothing is to be done: the opaque spout goes on with what is there, from its beginning"
    return Diagnosis(problem, where, what, remedy, is_harmless=True)
