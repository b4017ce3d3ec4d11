"""Taking a state's Delta table back to an earlier transaction.

The Delta version as of that transaction is found in the table's log, and restored in one Delta commit. Delta's own
RESTORE brings back files and properties, but no app transactions. So the fence, and the app transactions that a layout
records beside it, are written in the same commit.
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
from state.delta.log.log import MALFORMED_ENTRY_ERRORS, NO_POST_COMMIT_HOOKS, entry_name, find_empty_entry
from state.delta.open_table import OpenTable
from state.delta.tables.table import DeltaLocation, load_table, open_storage, write_refused_error
from state.delta.upkeep.table_upkeep import RetainedParts
from state.delta.write.engine_commits import by_delta_rs, single_try
from state.delta.write.loaded_table import LoadedTable
from transactional.core.ports.state_parts import RewindTarget
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import BeyondKept, OperatingError
from transactional.model.names import OWNER_NOTE, REWOUND_NOTE, repair_of

_log = logging.getLogger(__name__)


class TableHistory:
    """The entries of a table's log, from a Delta version back to the first missing one. They are read when needed.

    Raises `OperatingError` if an entry exists and can't be read.
    """

    def __init__(self, location: DeltaLocation, owner: str, newest: int) -> None:
        self.location, self.owner = location, owner
        self._cached = list[Entry]()
        """The entries that were read, newest first."""
        self._older = self._read(newest)

    def _read(self, newest: int) -> Iterator[Entry]:
        files = log_files(self.location)
        for version in range(newest, -1, -1):
            try:
                yield read_entry(files, version)
            except FileNotFoundError:
                return  # older entries are cleaned out
            except (OSError, *MALFORMED_ENTRY_ERRORS) as error:
                reason = self.location.describe_error(error)
                raise OperatingError(
                    f"Delta version {version} of table {self.location} can't be read: {reason}"
                ) from None

    def newest_first(self) -> Iterator[Entry]:
        """Yield the entries, newest first. An entry is read when the caller needs it."""
        for n in count():
            if n == len(self._cached):
                entry = next(self._older, None)
                if entry is None:
                    return
                self._cached.append(entry)
            yield self._cached[n]

    @cached_property
    def entries(self) -> Sequence[Entry]:
        """All entries, oldest first."""
        return list(self.newest_first())[::-1]

    def version_at(self, target: RewindTarget) -> int:
        """Return the Delta version with the table as it was after the target's transaction. Raises `BeyondKept`.

        It is the newest such version, so that compactions that came before the next write are kept.
        """
        same_rows_version: int | None = None
        for entry in self.newest_first():
            same_rows_version = entry.version if same_rows_version is None else same_rows_version
            if self.owner in entry.app_versions and entry.app_versions[self.owner] == target.attempt_id:
                return same_rows_version
            if self._may_change(entry):
                same_rows_version = None
        return self._before_first(target)

    def _may_change(self, entry: Entry) -> bool:
        """True if an entry may have changed rows. The changes of an empty entry are not known."""
        return self.owner in entry.app_versions or is_foreign(entry, self.owner) or not entry.actions

    def _last_version_like(self, n: int) -> int:
        """Return the last Delta version with the same rows as entry `n` of `entries`."""
        version = self.entries[n].version
        for entry in self.entries[n + 1 :]:
            if self._may_change(entry):
                break
            version = entry.version
        return version

    def _before_first(self, target: RewindTarget) -> int:
        """Return the Delta version before the first row, for a table created after the target's transaction."""
        if not self.entries or self.entries[0].version != 0:
            raise BeyondKept("its log no longer goes back that far")
        first = next((entry for entry in self.entries if entry.changes_data), None)
        if first is None:
            return self.entries[-1].version
        if target.txid and not self._is_later(first, target):
            raise BeyondKept(f"no Delta commit in its log is that of attempt {target.attempt_id}")
        return first.version - 1

    def _is_later(self, entry: Entry, target: RewindTarget) -> bool:
        attempt_id = entry.app_versions.get(self.owner)
        txid = None if attempt_id is None else target.txid_of(AttemptId(attempt_id))
        return txid is not None and txid > target.txid

    def find_oldest_target(self, target: RewindTarget) -> TxId | None:
        """Return the oldest transaction that the table can be taken back to, or None if there is none."""
        last_entries = {
            entry.app_versions[self.owner]: n
            for n, entry in enumerate(self.entries)
            if self.owner in entry.app_versions
        }
        candidates = [
            (txid, n)
            for attempt_id, n in last_entries.items()
            if (txid := target.txid_of(AttemptId(attempt_id))) is not None
        ]
        low, high = 0, len(candidates)
        while low < high:  # deleted versions are older than the others
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_complete(candidates[middle][1]) else (middle + 1, high)
        return candidates[low][0] if low < len(candidates) else None

    def _is_complete(self, n: int) -> bool:
        try:
            check_complete(self.location, self._last_version_like(n))
        except BeyondKept:
            return False
        return True

    def app_ids_since(self, version: int) -> set[str]:
        """Return the app ids, beside the owner's, that the table's own commits after a Delta version have written."""
        later_entries = takewhile(lambda entry: entry.version > version, self.newest_first())
        app_ids = {app_id for entry in later_entries for app_id in entry.app_versions}
        return {app_id for app_id in app_ids if app_id.startswith(f"{self.owner}#")} - {repair_of(self.owner)}


