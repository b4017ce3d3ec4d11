"""A Delta table as it was judged: a snapshot that moves on only when told to, and Delta commits over it or none.

Every Delta commit of a state's table is a compare-and-set: it is the one after the version that was judged, or it is
refused. delta-rs by itself would move it behind what others have written meanwhile, and a rewrite of the same rows is
nothing that it minds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from state.base import StateColumns, WriteRefused
from state.delta.loading import features_of, load_table, refused
from state.delta.others import check_not_foreign, entries_between, entries_since_own
from state.delta.small_commit import is_late
from state.delta.table import DeltaLocation, check_protocol, check_table
from state.delta.upkeep import LOG_KEPT_S, NOTHING_AFTERWARDS, LogUpkeep
from transactional.attempt import AttemptId
from transactional.errors import StoreMismatch


@dataclass(frozen=True, slots=True)
class OwnVersion:
    """A Delta version that the handle has written without delta-rs, by this attempt; delta-rs' snapshot is older."""

    delta_version: int
    attempt_id: AttemptId


def once(transactions: list[Transaction], metadata: dict[str, str] | None = None) -> CommitProperties:
    """A Delta commit that delta-rs refuses when its version is taken, whatever took it: by itself it tries the next."""
    return CommitProperties(app_transactions=transactions, custom_metadata=metadata, max_commit_retries=0)


