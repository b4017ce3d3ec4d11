"""The doctor: compares a topology's store, tables and source, says what is wrong, and what can be done about it.

It changes nothing. `doctor_repairs` carries out what is safe. What a start is refused for is decided by `fencing`; the
doctor asks the same questions, and those that a start does not ask: what others have done to a table (row T56).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transactional.attempt import AttemptId, TxId
from transactional.doctor.findings import Diagnosis, Problem
from transactional.doctor.source import examine_source
from transactional.doctor.store import examine_files, examine_store
from transactional.doctor.tables import answering, delta_states
from transactional.engine.fencing import txid_lookup
from transactional.errors import OperatingError, StoreMismatch
from transactional.foreign import is_foreign, named
from transactional.names import owner_of
from transactional.store import CoordinatorStore, TopologyStatus
from transactional.topology.topology import Topology
from transactional.torn_log import Torn, torn_files
from verifier.delta_log import LogBroken, TableLog, read_log
from verifier.storage import storage_of

RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"
READABLE_FEATURES = frozenset({"appendOnly", "invariants"})


@dataclass(frozen=True, slots=True)
class Table:
    """A committer's Delta table, as its log tells it. `log` None: it is not there, or can't be read."""

    component: str
    owner: str
    uri: str
    options: dict[str, str]
    txid_column: str
    log: TableLog | None
    broken: str | None = None

    @property
    def version(self) -> AttemptId | None:
        """The attempt id that wrote the table last."""
        found = self.log.app_version(self.owner) if self.log is not None else None
        return None if found is None else AttemptId(found)

    @property
    def where(self) -> str:
        """The table in words."""
        return f"table of {self.component!r} ({self.uri})"


def examine(topology: Topology, store: CoordinatorStore, store_url: str | None = None) -> list[Diagnosis]:
    """Everything that is wrong, in the order in which it should be put right. Changes nothing.

    With `store_url` the store's own rows are looked at, too. States that are not in Delta tables are left out:
    `unexamined` names them.
    """
    status = status_of(topology, store)
    rows = examine_store(topology, store_url) if status is not None and store_url is not None else ()
    return [*rows, *examine_tables(topology, store, status), *examine_source(topology, store, status)]


def status_of(topology: Topology, store: CoordinatorStore) -> TopologyStatus | None:
    """What the store knows of the topology; None when it knows nothing."""
    return next(iter(store.status(topology.id)), None)


def examine_tables(topology: Topology, store: CoordinatorStore, status: TopologyStatus | None) -> list[Diagnosis]:
    """What is wrong with the tables. Raises `OperatingError` when the storage of one does not answer."""
    found: list[Diagnosis] = []
    for table in tables_of(topology):
        found += _examine_table(table, topology, store, status)
    return found


def unexamined(topology: Topology) -> list[str]:
    """The committers whose tables the doctor does not look into."""
    known = {component for component, _ in delta_states(topology)}
    return [component.id for component in topology.committers if component.id not in known]


def tables_of(topology: Topology) -> list[Table]:
    """The tables of a topology's committers, with their logs."""
    return [_table(topology, component, state) for component, state in delta_states(topology)]


def _table(topology: Topology, component: str, state: Any) -> Table:
    uri, options = state.location.uri, dict(state.location.storage_options)
    owner, txid_column = owner_of(topology.id, component), state.columns.txid
    storage = storage_of(uri, options)
    with answering(state.location):
        try:
            log = read_log(storage) if storage.names("_delta_log") else None
        except LogBroken as error:
            return Table(component, owner, uri, options, txid_column, None, str(error))
    return Table(component, owner, uri, options, txid_column, log)


def torn_of(table: Table) -> list[Torn]:
    """What a power cut has torn of a table on this machine's disk. Raises `OperatingError` when it can't be read."""
    if "://" in table.uri:
        return []
    try:
        return torn_files(Path(table.uri))
    except OSError as error:
        raise OperatingError(f"{table.where} can't be read: {error}") from error


# --- tables -------------------------------------------------------------------------------------------------------


def _examine_table(
    table: Table, topology: Topology, store: CoordinatorStore, status: TopologyStatus | None
) -> Iterator[Diagnosis]:
    if torn := torn_of(table):
        what = "; ".join(f"{each.path.name}: {each.why}" for each in torn)
        remedy = "what is torn is set aside; what was not durable then is done again, unless it was committed"
        yield Diagnosis(Problem.TABLE_TORN, table.where, what, remedy, table.component, can_repair=True)
        return
    if table.broken is not None:
        remedy = "restore the missing files from a backup, or the whole table together with the store"
        yield Diagnosis(Problem.TABLE_UNREADABLE, table.where, table.broken, remedy, table.component)
        return
    yield from _examine_shape(table)
    if table.log is not None:
        yield from examine_files(table.component, table.where, storage_of(table.uri, table.options), table.log)
    yield from _examine_others(table)
    yield from _examine_place(table, topology, store, status)


