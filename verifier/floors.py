"""Tables whose rows expire: what each transaction has recorded of floors, computed again from its batch.

A transaction's floor is a time, in microseconds since 1970: rows whose expiry is at or below it do not exist for the
transaction and its readers. It follows from what the store has recorded of the batch, and never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from verifier.evidence.delta_log import TableLog
from verifier.evidence.findings import Findings, Kind
from verifier.evidence.store import CommittedBatch, StoreHistory

EXPIRES_PROPERTY: Final = "transactional.expires"
_NEVER: Final = -(2**63)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Expires:
    """A row goes once its `column` is `after_us` microseconds before the batch's time: when it was planned, or with
    `by_event` the time before which its tuples are late."""

    column: str
    after_us: int
    by_event: bool = False
    component: str = ""
    """Whose rows they are."""

    def floor(self, batch: CommittedBatch) -> int | None:
        """What the batch alone makes the floor; None: nothing expires."""
        now = batch.time_ms and batch.time_ms * 1_000
        if self.by_event:
            now = batch.watermark_of(self.component)
        return None if now is None else now - self.after_us


@dataclass(frozen=True, slots=True)
class Floors:
    """What a transaction has recorded: its own floor, and that of the transaction before it; None: nothing expires."""

    txid: int
    floor: int | None
    before: int | None


def recorded(app_versions: Mapping[str, int], owner: str) -> Floors | None:
    """The floors among app transactions."""
    if not (txid := app_versions.get(f"{owner}#floor-txid")):
        return None
    floor, before = (app_versions.get(f"{owner}#{name}", _NEVER) for name in ("floor", "floor-before"))
    return Floors(txid, *(None if each == _NEVER else each for each in (floor, before)))


def before_version(log: TableLog, owner: str) -> dict[int, Floors | None]:
    """For each Delta commit what the table had recorded with it, or before it."""
    known = recorded(log.base_app_versions, owner)
    found = dict[int, Floors | None]()
    for commit in log.commits:
        known = recorded(commit.app_versions, owner) or known
        found[commit.version] = known
    return found


def check_floors(
    component: str, log: TableLog, history: StoreHistory, expires: Expires | None, findings: Findings
) -> None:
    """Check that each transaction's floor is that of its batch, and comes after the floor of the one before it.

    `expires` None: how it follows from the batch is not known.
    """
    owner = f"{history.topology_id}/{component}"
    settled: Floors | None = recorded(log.base_app_versions, owner)
    newest, batches = settled, {batch.attempt_id: batch for batch in history.committed}
    for commit in log.commits:
        found = recorded(commit.app_versions, owner)
        if found is None:
            continue
        if commit.restored is not None:
            newest = settled = found
            continue
        if newest is not None and found.txid > newest.txid:
            settled = newest
        where = f"table of {component!r}, Delta version {commit.version}, transaction {found.txid}"
        if settled is not None and settled.txid < found.txid and found.before != settled.floor:
            findings.add(Kind.BROKEN_ROW, where, f"the floor before to be {settled.floor}, as recorded", found.before)
        batch = batches.get(commit.app_versions.get(owner, -1))
        check_floor(where, found, batch, expires, findings)
        newest = found


def check_floor(
    where: str, found: Floors, batch: CommittedBatch | None, expires: Expires | None, findings: Findings
) -> None:
    """Check the floor that an attempt has recorded, by its batch if it is committed; else that it does not go back."""
    if expires is not None and batch is not None and batch.txid == found.txid:
        known = [each for each in (expires.floor(batch), found.before) if each is not None]
        expected = max(known, default=None)
        if found.floor != expected:
            findings.add(Kind.BROKEN_ROW, where, f"the floor {expected}, by its batch", found.floor)
        findings.looked_at("floors", 1)
    elif found.before is not None and (found.floor is None or found.floor < found.before):
        findings.add(Kind.BROKEN_ROW, where, f"a floor that is not below {found.before}", found.floor)


def is_past(expiry: datetime | None, floor: int | None) -> bool:
    """Whether a row of this expiry does not exist by a floor."""
    if expiry is None or floor is None:
        return False
    return (expiry - datetime(1970, 1, 1, tzinfo=expiry.tzinfo)) // _MICROSECOND <= floor