def find_restorable_version(history: TableHistory, target: RewindTarget) -> int:
    """Return the Delta version to restore. Raises `BeyondKept`, which names the oldest possible transaction."""
    try:
        version = history.version_at(target)
        check_complete(history.location, version)
    except BeyondKept as error:
        oldest = history.find_oldest_target(target)
        alternative = (
            "no earlier one can be reached" if oldest is None else f"the oldest that it can go back to is {oldest}"
        )
        raise BeyondKept(
            f"Delta table {history.location} of {history.owner} can't go back to transaction {target.txid}: {error}; "
            f"{alternative}"
        ) from None
    return version


def find_retained_parts(table: LoadedTable, targets: Sequence[RewindTarget]) -> RetainedParts:
    """Return the parts of a table that a return to the targets needs. Raises `OperatingError`.

    A target that can no longer be reached is logged.
    """
    versions, paths = list[int](), set[str]()
    history = TableHistory(table.location, table.owner, table.delta_version) if targets else None
    for target in targets:
        assert history is not None
        try:
            version = history.version_at(target)
            paths |= check_complete(table.location, version)
            versions.append(version)
        except BeyondKept as error:
            _log.warning(
                "Delta table %s of %s can no longer go back to transaction %d, which a savepoint names: %s",
                *(table.location, table.owner, target.txid, error),
            )
    return RetainedParts(min(versions, default=None), frozenset(paths))


def check_complete(location: DeltaLocation, version: int) -> set[str]:
    """Return the files of a Delta version. Raises `BeyondKept` if it can't be loaded, or a file is missing."""
    options = dict(location.storage_options)
    try:
        if (empty_version := find_empty_entry(location, version)) is not None:
            raise BeyondKept(
                f"Delta version {version} can no longer be read: entry {entry_name(empty_version)} has no byte"
            )
        table = DeltaTable(location.uri, version=version, storage_options=options)
        paths = [unquote(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()]
        file_infos = open_storage(location).get_file_info(paths)
    except (DeltaError, OSError) as error:
        raise BeyondKept(f"Delta version {version} can no longer be read: {location.describe_error(error)}") from None
    if missing := sum(not file.is_file for file in file_infos):
        raise BeyondKept(f"{missing} of the {len(paths)} files of Delta version {version} are deleted")
    return set(paths)


def restore(opened: OpenTable, target: RewindTarget, fence_id: AttemptId) -> None:
    """Restore the table over the version that was read and checked, under a new fence. Raises `WriteRefused`,
    `BeyondKept`."""
    table = opened.loaded
    history = TableHistory(table.location, table.owner, table.read_version)
    version = find_restorable_version(history, target)
    if version == table.read_version:
        return opened.write_version(fence_id, None)
    table.disk.settle()
    restored = DeltaTable(table.location.uri, version=version, storage_options=dict(table.location.storage_options))
    transactions = [
        Transaction(app_id, restored.transaction_version(app_id) or 0) for app_id in history.app_ids_since(version)
    ]
    note = {OWNER_NOTE: table.owner, REWOUND_NOTE: int(target.txid), "attempt_id": int(fence_id)}
    properties = single_try([Transaction(table.owner, fence_id), *transactions], {"userMetadata": json.dumps(note)})
    with by_delta_rs(table) as snapshot:
        snapshot.restore(version, commit_properties=properties, post_commithook_properties=NO_POST_COMMIT_HOOKS)
    if find_empty_entry(table.location) is not None:
        # Whoever loads the table from the checkpoint does not read the empty entry.
        try:
            table.engine.create_checkpoint()
            return table.disk.settle_checkpoint()
        except (DeltaError, OSError) as error:
            raise write_refused_error(table.location, error) from None
    return table.disk.settle()


def describe_restore(location: DeltaLocation, owner: str, target: RewindTarget) -> str:
    """Return in words what `restore` would do now. Raises the same errors."""
    newest = load_table(location).version()
    version = find_restorable_version(TableHistory(location, owner, newest), target)
    return f"Delta table {location}: version {newest} goes back to what version {version} is"