def _examine_shape(table: Table) -> Iterator[Diagnosis]:
    if table.log is None:
        return
    shape = table.log.shape
    if shape.properties.get(RETENTION_PROPERTY, "false") != "false":
        what = f"it has {RETENTION_PROPERTY}={shape.properties[RETENTION_PROPERTY]}: it forgets which attempt wrote it"
        is_local = "://" not in table.uri
        remedy = "the property is taken away" if is_local else _unset(table.uri)
        yield Diagnosis(Problem.RETENTION_SET, table.where, what, remedy, table.component, can_repair=is_local)
    unknown = sorted(shape.features - READABLE_FEATURES)
    if shape.reader_version > 1 or (shape.writer_version > 2 and (shape.writer_version != 7 or unknown)):
        what = (
            f"its protocol is reader {shape.reader_version}, writer {shape.writer_version}, features "
            f"{', '.join(unknown) or '(none)'}: Spark and delta-rs can't both read and write that"
        )
        remedy = (
            f"drop what was added, in Spark (ALTER TABLE delta.`{table.uri}` DROP FEATURE … TRUNCATE HISTORY), while "
            "nothing runs; a feature can't be dropped without rewriting the table, so the doctor does not"
        )
        yield Diagnosis(Problem.FEATURE_UNREADABLE, table.where, what, remedy, table.component)


def _unset(uri: str) -> str:
    return f"in Spark: ALTER TABLE delta.`{uri}` UNSET TBLPROPERTIES ('{RETENTION_PROPERTY}')"


def _examine_others(table: Table) -> Iterator[Diagnosis]:
    """What others have done to the rows."""
    if table.log is None:
        return
    commits = table.log.commits
    last_own = max((n for n, commit in enumerate(commits) if table.owner in commit.app_versions), default=None)
    if last_own is None:
        return
    healed = _healed(table.log, table.owner)
    built_on = [c for c in commits[:last_own] if is_foreign(c, table.owner) and c.version not in healed]
    since = [c for c in commits[last_own + 1 :] if is_foreign(c, table.owner) and c.version not in healed]
    for commit in built_on:
        what = f"{named(commit)} has changed rows, and the topology has gone on from there: its values are not sure"
        remedy = (
            "no repair gives the right values back. Restore table and store from a backup of before, or start a "
            "topology with a new id and an empty table, from the beginning of the source"
        )
        yield Diagnosis(Problem.FOREIGN_WRITER, table.where, what, remedy, table.component)
    if since:
        problem = Problem.TABLE_RESTORED if since[-1].operation == "RESTORE" else Problem.FOREIGN_WRITER
        target = commits[last_own].version
        what = f"{', '.join(map(named, since))} changed rows after the topology's last Delta commit, version {target}"
        can_repair = not built_on
        remedy = f"the rows are put back to what they were at Delta version {target}, as a new Delta commit"
        remedy = remedy if can_repair else "see what was changed before"
        seen = table.log.version
        yield Diagnosis(
            problem, table.where, what, remedy, table.component, can_repair=can_repair, target=target, seen=seen
        )


def _healed(log: TableLog, owner: str) -> set[int]:
    """The versions of foreign Delta commits after which a later one, not the topology's, has put all files back."""
    healed: set[int] = set()
    files = set(log.base_files)
    open_since: list[int] = []
    before: frozenset[str] = frozenset()
    for commit in log.commits:
        if is_foreign(commit, owner):
            before = before if open_since else frozenset(files)
            open_since.append(commit.version)
        elif owner in commit.app_versions:
            open_since = []
        files = (files - set(commit.removed)) | {file.path for file in commit.added}
        if open_since and files == before:
            healed |= set(open_since)
            open_since = []
    return healed


def _examine_place(
    table: Table, topology: Topology, store: CoordinatorStore, status: TopologyStatus | None
) -> Iterator[Diagnosis]:
    """Where a table is, against where the store says it should be."""
    committed = TxId(status.committed_txid) if status is not None else TxId(0)
    if table.version is None:
        if committed and store.has_fence(topology.id, table.component):
            what = f"transaction {committed} is committed, and no transaction was ever written to it"
            remedy = "restore the table from a backup; or start under another topology id, with empty tables"
            yield Diagnosis(Problem.TABLE_MISSING, table.where, what, remedy, table.component)
        return
    try:
        txid = txid_lookup(store, topology.id, table.component)(table.version)
    except StoreMismatch:
        yield _unknown(table, committed)
        return
    if txid < committed:
        what = f"it is at transaction {txid}, and {committed} is committed: it was put back to an older state"
        remedy = (
            f"restore a newer copy of the table, or the store and all tables together from one backup; the "
            f"transactions {txid + 1} to {committed} are in no table and can't be made up for one table alone"
        )
        yield Diagnosis(Problem.TABLE_BEHIND, table.where, what, remedy, table.component)
    elif txid > committed + 1:
        what = f"it is at transaction {txid}, and only {committed} is committed: the store was put back"
        remedy = f"the store is brought to transaction {txid}, with the batches that a journal of the runs tells"
        yield Diagnosis(
            Problem.TABLE_AHEAD, table.where, what, remedy, table.component, can_repair=True, target=table.version
        )


def _unknown(table: Table, committed: TxId) -> Diagnosis:
    what = (
        f"it was last written by attempt {table.version}, of which the store knows nothing (it says that transaction "
        f"{committed} is committed): the store was wiped or put back, or the table belongs to another store"
    )
    remedy = (
        "the store takes over where the tables are, with the batches that a journal of the runs tells (--journal); "
        "without one, restore the store from a backup, or start a topology with a new id and empty tables"
    )
    return Diagnosis(
        Problem.STORE_WIPED, table.where, what, remedy, table.component, can_repair=True, target=table.version
    )
