"""The doctor's use of the checker: whether the store's rows contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from transactional.batch import PartitionId
from transactional.errors import ConfigError, OperatingError
from transactional.examining import Diagnosis, ExaminableSpout, Problem
from transactional.topology.topology import Topology
from verifier.findings import Findings
from verifier.store import Store, StoreHistory
from verifier.transactions import Partition, check_transactions

ANY_OFFSET = 2**62


def examine_store(topology: Topology, store_url: str) -> Iterator[Diagnosis]:
    """What is wrong with a topology's rows in the store: they describe no possible history."""
    store = Store(store_url)
    try:
        history = store.history(topology.id)
    finally:
        store.close()
    findings = Findings()
    check_transactions(history, findings, log_starts=_log_starts(topology, history))
    for finding in findings.report().findings:
        what = f"expected {finding.expected}; found {finding.found}"
        remedy = (
            "restore the store and all tables together from one backup, or start a topology with a new id and empty "
            "tables; `transactional verify` shows what of it is in the tables"
        )
        yield Diagnosis(Problem.STORE_BROKEN, finding.where, what, remedy)


def _log_starts(topology: Topology, history: StoreHistory) -> dict[Partition, int]:
    """From where on the source still holds its records; if unknown, nothing is considered a gap."""
    partitions = sorted(history.committed[-1].ranges if history.committed else {})
    if not isinstance(topology.spout, ExaminableSpout):
        return {}
    try:
        held = topology.spout.held([PartitionId(source, index) for source, index in partitions])
    except (ConfigError, OperatingError):
        return dict.fromkeys(partitions, ANY_OFFSET)
    starts = {(partition.source, partition.index): there.start for partition, there in held.items() if there}
    return {partition: starts.get(partition, ANY_OFFSET) for partition in partitions}
