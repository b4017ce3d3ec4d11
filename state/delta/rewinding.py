"""Taking a state's Delta table back to an earlier transaction: found in the table's log, restored in one Delta commit.

Delta's own RESTORE brings files and properties back, but no app transactions: the fence, and what the layouts note by
app transactions beside it, are written in the same Delta commit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count, takewhile
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from state.delta.log.entries import Entry, is_foreign, log_files, read_entry
from state.delta.log.log import NOTHING_AFTERWARDS, UNREADABLE, empty_entry, entry_name
from state.delta.log.version import TableVersion
from state.delta.tables.table import DeltaLocation, load_table, refused, storage_of
from state.delta.writing.commit import as_attempt, by_delta_rs, commit_files, once
from state.delta.writing.layout import Held
from transactional.core.ports.rewinding import RewindTarget
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import BeyondKept, OperatingError
from transactional.model.names import OWNER_NOTE, REWOUND_NOTE, repair_of

_log = logging.getLogger(__name__)


class TableHistory:
    """A table's log, from a Delta version back as far as it goes without a hole, or as far as somebody has read.

    Raises `OperatingError` where an entry is there and can't be read.
    """

    def __init__(self, location: DeltaLocation, owner: str, newest: int) -> None:
        self.location, self.owner = location, owner
        self._known = list[Entry]()
        """Newest first."""
        self._older = self._read(newest)

    def _read(self, newest: int) -> Iterator[Entry]:
        files = log_files(self.location)
        for version in range(newest, -1, -1):
            try:
                yield read_entry(files, version)
            except FileNotFoundError:
                return  # older entries are cleaned out
            except (OSError, *UNREADABLE) as error:
                why = f"Delta version {version} of table {self.location} can't be read: {self.location.reason(error)}"
                raise OperatingError(why) from None

    def newest_first(self) -> Iterator[Entry]:
        """Reads no further than the caller does."""
        for n in count():
            if n == len(self._known):
                entry = next(self._older, None)
                if entry is None:
                    return
                self._known.append(entry)
            yield self._known[n]

    @cached_property
    def entries(self) -> Sequence[Entry]:
        """All of them, oldest first."""
        return list(self.newest_first())[::-1]

    def version_at(self, target: RewindTarget) -> int:
        """The Delta version with the table as it was after the target's transaction. Raises `BeyondKept`.

        It is the newest one before anything else was written: what was compacted by then is, too.
        """
        alike: int | None = None
        for entry in self.newest_first():
            alike = entry.version if alike is None else alike
            if self.owner in entry.app_versions and entry.app_versions[self.owner] == target.attempt_id:
                return alike
            if self._may_change(entry):
                alike = None
        return self._before_first(target)

    def _may_change(self, entry: Entry) -> bool:
        """Whether rows may differ after an entry: nobody knows what one without a byte has done."""
        return self.owner in entry.app_versions or is_foreign(entry, self.owner) or not entry.actions

    def _last_alike(self, n: int) -> int:
        """As `version_at`, after the entry at a place."""
        version = self.entries[n].version
        for entry in self.entries[n + 1 :]:
            if self._may_change(entry):
                break
            version = entry.version
        return version

    def _before_first(self, target: RewindTarget) -> int:
        """The Delta version before the first row, for a table that came later than the target's transaction."""
        if not self.entries or self.entries[0].version != 0:
            raise BeyondKept("its log no longer goes back that far")
        first = next((entry for entry in self.entries if entry.changes_data), None)
        if first is None:
            return self.entries[-1].version
        if target.txid and not self._is_later(first, target):
            raise BeyondKept(f"no Delta commit in its log is that of attempt {target.attempt_id}")
        return first.version - 1

    def _is_later(self, first: Entry, target: RewindTarget) -> bool:
        by = first.app_versions.get(self.owner)
        txid = None if by is None else target.txid_of(AttemptId(by))
        return txid is not None and txid > target.txid

    def oldest_within_reach(self, target: RewindTarget) -> TxId | None:
        """The oldest transaction that the table can be taken back to; None: none."""
        written = {
            entry.app_versions[self.owner]: n
            for n, entry in enumerate(self.entries)
            if self.owner in entry.app_versions
        }
        known = [(txid, n) for by, n in written.items() if (txid := target.txid_of(AttemptId(by))) is not None]
        low, high = 0, len(known)
        while low < high:  # whatever is gone is older than what is there
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_whole(known[middle][1]) else (middle + 1, high)
        return known[low][0] if low < len(known) else None

    def _is_whole(self, n: int) -> bool:
        try:
            check_whole(self.location, self._last_alike(n))
        except BeyondKept:
            return False
        return True

    def noted_since(self, version: int) -> set[str]:
        """The table's own app transactions beside the fence that were written after a Delta version."""
        after = takewhile(lambda entry: entry.version > version, self.newest_first())
        own = {app_id for entry in after for app_id in entry.app_versions if app_id.startswith(f"{self.owner}#")}
        return own - {repair_of(self.owner)}


