"""The doctor: compares a topology's store, tables and source, reports what is wrong, and what can be done about it.

It changes nothing. `doctor.repairs` carries out what is safe. Whether a table and the store agree is decided by one
rule, here and when a run starts. The state's own doctor reports what other writers have done to a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transactional.core.machine.agreement import Disagreement, compare_store_ids
from transactional.core.ports.examining import Diagnosis, Examined, Problem
from transactional.core.store import StoreReader, TopologyStatus
from transactional.model.attempt import NO_TRANSACTION, TxId
from transactional.operations.doctor.sinks import examine_sinks
from transactional.operations.doctor.source import examine_source
from transactional.operations.doctor.store import examine_logs, examine_store
from transactional.runtime.engine.fencing import find_disagreement, find_disagreement_without, txid_of_attempt
from transactional.topology.topology import Topology

UNREADABLE = (Problem.TABLE_TORN, Problem.TABLE_UNREADABLE, Problem.TABLE_FOREIGN)
"""Problems of a table for which its transaction can't be read."""


@dataclass(frozen=True, slots=True)
class Table:
    """A committer's table, and what its state's examination says of it."""

    component: str
    examined: Examined


def examine(topology: Topology, store: StoreReader, store_url: str | None = None) -> list[Diagnosis]:
    """Return everything that is wrong, in the order in which it should be repaired, without changing anything.

    With `store_url` the store's own rows are checked, too. States that can't be examined are skipped: `unexamined`
    lists them.
    """
    status = read_status(topology, store)
    if status is None or store_url is None:
        return [*examine_tables(topology, store, status), *_examine_ends(topology, store, status)]
    diagnoses = [*examine_store(topology, store, store_url), *examine_tables(topology, store, status)]
    ill_components = {diagnosis.component for diagnosis in diagnoses if not diagnosis.is_harmless}
    if not any(diagnosis.problem is Problem.STORE_BROKEN for diagnosis in diagnoses):
        diagnoses += examine_logs(topology, store_url, ill_components)
    return [*diagnoses, *_examine_ends(topology, store, status)]


def _examine_ends(topology: Topology, store: StoreReader, status: TopologyStatus | None) -> list[Diagnosis]:
    """Return what is wrong with the source and with the targets of sinks. Without these there is no fingerprint."""
    sink_diagnoses = list(examine_sinks(topology, status))
    has_sinks = all(diagnosis.problem is not Problem.SINK_UNREADABLE for diagnosis in sink_diagnoses)
    return [*examine_source(topology, store, status, has_sinks=has_sinks), *sink_diagnoses]


def read_status(topology: Topology, store: StoreReader) -> TopologyStatus | None:
    """Return the status of a topology in the store, or None if the store does not know it."""
    return next(iter(store.status(topology.id)), None)


def examine_tables(topology: Topology, store: StoreReader, status: TopologyStatus | None) -> list[Diagnosis]:
    """Return what is wrong with the tables. Raises `OperatingError` if the storage of one does not respond."""
    diagnoses: list[Diagnosis] = []
    for table in examine_states(topology):
        table_diagnoses = list(table.examined.diagnoses())
        if not any(diagnosis.problem in UNREADABLE for diagnosis in table_diagnoses):
            table_diagnoses += _examine_version(table, topology, store, status)
        torn = table.examined.torn
        if torn is not None and (
            disagreement := find_disagreement_without(
                torn, store, topology.id, table.component, _committed_txid(status)
            )
        ):
            table_diagnoses = [replace(_diagnosis_of(table, disagreement), attempt_id=torn.lost)]
        diagnoses += [_with_rewind_as_remedy(diagnosis, topology, store) for diagnosis in table_diagnoses]
    return diagnoses


def _with_rewind_as_remedy(diagnosis: Diagnosis, topology: Topology, store: StoreReader) -> Diagnosis:
    """Add to a diagnosis of missing data that a rewind to before it was written makes it again."""
    attempt_id = diagnosis.attempt_id
    if attempt_id is None or not (txid := txid_of_attempt(store, topology.id, diagnosis.component, attempt_id)):
        return diagnosis
    back = f"`transactional rewind … --to-txid {txid - 1}`, or to an earlier one"
    return replace(diagnosis, remedy=f"{diagnosis.remedy}; or take the topology back to before it was written: {back}")


def unexamined(topology: Topology) -> list[str]:
    """Return the ids of the committers whose tables the doctor can't examine."""
    addresses = [
        (committer.id, committer.state.parts.examination.address())
        for committer in topology.committers
        if committer.state is not None
    ]
    return [component for component, address in addresses if address is None or not address.uri]


def examine_states(topology: Topology) -> list[Table]:
    """Examine the tables of a topology's committers as they are now. Raises `OperatingError`."""
    states = [(committer.id, committer.state) for committer in topology.committers if committer.state is not None]
    examinations = [(component, state.parts.examination.examine(topology.id, component)) for component, state in states]
    return [Table(component, examined) for component, examined in examinations if examined is not None]


def _examine_version(
    table: Table, topology: Topology, store: StoreReader, status: TopologyStatus | None
) -> Iterator[Diagnosis]:
    """Compare a table's transaction and owner with those that the store expects, as a start does."""
    has_joined = store.has_fence(topology.id, table.component)
    disagreement = find_disagreement(
        *(store, topology.id, table.component, table.examined.version, _committed_txid(status)), has_joined=has_joined
    )
    store_id = None if status is None else status.store_id
    disagreement = disagreement or compare_store_ids(table.examined.store_id, table.examined.version, store_id, store)
    if disagreement is not None:
        yield _diagnosis_of(table, disagreement)


def _committed_txid(status: TopologyStatus | None) -> TxId:
    return NO_TRANSACTION if status is None else TxId(status.committed_txid)


def _diagnosis_of(table: Table, disagreement: Disagreement) -> Diagnosis:
    return Diagnosis(
        *(disagreement.problem, table.examined.where, disagreement.what, disagreement.remedy, table.component),
        can_repair=disagreement.can_repair,
        target=table.examined.version if disagreement.can_repair else None,
    )