class JudgedTable:
    """A snapshot of a state's table, for the one thread that writes the table."""

    def __init__(self, location: DeltaLocation, owner: str, columns: StateColumns) -> None:
        self._location, self._owner, self._columns = location, owner, columns
        self._snapshot = load_table(location)
        self._own: OwnVersion | None = None
        self._judged = self._snapshot.version()
        self._mismatch: StoreMismatch | None = None
        self._upkeep = LogUpkeep(location, self._snapshot)
        self._versions_at, self._versions = -1, dict[str, int | None]()

    @property
    def location(self) -> DeltaLocation:
        """Where the table is."""
        return self._location

    @property
    def owner(self) -> str:
        """Whose handle it is: `<topology>/<component>`."""
        return self._owner

    @property
    def snapshot(self) -> DeltaTable:
        """delta-rs' snapshot of the Delta version that the handle is at."""
        return self._table

    @property
    def _table(self) -> DeltaTable:
        if self._own is not None:
            self._snapshot.update_incremental()
            if self._snapshot.version() != self._own.delta_version:
                # Another writer's is for `refresh` to find.
                self._snapshot.load_as_version(self._own.delta_version)
            self._own = None
        return self._snapshot

    @property
    def delta_version(self) -> int:
        """The Delta version that the handle is at."""
        return self._snapshot.version() if self._own is None else self._own.delta_version

    def version(self) -> AttemptId | None:
        """The attempt id that this Delta version was written by."""
        if self._own is not None:
            return self._own.attempt_id
        version = self._transaction_version(self._owner)
        return None if version is None else AttemptId(version)

    def _transaction_version(self, app_id: str) -> int | None:
        """The snapshot's version of an app id. delta-rs reads the log each time; it is asked once per snapshot."""
        delta_version = self._table.version()
        if self._versions_at != delta_version:
            self._versions_at, self._versions = delta_version, {}
        if app_id not in self._versions:
            self._versions[app_id] = self._table.transaction_version(app_id)
        return self._versions[app_id]

    def judge(self) -> AttemptId | None:
        """Move to the newest snapshot, over which is written from now on; the attempt id that it was written by.

        Raises `OperatingError`, and `StoreMismatch` when something else has changed rows.
        """
        self.refresh()
        self._judged = self.delta_version
        return self.version()

    def refresh(self) -> None:
        """Move to the newest snapshot. Raises as `judge`."""
        if self._mismatch is not None:
            raise self._mismatch
        known = self.delta_version
        try:
            if self._upkeep.is_newest(known):
                return
            self._own = None
            self._snapshot.update_incremental()
        except (DeltaError, OSError):
            # What was loaded may have gone with an old log; from the last checkpoint it can be read again.
            self._load()
        self._look_at_others(known)

    def _load(self) -> None:
        self._snapshot, self._own = load_table(self._location), None

    def _look_at_others(self, after: int) -> None:
        entries = entries_between(self._location, after, self.delta_version)
        try:
            check_not_foreign(self._location, self._owner, entries)
        except StoreMismatch as error:
            self._mismatch = error
            raise
        if any(entry.changes_table for entry in entries):
            self.check()

    def check_as_left(self) -> None:
        """Raise `StoreMismatch` when something else has changed rows since the owner's last Delta commit.

        What comes after the next one of the owner is looked at as it comes (`refresh`).
        """
        if self.version() is not None:
            since = entries_since_own(self._location, self._owner, self.delta_version)
            check_not_foreign(self._location, self._owner, since)

    @contextmanager
    def writing(self) -> Iterator[DeltaTable]:
        """What is committed in here by delta-rs, once and without retries, comes right after the version that was
        judged. Raises `WriteRefused`.
        """
        began_s = time.monotonic()
        try:
            table = self._table
            self._check_judged()
            yield table
            self._has_written(table, began_s)
        except (DeltaError, OSError, pa.ArrowException) as error:  # the last: a sum that does not fit
            if isinstance(error, CommitFailedError) or self._has_moved():
                came = f"another writer's Delta commit came between: {self._location.reason(error)}"
                raise WriteRefused(came, is_conflict=True) from None
            raise refused(self._location, error) from None

    def _has_moved(self) -> bool:
        """Whether there is a later version than the judged one, or its log is gone: then any error may come of it."""
        try:
            return not self._upkeep.is_newest(self._judged)
        except OSError:
            return False

    def _check_judged(self) -> None:
        if self.delta_version != self._judged:
            reason = f"the table was judged at Delta version {self._judged}, and loaded again at {self.delta_version}"
            raise WriteRefused(reason, is_conflict=True)

    def _has_written(self, table: DeltaTable, began_s: float) -> None:
        if table.version() == self._judged:
            return  # a merge without effect
        self._judged += 1
        if table.version() != self._judged:
            # What has come after it is for `refresh` to find.
            table.load_as_version(self._judged)
        if self._location.scheme == "file":
            may_be_late = is_late(Path(self._location.uri), self._judged)
        else:
            # Asking a far storage costs time, and entries are kept for longer than a write takes.
            may_be_late = time.monotonic() - began_s > LOG_KEPT_S / 2
        if may_be_late:
            self._judge_late()

    def _judge_late(self) -> None:
        """Raise `WriteRefused` when the version that was written had been another's, and was cleaned out of the log."""
        written, by = self._judged, self.version()
        self._load()
        if self.version() != by:
            self._upkeep.withdraw(written)
            reason = f"another writer's Delta version {written} was cleaned out of the log"
            raise WriteRefused(reason, is_conflict=True)
        self._look_at_others(written)
        self._judged = self.delta_version

    def commit(self, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties) -> None:
        """Make a Delta commit of some files that come or go. Raises `WriteRefused`."""
        with self.writing() as table:
            table.create_write_transaction(
                list(actions),
                mode="append",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=properties,
                post_commithook_properties=NOTHING_AFTERWARDS,
            )
            # This call, unlike others, leaves the snapshot where it was.
            table.update_incremental()
            if table.version() != self._judged + 1:
                table.load_as_version(self._judged + 1)

    def check(self) -> None:
        """Raise `SchemaMismatch` when the table is not one for this state."""
        protocol, name = self._table.protocol(), str(self._location)
        features = features_of(protocol)
        check_protocol(protocol.min_reader_version, protocol.min_writer_version, features, name)
        properties = {key: str(value) for key, value in self._table.metadata().configuration.items()}
        check_table(self._columns, pa.schema(self._table.schema()), properties, name)
