"""The doctor: compares a topology's store, tables and source, reports what is wrong, and what can be done about it.

It changes nothing. `doctor.repairs` carries out what is safe. `fencing` decides when a start is refused; the doctor
makes the same checks. The state's own doctor reports what other writers have done to a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from transactional.attempt import TxId
from transactional.doctor.source import examine_source
from transactional.doctor.store import examine_store
from transactional.engine.fencing import txid_lookup
from transactional.errors import StoreMismatch
from transactional.examining import Diagnosis, Examined, Problem, examinable
from transactional.store import CoordinatorStore, TopologyStatus
from transactional.topology.topology import Topology

UNREADABLE = (Problem.TABLE_TORN, Problem.TABLE_UNREADABLE, Problem.TABLE_FOREIGN)
"""For such a table the transaction that it is at is unknown."""


@dataclass(frozen=True, slots=True)
class Table:
    """A committer's table, as it was found."""

    component: str
    found: Examined


def examine(topology: Topology, store: CoordinatorStore, store_url: str | None = None) -> list[Diagnosis]:
    """Everything that is wrong, in the order in which it should be repaired. Changes nothing.

    With `store_url` the store's own rows are checked, too. States that can't be examined are skipped: `unexamined`
    lists them.
    """
    status = status_of(topology, store)
    rows = examine_store(topology, store_url) if status is not None and store_url is not None else ()
    return [*rows, *examine_tables(topology, store, status), *examine_source(topology, store, status)]


def status_of(topology: Topology, store: CoordinatorStore) -> TopologyStatus | None:
    """What the store knows about the topology; None if it knows nothing."""
    return next(iter(store.status(topology.id)), None)


def examine_tables(topology: Topology, store: CoordinatorStore, status: TopologyStatus | None) -> list[Diagnosis]:
    """What is wrong with the tables. Raises `OperatingError` if the storage of one does not respond."""
    found: list[Diagnosis] = []
    for table in tables_of(topology):
        of_table = list(table.found.diagnoses())
        if not any(each.problem in UNREADABLE for each in of_table):
            of_table += _examine_place(table, topology, store, status)
        found += of_table
    return found


def unexamined(topology: Topology) -> list[str]:
    """The committers whose tables the doctor does not examine."""
    states = {component.id: component.state for component in topology.committers}
    return [name for name, state in states.items() if (found := examinable(state)) is None or not found.address().uri]


def tables_of(topology: Topology) -> list[Table]:
    """The tables of a topology's committers, as they are now. Raises `OperatingError`."""
    states = [(each.id, state) for each in topology.committers if (state := examinable(each.state)) is not None]
    found = [(component, state.examine(topology.id, component)) for component, state in states]
    return [Table(component, examined) for component, examined in found if examined is not None]


def _examine_place(
    table: Table, topology: Topology, store: CoordinatorStore, status: TopologyStatus | None
) -> Iterator[Diagnosis]:
    """Compare a table's transaction with the one that the store expects."""
    committed = TxId(status.committed_txid) if status is not None else TxId(0)
    where, version = table.found.where, table.found.version
    if version is None:
        if committed and store.has_fence(topology.id, table.component):
            what = f"transaction {committed} is committed, and no transaction was ever written to it"
            remedy = "restore the table from a backup; or start under another topology id, with empty tables"
            yield Diagnosis(Problem.TABLE_MISSING, where, what, remedy, table.component)
        return
    try:
        txid = txid_lookup(store, topology.id, table.component)(version)
    except StoreMismatch:
        yield _unknown(table, committed)
        return
    if txid < committed:
        what = f"it is at transaction {txid}, and {committed} is committed: it was restored to an older state"
        remedy = (
            f"restore a newer copy of the table, or the store and all tables together from one backup; the "
            f"transactions {txid + 1} to {committed} are in no table and can't be reconstructed for one table alone"
        )
        yield Diagnosis(Problem.TABLE_BEHIND, where, what, remedy, table.component)
    elif txid > committed + 1:
        what = f"it is at transaction {txid}, and only {committed} is committed: the store was restored"
        remedy = f"the store is brought to transaction {txid}, with the batches in a journal of the runs"
        yield Diagnosis(Problem.TABLE_AHEAD, where, what, remedy, table.component, can_repair=True, target=version)


def _unknown(table: Table, committed: TxId) -> Diagnosis:
    where, version = table.found.where, table.found.version
    what = (
        f"it was last written by attempt {version}, which the store does not know (it says that transaction "
        f"{committed} is committed): the store was wiped or restored, or the table belongs to another store"
    )
    remedy = (
        "the store catches up with the tables, with the batches in a journal of the runs (--journal); "
        "without one, restore the store from a backup, or start a topology with a new id and empty tables"
    )
    return Diagnosis(Problem.STORE_WIPED, where, what, remedy, table.component, can_repair=True, target=version)
