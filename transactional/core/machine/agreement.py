"""Whether a committer's table and the store agree: one rule, for the start of a run and for the doctor."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace

from transactional.core.ports.examining import Problem
from transactional.model.attempt import AttemptId, TxId


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A table is not where the store says it should be: what is wrong, and what can be done about it.

    `can_repair`: `transactional doctor --repair` does it, with a journal of the runs.
    """

    problem: Problem
    what: str
    remedy: str
    can_repair: bool = False


def refusal(component_id: str, where: str, what: str, remedy: str, experiment: str = "") -> str:
    """The message of the error with which a start is refused; `experiment` is what `removal` returned."""
    return f"committer {component_id!r}: {where}: {what}. To do: {remedy}{experiment}"


def removal(store: str | None, tables: Iterable[str | None]) -> str:
    """The end of a refusal for somebody who is trying out: the command that deletes the store and all tables, so that
    the next run begins from the start. "" unless the paths of all of them are on this machine's disks."""
    paths = [store, *tables]
    known = [shlex.quote(path) for path in paths if path is not None and "://" not in path]
    if len(known) < max(len(paths), 2):
        return ""
    return (
        f". While you are trying out, and nothing of it is needed: `rm -r {' '.join(known)}` deletes the store and the "
        "tables together, and with the store the progress of all of its topologies"
    )


def disagreement(
    version: AttemptId | None,
    txid: TxId | None,
    committed: TxId,
    *,
    has_joined: bool,
    committed_by: AttemptId | None = None,
    is_rewound: bool = False,
) -> Disagreement | None:
    """Compare a table with the store. None if the table is at the committed transaction, or one ahead of it.

    `version` is the attempt that wrote the table last, None for a table that nobody has written; `txid` is that
    attempt's transaction, None if the store does not know it. `has_joined`: the table has been part of the topology.
    `committed_by` is the attempt that was committed, None if the store does not know it: every table had its version
    then, so one of an earlier attempt at the same transaction has lost what was written since. `is_rewound`: a rewind
    has taken the attempt `version` back.
    """
    if version is None:
        return _missing(committed) if committed and has_joined else None
    if txid is None:
        return _unknown(version, committed)
    if txid < committed:
        return _behind(txid, committed)
    if has_joined and committed_by is not None and version < committed_by:
        return _of_a_dead_attempt(version, committed, committed_by)
    if txid > committed + 1:
        return _ahead(txid, committed)
    return _rewound(version, txid) if is_rewound else None


def of_another_store(
    created_for: str | None, version: AttemptId | None, store_id: str | None, store: object
) -> Disagreement | None:
    """Compare the `store_id` that a table was created with to that of the `store` at hand, which is only shown. None if
    they agree, or one is not known: then only attempt ids are compared."""
    if None in (created_for, store_id) or created_for == store_id:
        return None
    what = (
        f"it was created for the topology in another store, with the id {created_for}; this one, {store!r}, has the id "
        f"{store_id}: two stores may not lead the same tables"
    )
    lost = (
        "delete the table, to which nothing was ever written"
        if version is None
        else "let this one catch up with the tables, from a journal (transactional doctor --repair --journal)"
    )
    remedy = (
        "run with the store that the table was created for, or give this one another table; if that store is no longer "
        f"there, {lost}"
    )
    return Disagreement(Problem.STORE_WIPED, what, remedy)


def as_torn(torn: str, wrong: Disagreement) -> Disagreement:
    """What is wrong with a table whose newest files are `torn`, and that would be `wrong` without them: they hold what
    the store has committed, and are not set aside."""
    what = f"{torn}. The store has committed what was written there, so it was not set aside; without it, {wrong.what}"
    remedy = (
        f"if files were moved or deleted, put them back, and start again. If they are lost: {wrong.remedy}; or take "
        "the topology back to a transaction before them: `transactional rewind`"
    )
    return replace(wrong, what=what, remedy=remedy, can_repair=False)


def _missing(committed: TxId) -> Disagreement:
    what = f"transaction {committed} is committed, and no transaction was ever written to it"
    remedy = "restore the table from a backup; or start under another topology id, with empty tables"
    return Disagreement(Problem.TABLE_MISSING, what, remedy)


def _unknown(version: AttemptId, committed: TxId) -> Disagreement:
    what = (
        f"it was last written by attempt {version}, which the store does not know (it says that transaction "
        f"{committed} is committed): the store was wiped or restored, or the table belongs to another store"
    )
    remedy = (
        "let the store catch up with the tables, from a journal of the runs (transactional doctor --repair --journal); "
        "without one, restore the store from a backup, or start a topology with a new id and empty tables"
    )
    return Disagreement(Problem.STORE_WIPED, what, remedy, can_repair=True)


def _behind(txid: TxId, committed: TxId) -> Disagreement:
    what = (
        f"it is at transaction {txid}, and {committed} is committed: it was restored to an older state, or its "
        "component was not in the topology meanwhile"
    )
    remedy = (
        f"restore a newer copy of the table, or the store and all tables together from one backup; the "
        f"transactions {txid + 1} to {committed} are in no table and can't be reconstructed for one table alone. One "
        "that was taken out comes back under another id, with a new table, and counts from there on"
    )
    return Disagreement(Problem.TABLE_BEHIND, what, remedy)


def _of_a_dead_attempt(version: AttemptId, committed: TxId, committed_by: AttemptId) -> Disagreement:
    what = (
        f"it is as attempt {version} has left it, and transaction {committed} was committed by attempt {committed_by}: "
        "what was written since is lost"
    )
    remedy = (
        "restore a newer copy of the table, or the store and all tables together from one backup; what attempt "
        f"{committed_by} has written is in no table and can't be reconstructed for one table alone"
    )
    return Disagreement(Problem.TABLE_BEHIND, what, remedy)


def _rewound(version: AttemptId, txid: TxId) -> Disagreement:
    what = f"attempt {version} at transaction {txid} has written it last, which a rewind has taken back since"
    remedy = "give the component a new table, or another id: this table did not go back with the others"
    return Disagreement(Problem.TABLE_AHEAD, what, remedy)


def _ahead(txid: TxId, committed: TxId) -> Disagreement:
    what = f"it is at transaction {txid}, and only {committed} is committed: the store was restored"
    remedy = (
        f"let the store catch up with transaction {txid}, from a journal of the runs "
        "(transactional doctor --repair --journal)"
    )
    return Disagreement(Problem.TABLE_AHEAD, what, remedy, can_repair=True)
