"""What the doctor asks the checker: whether the store's rows contradict themselves, and data files are as written."""

from __future__ import annotations

from collections.abc import Iterator

from transactional.doctor.findings import Diagnosis, Problem
from transactional.doctor.source import kafka_of
from transactional.topology.topology import Topology
from verifier.delta_log import TableLog
from verifier.findings import CheckImpossible, Findings
from verifier.source import look
from verifier.storage import Storage
from verifier.store import Store, StoreHistory
from verifier.tables import changed_files
from verifier.transactions import Partition, check_transactions

ANY_OFFSET = 2**62


def examine_store(topology: Topology, store_url: str) -> Iterator[Diagnosis]:
    """What is wrong with the rows of a topology that the store knows: they tell of no history that can have been."""
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
            "tables; `transactional verify` tells what of it is in the tables"
        )
        yield Diagnosis(Problem.STORE_BROKEN, finding.where, what, remedy)


def _log_starts(topology: Topology, history: StoreHistory) -> dict[Partition, int]:
    """From where on the source still holds its records; where nobody can tell, nothing is taken for a gap."""
    partitions = sorted(history.committed[-1].ranges if history.committed else {})
    kafka = kafka_of(topology)
    if kafka is None:
        return {}
    try:
        states = look(kafka, partitions)
    except CheckImpossible:
        return dict.fromkeys(partitions, ANY_OFFSET)
    return {partition: ANY_OFFSET if state is None else state.start for partition, state in states.items()}


def examine_files(component: str, where: str, storage: Storage, log: TableLog) -> Iterator[Diagnosis]:
    """Which data files of a table are not those that were written, by their sizes. Raises `OSError`."""
    for path, expected, found in changed_files(storage, log):
        what = f"data file {path} has {found} bytes, and {expected} were written: it was changed where it stands"
        remedy = "restore the file, or the table and the store together, from a backup"
        yield Diagnosis(Problem.FILE_CHANGED, where, what, remedy, component)
