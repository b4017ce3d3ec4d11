"""Tables whose rows expire: checks the expiry horizons that each transaction has recorded.

The horizon of a transaction is a time, in microseconds since 1970: rows whose expiry is at or before it do not exist
for the transaction and its readers. It is computed here from what the store has recorded of the batch, without the code
of the states. It never goes back. `checker` checks tables in Delta with `check_horizons`; `sql_tables` checks each
transaction of a database with `check_horizon`.
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
_NO_HORIZON: Final = -(2**63)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ExpiryRule:
    """How rows of `component` expire: once their `column` is `after_us` microseconds before the batch's time, which is
    when it was planned, or with `by_event` its recorded watermark."""

    column: str
    after_us: int
    by_event: bool = False
    component: str = ""

    def horizon(self, batch: CommittedBatch) -> int | None:
        """Return the horizon of the batch alone, without those before it. None: nothing expires."""
        batch_time_us = batch.time_ms and batch.time_ms * 1_000
        if self.by_event:
            batch_time_us = batch.watermark_of(self.component)
        return None if batch_time_us is None else batch_time_us - self.after_us


@dataclass(frozen=True, slots=True)
class ExpiryHorizons:
    """The horizons that transaction `txid` has recorded: its own, and that of the transaction before it. None: nothing
    expires."""

    txid: int
    current: int | None
    previous: int | None


def read_horizons(app_versions: Mapping[str, int], owner: str) -> ExpiryHorizons | None:
    """Return the horizons among the app transactions of a Delta commit, None if there are none."""
    if not (txid := app_versions.get(f"{owner}#horizon-txid")):
        return None
    versions = (app_versions.get(f"{owner}#{name}", _NO_HORIZON) for name in ("horizon", "previous-horizon"))
    return ExpiryHorizons(txid, *(None if version == _NO_HORIZON else version for version in versions))


def horizons_by_version(log: TableLog, owner: str) -> dict[int, ExpiryHorizons | None]:
    """Return the newest recorded horizons as of each Delta version."""
    newest = read_horizons(log.base_app_versions, owner)
    by_version = dict[int, ExpiryHorizons | None]()
    for commit in log.commits:
        newest = read_horizons(commit.app_versions, owner) or newest
        by_version[commit.version] = newest
    return by_version


def check_horizons(
    component: str, log: TableLog, history: StoreHistory, rule: ExpiryRule | None, findings: Findings
) -> None:
    """Check that each transaction's horizon is that of its batch, and that it continues the one before it.

    `rule` None: the horizon that a batch should have is not known.
    """
    owner = f"{history.topology_id}/{component}"
    predecessor: ExpiryHorizons | None = read_horizons(log.base_app_versions, owner)
    newest, batches = predecessor, {batch.attempt_id: batch for batch in history.committed}
    for commit in log.commits:
        horizons = read_horizons(commit.app_versions, owner)
        if horizons is None:
            continue
        if commit.restored is not None:
            newest = predecessor = horizons
            continue
        if newest is not None and horizons.txid > newest.txid:
            predecessor = newest
        place = f"table of {component!r}, Delta version {commit.version}, transaction {horizons.txid}"
        if predecessor is not None and predecessor.txid < horizons.txid and horizons.previous != predecessor.current:
            expectation = f"the previous expiry horizon to be {predecessor.current}, as recorded"
            findings.add(Kind.BROKEN_ROW, place, expectation, horizons.previous)
        batch = batches.get(commit.app_versions.get(owner, -1))
        check_horizon(place, horizons, batch, rule, findings)
        newest = horizons


def check_horizon(
    place: str, horizons: ExpiryHorizons, batch: CommittedBatch | None, rule: ExpiryRule | None, findings: Findings
) -> None:
    """Check the horizon that an attempt has recorded against its committed batch. Where batch or rule is not known,
    check only that the horizon does not go back."""
    current, previous = horizons.current, horizons.previous
    if rule is not None and batch is not None and batch.txid == horizons.txid:
        candidates = [horizon for horizon in (rule.horizon(batch), previous) if horizon is not None]
        expected = max(candidates, default=None)
        if current != expected:
            findings.add(Kind.BROKEN_ROW, place, f"the expiry horizon {expected}, by its batch", current)
        findings.add_checked("expiry horizons", 1)
    elif previous is not None and (current is None or current < previous):
        findings.add(Kind.BROKEN_ROW, place, f"an expiry horizon that is not before {previous}", current)


def is_expired(expiry: datetime | None, horizon: int | None) -> bool:
    """Return whether a row with this expiry is at or before the horizon. A row without expiry never is."""
    if expiry is None or horizon is None:
        return False
    return (expiry - datetime(1970, 1, 1, tzinfo=expiry.tzinfo)) // _MICROSECOND <= horizon
