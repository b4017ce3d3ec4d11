"""Compares a committer's table with the coordinator's store: one rule, for the start of a run and for the doctor.

A table may be at the committed transaction, or one ahead of it, because a transaction is written to the tables before
the store commits it. Any other distance is a `Disagreement`, whose message says what an operator can do. Nothing here
reads or changes a table.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace

from transactional.core.ports.examining import Problem
from transactional.model.attempt import AttemptId, TxId


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A table that is not at the transaction that the store expects: a description (`what`), and the remedy.

    If `can_repair`, `transactional doctor --repair` carries out the remedy, with a journal of the runs.
    """

    problem: Problem
    what: str
    remedy: str
    can_repair: bool = False


def refusal_text(component_id: str, where: str, what: str, remedy: str, experiment: str = "") -> str:
    """Return the message of the error that refuses a start. `experiment` is a `removal_hint`."""
    return f"committer {component_id!r}: {where}: {what}. To do: {remedy}{experiment}"


def removal_hint(store: str | None, tables: Iterable[str | None]) -> str:
    """Return the end of a refusal for somebody who is experimenting: the command that deletes store and tables.

    "" unless the paths of all of them are on this machine's disks.
    """
    paths = [store, *tables]
    local_paths = [shlex.quote(path) for path in paths if path is not None and "://" not in path]
    if len(local_paths) < max(len(paths), 2):
        return ""
    return (
        f". While you are trying out, and nothing of it is needed: `rm -r {' '.join(local_paths)}` deletes the store "
        "and the tables together, and with the store the progress of all of its topologies"
    )


def compare_with_store(
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
    `committed_by` is the attempt that committed the transaction, None if the store does not know it. Every table had
    its version then, so a table with a lower version has lost writes. `is_rewound`: a rewind has taken the attempt
    `version` back.
    """
    if version is None:
        return _explain_missing(committed) if committed and has_joined else None
    if txid is None:
        return _explain_unknown(version, committed)
    if txid < committed:
        return _explain_behind(txid, committed)
    if has_joined and committed_by is not None and version < committed_by:
        return _explain_lost_attempt(version, committed, committed_by)
    if txid > committed + 1:
        return _explain_ahead(txid, committed)
    return _explain_rewound(version, txid) if is_rewound else None


def compare_store_ids(
    created_for: str | None, version: AttemptId | None, store_id: str | None, store: object
) -> Disagreement | None:
    """Compare the store id that a table was created for with the id of the current store. None unless they differ.

    If one of the ids is unknown, only attempt ids can be compared. `store` is only shown in the message.
    """
    if None in (created_for, store_id) or created_for == store_id:
        return None
    description = (
        f"it was created for the topology in another store, with the id {created_for}; this one, {store!r}, has the id "
        f"{store_id}: two stores may not lead the same tables"
    )
    last_resort = (
        "delete the table, to which nothing was ever written"
        if version is None
        else "let this one catch up with the tables, from a journal (transactional doctor --repair --journal)"
    )
    remedy = (
        "run with the store that the table was created for, or give this one another table; if that store is no longer "
        f"there, {last_resort}"
    )
    return Disagreement(Problem.STORE_WIPED, description, remedy)


def explain_torn(torn: str, wrong: Disagreement) -> Disagreement:
    """Return the disagreement of a table whose newest files are torn, and contain a committed transaction.

    `torn` describes the files, which are therefore not set aside. `wrong` is the disagreement without them.
    """
    description = (
        f"{torn}. The store has committed what was written there, so it was not set aside; without it, {wrong.what}"
    )
    remedy = (
        f"if files were moved or deleted, put them back, and start again. If they are lost: {wrong.remedy}; or take "
        "the topology back to a transaction before them: `transactional rewind`"
    )
    return replace(wrong, what=description, remedy=remedy, can_repair=False)


def _explain_missing(committed: TxId) -> Disagreement:
    description = f"transaction {committed} is committed, and no transaction was ever written to it"
    remedy = "restore the table from a backup; or start under another topology id, with empty tables"
    return Disagreement(Problem.TABLE_MISSING, description, remedy)


def _explain_unknown(version: AttemptId, committed: TxId) -> Disagreement:
    description = (
        f"it was last written by attempt {version}, which the store does not know (it says that transaction "
        f"{committed} is committed): the store was wiped or restored, or the table belongs to another store"
    )
    remedy = (
        "let the store catch up with the tables, from a journal of the runs (transactional doctor --repair --journal); "
        "without one, restore the store from a backup, or start a topology with a new id and empty tables"
    )
    return Disagreement(Problem.STORE_WIPED, description, remedy, can_repair=True)


def _explain_behind(txid: TxId, committed: TxId) -> Disagreement:
    description = (
        f"it is at transaction {txid}, and {committed} is committed: it was restored to an older state, or its "
        "component was not in the topology meanwhile"
    )
    remedy = (
        f"restore a newer copy of the table, or the store and all tables together from one backup; the "
        f"transactions {txid + 1} to {committed} are in no table and can't be reconstructed for one table alone. One "
        "that was taken out comes back under another id, with a new table, and counts from there on"
    )
    return Disagreement(Problem.TABLE_BEHIND, description, remedy)


def _explain_lost_attempt(version: AttemptId, committed: TxId, committed_by: AttemptId) -> Disagreement:
    description = (
        f"it is as attempt {version} has left it, and transaction {committed} was committed by attempt {committed_by}: "
        "what was written since is lost"
    )
    remedy = (
        "restore a newer copy of the table, or the store and all tables together from one backup; what attempt "
        f"{committed_by} has written is in no table and can't be reconstructed for one table alone"
    )
    return Disagreement(Problem.TABLE_BEHIND, description, remedy)


def _explain_rewound(version: AttemptId, txid: TxId) -> Disagreement:
    description = f"attempt {version} at transaction {txid} has written it last, which a rewind has taken back since"
    remedy = "give the component a new table, or another id: this table did not go back with the others"
    return Disagreement(Problem.TABLE_AHEAD, description, remedy)


def _explain_ahead(txid: TxId, committed: TxId) -> Disagreement:
    description = f"it is at transaction {txid}, and only {committed} is committed: the store was restored"
    remedy = (
        f"let the store catch up with transaction {txid}, from a journal of the runs "
        "(transactional doctor --repair --journal)"
    )
    return Disagreement(Problem.TABLE_AHEAD, description, remedy, can_repair=True)
