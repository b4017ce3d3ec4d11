"""The doctor: compares a topology's store, tables and source, reports what is wrong, and what can be done about it.

It changes nothing. `doctor.repairs` carries out what is safe. Whether a table and the store agree is decided by one
rule, here and when a run starts. The state's own doctor reports what other writers have done to a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transactional.core.machine.agreement import Disagreement, of_another_store
from transactional.core.ports.examining import Diagnosis, Examined, Problem
from transactional.core.store import StoreReader, TopologyStatus
from transactional.model.attempt import NO_TRANSACTION, TxId
from transactional.operations.doctor.source import examine_source
from transactional.operations.doctor.store import examine_logs, examine_store
from transactional.runtime.engine.fencing import find_disagreement, find_disagreement_without, txid_of_attempt
from transactional.topology.topology import Topology

UNREADABLE = (Problem.TABLE_TORN, Problem.TABLE_UNREADABLE, Problem.TABLE_FOREIGN)
"""For such a table the transaction that it is at is unknown."""


@dataclass(frozen=True, slots=True)
class Table:
    """A committer's table, as it was found."""

    component: str
    found: Examined


def examine(topology: Topology, store: StoreReader, store_url: str | None = None) -> list[Diagnosis]:
    """Everything that is wrong, in the order in which it should be repaired. Changes nothing.

    With `store_url` the store's own rows are checked, too. States that can't be examined are skipped: `unexamined`
    lists them.
    """
    status = status_of(topology, store)
    if status is None or store_url is None:
        return [*examine_tables(topology, store, status), *examine_source(topology, store, status)]
    found = [*examine_store(topology, store, store_url), *examine_tables(topology, store, status)]
    ill = {each.component for each in found if not each.is_harmless}
    if not any(each.problem is Problem.STORE_BROKEN for each in found):
        found += examine_logs(topology, store_url, ill)
    return [*found, *examine_source(topology, store, status)]


def status_of(topology: Topology, store: StoreReader) -> TopologyStatus | None:
    """What the store knows about the topology; None if it knows nothing."""
    return next(iter(store.status(topology.id)), None)


def examine_tables(topology: Topology, store: StoreReader, status: TopologyStatus | None) -> list[Diagnosis]:
    """What is wrong with the tables. Raises `OperatingError` if the storage of one does not respond."""
    found: list[Diagnosis] = []
    for table in tables_of(topology):
        of_table = list(table.found.diagnoses())
        if not any(each.problem in UNREADABLE for each in of_table):
            of_table += _examine_version(table, topology, store, status)
        torn = table.found.torn
        if torn is not None and (
            wrong := find_disagreement_without(torn, store, topology.id, table.component, _committed(status))
        ):
            of_table = [replace(_diagnosis_of(table, wrong), attempt_id=torn.lost)]
        found += [_with_way_back(each, topology, store) for each in of_table]
    return found


def _with_way_back(found: Diagnosis, topology: Topology, store: StoreReader) -> Diagnosis:
    """What is missing of a table can be made again, by going back to before it was there."""
    by = found.attempt_id
    if by is None or not (txid := txid_of_attempt(store, topology.id, found.component, by)):
        return found
    back = f"`transactional rewind … --to-txid {txid - 1}`, or to an earlier one"
    return replace(found, remedy=f"{found.remedy}; or take the topology back to before it was written: {back}")


def unexamined(topology: Topology) -> list[str]:
    """The committers whose tables the doctor does not examine."""
    found = [(each.id, each.state.address()) for each in topology.committers if each.state is not None]
    return [component for component, address in found if address is None or not address.uri]


def tables_of(topology: Topology) -> list[Table]:
    """The tables of a topology's committers, as they are now. Raises `OperatingError`."""
    states = [(each.id, each.state) for each in topology.committers if each.state is not None]
    found = [(component, state.examine(topology.id, component)) for component, state in states]
    return [Table(component, examined) for component, examined in found if examined is not None]


def _examine_version(
    table: Table, topology: Topology, store: StoreReader, status: TopologyStatus | None
) -> Iterator[Diagnosis]:
    """Compare a table's transaction with the one that the store expects, and whose it is, as a start does."""
    has_joined = store.has_fence(topology.id, table.component)
    wrong = find_disagreement(
        *(store, topology.id, table.component, table.found.version, _committed(status)), has_joined=has_joined
    )
    store_id = None if status is None else status.store_id
    wrong = wrong or of_another_store(table.found.store_id, table.found.version, store_id, store)
    if wrong is not None:
        yield _diagnosis_of(table, wrong)


def _committed(status: TopologyStatus | None) -> TxId:
    return NO_TRANSACTION if status is None else TxId(status.committed_txid)


def _diagnosis_of(table: Table, wrong: Disagreement) -> Diagnosis:
    return Diagnosis(
        *(wrong.problem, table.found.where, wrong.what, wrong.remedy, table.component),
        can_repair=wrong.can_repair,
        target=table.found.version if wrong.can_repair else None,
    )
