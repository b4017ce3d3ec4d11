"""Examines the store with the independent checker: whether its rows contradict each other, or the tables' logs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from transactional.core.ports.examining import Diagnosis, Problem, TableAddress
from transactional.core.ports.stream_names import StreamNames
from transactional.core.store import StoreReader
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.errors import ConfigError, OperatingError, StoreUnavailable
from transactional.runtime.engine.streams import stream_names
from transactional.topology.topology import Topology
from verifier.evidence.delta_log import LogBroken, TableLog, read_log
from verifier.evidence.findings import CheckImpossible, Findings, Kind
from verifier.evidence.storage import storage_of
from verifier.evidence.store import Store, StoreHistory
from verifier.tables import check_log
from verifier.transactions import Partition, check_transactions

ANY_OFFSET = 2**62
_REMEDY = (
    "restore the store and all tables together from one backup, or start a topology with a new id and empty tables; "
    "`transactional verify` shows what of it is in the tables"
)
_PROBLEMS = {Kind.UNKNOWN_ATTEMPT: Problem.STORE_BROKEN, Kind.WRONG_TABLE: Problem.TABLE_FOREIGN}
"""The problem by kind of finding in a table's log; any other kind is the work of another writer."""


def examine_store(topology: Topology, store: StoreReader, store_url: str) -> Iterator[Diagnosis]:
    """Yield what is wrong with a topology's rows in the store at this URL: they describe no possible history."""
    history = _read_history(topology.id, store_url)
    return _find_contradictions(history, _log_starts(topology, stream_names(topology, store), history))


def examine_rows(topology_id: str, store_url: str) -> Iterator[Diagnosis]:
    """Yield what `examine_store` does, without the topology. The source's first offset is unknown, so a missing range
    is not reported as a gap."""
    history = _read_history(topology_id, store_url)
    return _find_contradictions(history, dict.fromkeys(_partitions(history), ANY_OFFSET))


def examine_logs(topology: Topology, store_url: str, ill_components: Collection[str]) -> Iterator[Diagnosis]:
    """Yield what is wrong between the logs of Delta tables and the store. The components in `ill_components` are left
    out, because their problems are reported already."""
    logs = [
        (component, address, log) for component, address, log in _read_logs(topology) if component not in ill_components
    ]
    if not logs:
        return
    history = _read_history(topology.id, store_url)  # read after the logs, so that it includes their commits
    for component, address, log in logs:
        findings = Findings()
        check_log(component, log, history, history.committed_txid, address.txid, findings)
        for finding in findings.report().findings:
            text = f"expected {finding.expected}; found {finding.found}"
            yield Diagnosis(
                _PROBLEMS.get(finding.kind, Problem.FOREIGN_WRITER), finding.where, text, _REMEDY, component
            )


def _read_logs(topology: Topology) -> Iterator[tuple[str, TableAddress, TableLog]]:
    for component in topology.committers:
        address = None if component.state is None else component.state.parts.examination.address()
        if address is not None and address.format == "delta" and address.uri is not None:
            with suppress(LogBroken, OSError):  # the state's own examination has reported it
                yield component.id, address, read_log(storage_of(address.uri, address.options))


def _read_history(topology_id: str, store_url: str) -> StoreHistory:
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


def _find_contradictions(history: StoreHistory, log_starts: dict[Partition, int]) -> Iterator[Diagnosis]:
    findings = Findings()
    check_transactions(history, findings, log_starts=log_starts)
    for finding in findings.report().findings:
        text = f"expected {finding.expected}; found {finding.found}"
        yield Diagnosis(Problem.STORE_BROKEN, finding.where, text, _REMEDY)


def _log_starts(topology: Topology, names: StreamNames, history: StoreHistory) -> dict[Partition, int]:
    """Return the first offset that the source still holds, by partition. Where it is unknown it is `ANY_OFFSET`, so
    that no missing range is reported as a gap."""
    partitions = _partitions(history)
    current_partitions = {partition: _current_partition(names, history, partition) for partition in partitions}
    try:
        held_ranges = topology.spout.parts.examination.read_held_ranges(current_partitions.values())
    except (ConfigError, OperatingError):
        return dict.fromkeys(partitions, ANY_OFFSET)
    if not held_ranges:
        return {}
    range_by_partition = {partition: held_ranges.get(current_partitions[partition]) for partition in partitions}
    return {
        partition: ANY_OFFSET if offsets is None else offsets.start for partition, offsets in range_by_partition.items()
    }


def _current_partition(names: StreamNames, history: StoreHistory, partition: Partition) -> PartitionId:
    batch = BatchMetadata({PartitionId(*partition): OffsetRange(Offset(0), Offset(0))})
    [current] = names.with_current_names(batch, TxId(history.committed_txid)).ranges
    return current
