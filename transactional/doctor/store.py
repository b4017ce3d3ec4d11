"""The doctor's use of the checker: whether the store's rows contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from transactional.batch import PartitionId
from transactional.errors import ConfigError, OperatingError, StoreUnavailable
from transactional.ports.examining import Diagnosis, Problem
from transactional.topology.topology import Topology
from verifier.evidence.findings import CheckImpossible, Findings
from verifier.evidence.store import Store, StoreHistory
from verifier.transactions import Partition, check_transactions

ANY_OFFSET = 2**62


def examine_store(topology: Topology, store_url: str) -> Iterator[Diagnosis]:
    """What is wrong with a topology's rows in the store: they describe no possible history."""
    history = _history(topology.id, store_url)
    return _contradictions(history, _log_starts(topology, history))


def examine_rows(topology_id: str, store_url: str) -> Iterator[Diagnosis]:
    """As `examine_store`, without the topology: where the source begins is unknown, so no gap is one."""
    history = _history(topology_id, store_url)
    return _contradictions(history, dict.fromkeys(_partitions(history), ANY_OFFSET))


def _history(topology_id: str, store_url: str) -> StoreHistory:
    try:
        store = Store(store_url)
        try:
            return store.history(topology_id)
        finally:
            store.close()
    except CheckImpossible as error:
        raise StoreUnavailable(f"the rows of the store can't be examined: {error}") from error


def _partitions(history: StoreHistory) -> list[Partition]:
    return sorted(history.committed[-1].ranges if history.committed else {})


def _contradictions(history: StoreHistory, log_starts: dict[Partition, int]) -> Iterator[Diagnosis]:
    findings = Findings()
    check_transactions(history, findings, log_starts=log_starts)
    for finding in findings.report().findings:
        what = f"expected {finding.expected}; found {finding.found}"
        remedy = (
            "restore the store and all tables together from one backup, or start a topology with a new id and empty "
            "tables; `transactional verify` shows what of it is in the tables"
        )
        yield Diagnosis(Problem.STORE_BROKEN, finding.where, what, remedy)


def _log_starts(topology: Topology, history: StoreHistory) -> dict[Partition, int]:
    """From where on the source still holds its records; if unknown, nothing is considered a gap."""
    partitions = _partitions(history)
    try:
        held = topology.spout.held([PartitionId(source, index) for source, index in partitions])
    except (ConfigError, OperatingError):
        return dict.fromkeys(partitions, ANY_OFFSET)
    if not held:
        return {}
    starts = {(partition.source, partition.index): there.start for partition, there in held.items() if there}
    return {partition: starts.get(partition, ANY_OFFSET) for partition in partitions}
