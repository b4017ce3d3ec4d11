"""The doctor's use of the checker: whether the store's rows contradict each other."""

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
"""What is found in a table's log, where it is not that another writer has changed it."""


def examine_store(topology: Topology, store: StoreReader, store_url: str) -> Iterator[Diagnosis]:
    """What is wrong with a topology's rows in the store, at this URL: they describe no possible history."""
    history = _history(topology.id, store_url)
    return _contradictions(history, _log_starts(topology, stream_names(topology, store), history))


def examine_rows(topology_id: str, store_url: str) -> Iterator[Diagnosis]:
    """As `examine_store`, without the topology: where the source begins is unknown, so no gap is one."""
    history = _history(topology_id, store_url)
    return _contradictions(history, dict.fromkeys(_partitions(history), ANY_OFFSET))


def examine_logs(topology: Topology, store_url: str, known: Collection[str]) -> Iterator[Diagnosis]:
    """What the logs of Delta tables say of their commits, read beside the store as the checker does it. It is left out
    for the components that are `known` to be ill: what is wrong with them has been said."""
    logs = [(component, address, log) for component, address, log in _logs(topology) if component not in known]
    if not logs:
        return
    history = _history(topology.id, store_url)  # after the logs: what is in them is in it
    for component, address, log in logs:
        findings = Findings()
        check_log(component, log, history, history.committed_txid, address.txid, findings)
        for finding in findings.report().findings:
            what = f"expected {finding.expected}; found {finding.found}"
            yield Diagnosis(
                _PROBLEMS.get(finding.kind, Problem.FOREIGN_WRITER), finding.where, what, _REMEDY, component
            )


def _logs(topology: Topology) -> Iterator[tuple[str, TableAddress, TableLog]]:
    for component in topology.committers:
        address = None if component.state is None else component.state.address()
        if address is not None and address.format == "delta" and address.uri is not None:
            with suppress(LogBroken, OSError):  # which the state's own doctor has said
                yield component.id, address, read_log(storage_of(address.uri, address.options))


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
        yield Diagnosis(Problem.STORE_BROKEN, finding.where, what, _REMEDY)


def _log_starts(topology: Topology, names: StreamNames, history: StoreHistory) -> dict[Partition, int]:
    """From where on the source still holds its records; if unknown, nothing is considered a gap."""
    partitions = _partitions(history)
    today = {each: _today(names, history, each) for each in partitions}
    try:
        held = topology.spout.read_held_ranges(today.values())
    except (ConfigError, OperatingError):
        return dict.fromkeys(partitions, ANY_OFFSET)
    if not held:
        return {}
    there = {each: held.get(today[each]) for each in partitions}
    return {each: ANY_OFFSET if offsets is None else offsets.start for each, offsets in there.items()}


def _today(names: StreamNames, history: StoreHistory, partition: Partition) -> PartitionId:
    batch = BatchMetadata({PartitionId(*partition): OffsetRange(Offset(0), Offset(0))})
    [named] = names.with_current_names(batch, TxId(history.committed_txid)).ranges
    return named