def version_within_reach(history: TableHistory, target: RewindTarget) -> int:
    """The Delta version to restore. Raises `BeyondKept`, which names the oldest transaction that can be reached."""
    try:
        version = history.version_at(target)
        check_whole(history.location, version)
    except BeyondKept as error:
        oldest = history.oldest_within_reach(target)
        within = "no earlier one can be reached" if oldest is None else f"the oldest that it can go back to is {oldest}"
        raise BeyondKept(
            f"Delta table {history.location} of {history.owner} can't go back to transaction {target.txid}: {error}; "
            f"{within}"
        ) from None
    return version


def held_for(table: TableVersion, targets: Sequence[RewindTarget]) -> Held:
    """What going back to the targets takes; what of it is gone already is logged. Raises `OperatingError`."""
    versions, paths = list[int](), set[str]()
    history = TableHistory(table.location, table.owner, table.delta_version) if targets else None
    for target in targets:
        assert history is not None
        try:
            version = history.version_at(target)
            paths |= check_whole(table.location, version)
            versions.append(version)
        except BeyondKept as error:
            _log.warning(
                "Delta table %s of %s can no longer go back to transaction %d, which a savepoint names: %s",
                *(table.location, table.owner, target.txid, error),
            )
    return Held(min(versions, default=None), frozenset(paths))


def check_whole(location: DeltaLocation, version: int) -> set[str]:
    """The files of a Delta version. Raises `BeyondKept` unless it can be loaded and all of them are there."""
    options = dict(location.storage_options)
    try:
        if (lost := empty_entry(location, version)) is not None:
            raise BeyondKept(f"Delta version {version} can no longer be read: entry {entry_name(lost)} has no byte")
        table = DeltaTable(location.uri, version=version, storage_options=options)
        paths = [unquote(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()]
        there = storage_of(location).get_file_info(paths)
    except (DeltaError, OSError) as error:
        raise BeyondKept(f"Delta version {version} can no longer be read: {location.reason(error)}") from None
    if gone := sum(not info.is_file for info in there):
        raise BeyondKept(f"{gone} of the {len(paths)} files of Delta version {version} are deleted")
    return set(paths)


def restore(table: TableVersion, target: RewindTarget, fence_id: AttemptId) -> None:
    """Restore the table over the version that was read and checked, under a new fence. Raises `WriteRefused`,
    `BeyondKept`."""
    history = TableHistory(table.location, table.owner, table.read_version)
    version = version_within_reach(history, target)
    table.disk.settle()
    if version == table.read_version:
        return commit_files(table, [], as_attempt(table, fence_id, None))
    then = DeltaTable(table.location.uri, version=version, storage_options=dict(table.location.storage_options))
    noted = [Transaction(app_id, then.transaction_version(app_id) or 0) for app_id in history.noted_since(version)]
    note = {OWNER_NOTE: table.owner, REWOUND_NOTE: int(target.txid), "attempt_id": int(fence_id)}
    properties = once([Transaction(table.owner, fence_id), *noted], {"userMetadata": json.dumps(note)})
    with by_delta_rs(table) as snapshot:
        snapshot.restore(version, commit_properties=properties, post_commithook_properties=NOTHING_AFTERWARDS)
    if empty_entry(table.location) is not None:
        # Nothing that loads the table from here on reads what is lost.
        try:
            table.snapshot.create_checkpoint()
            return table.disk.settle_checkpoint()
        except (DeltaError, OSError) as error:
            raise refused(table.location, error) from None
    return table.disk.settle()


def reached(location: DeltaLocation, owner: str, target: RewindTarget) -> str:
    """What `restore` would do now, in words. Raises as it does."""
    newest = load_table(location).version()
    version = version_within_reach(TableHistory(location, owner, newest), target)
    return f"Delta table {location}: version {newest} goes back to what version {version} is"
