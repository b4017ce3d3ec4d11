"""The leader's part of a sink for Delta: it takes the table over, and appends to it.

Two threads write Delta commits: the relay's, which publishes, and the upkeep's, which merges files. A lock keeps them
apart, so that neither finds its version taken by the other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from sinks.delta.append_log import AppendLog, TableSnapshot, VersionTaken, check_owner, check_removal, unavailable
from sinks.delta.columns import SinkColumns
from sinks.delta.compaction import FileMerger, Merge
from sinks.delta.entries import entry, replacement_entry, with_columns, with_publisher
from sinks.delta.run_files import RunFiles
from sinks.delta.upkeep import SinkUpkeep
from transactional.core.ports import PublishedRecords, SinkOwner
from transactional.model.attempt import TxId
from transactional.model.errors import CorruptRecord, SinkUnavailable, StoreMismatch

_TRIES_MAX: Final = 20
"""The number of Delta commits of others that a publication gives way to before it waits."""


class DeltaPublisher:
    """Publishes to one table for one leader."""

    def __init__(self, log: AppendLog, files: RunFiles, columns: SinkColumns, owner: SinkOwner) -> None:
        self._log, self._files, self._columns, self.owner = log, files, columns, owner
        self.location = log.location
        self._snapshot: TableSnapshot | None = None
        self._is_fresh = True
        self._writing = threading.Lock()
        self.upkeep = SinkUpkeep(log, files, self.replace_files)

    def open(self, *, has_published: bool) -> None:
        """Take the table over, or create it."""
        for _ in range(_TRIES_MAX):
            snapshot = self._log.read()
            if snapshot is None:
                self._create(has_published=has_published)
                continue
            try:
                self._log.sync_folders()
                self._snapshot = self._fenced(snapshot, has_published=has_published)
            except VersionTaken:
                continue
            except OSError as error:
                raise unavailable(self.location, f"sink {self.owner.sink!r} can't take it over", error) from None
            return
        raise SinkUnavailable(f"Delta table {self.location}: others write to it too often to take it over")

    def read_own_snapshot(self) -> TableSnapshot:
        """Return the newest version that this leader knows. Raises `SinkUnavailable` if another one has fenced it."""
        if self._snapshot is None:
            snapshot = self._log.read()
            if snapshot is None:
                raise StoreMismatch(f"sink {self.owner.sink!r}: Delta table {self.location} is no longer there")
            if snapshot.fence_id != self.owner.fence_id:
                raise SinkUnavailable(
                    f"sink {self.owner.sink!r}: Delta table {self.location} has the fence id {snapshot.fence_id}, and "
                    f"this leader {self.owner.fence_id}",
                    is_fenced=True,
                )
            self._columns.check_table(snapshot, str(self.location))
            self._snapshot, self._is_fresh = snapshot, True
        return self._snapshot

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        """Append the rows of transactions by one Delta commit."""
        with self._writing:
            snapshot = self._publish(group)
        first_unsettled = group[0].publication.attempt.attempt_id
        self.upkeep.begin_if_due(snapshot.version, snapshot.checkpoint_interval, first_unsettled)

    def _publish(self, group: Sequence[PublishedRecords]) -> TableSnapshot:
        for _ in range(_TRIES_MAX):
            snapshot = self.read_own_snapshot()
            waiting = self._unpublished(snapshot, group)
            if not waiting:
                return snapshot
            try:
                return self._append(snapshot, waiting)
            except VersionTaken:
                self._snapshot = None
            except OSError as error:
                self._snapshot = None
                raise unavailable(self.location, f"sink {self.owner.sink!r} can't publish", error) from None
        raise SinkUnavailable(f"Delta table {self.location}: others write to it too often to append to it")

    def replace_files(self, merge: Merge) -> bool:
        """Make a merge part of the table, unless others have removed one of its old files. Raises `OperatingError`."""
        if (snapshot := self._snapshot) is not None and not merge.follow(self.location, snapshot.version):
            return False
        for _ in range(_TRIES_MAX):
            with self._writing:
                snapshot = self.read_own_snapshot()
                if not merge.follow(self.location, snapshot.version):
                    return False
                version = snapshot.version + 1
                self._snapshot = None
                try:
                    self._log.write(version, replacement_entry(snapshot, self.owner, merge))
                except VersionTaken:
                    continue
                except OSError as error:
                    raise unavailable(self.location, "files can't be merged", error) from None
                self._snapshot = replace(snapshot, version=version)
                return True
        return False

    def go_back(self, txid_column: str, txid: TxId) -> None:
        """Take out the rows of later transactions: files that also have other rows are replaced."""
        merger = FileMerger(self._files)
        for _ in range(_TRIES_MAX):
            with self._writing:
                self._snapshot = None
                snapshot, table = self.read_own_snapshot(), self._log.load()
                self._snapshot = None
                if table.version() != snapshot.version:
                    continue
                merge: Merge | None = None
                try:
                    merge = merger.divide(table, txid_column, txid)
                    if merge is None and not self._log.delete_after(snapshot, txid_column, txid):
                        continue
                    if merge is not None and merge.old:
                        check_removal(snapshot, self.location)
                        actions = replacement_entry(snapshot, self.owner, merge, removes_rows=True)
                        self._log.write(snapshot.version + 1, actions)
                except VersionTaken:
                    if merge is not None:
                        merger.discard(merge)
                    continue
                except (OSError, pa.ArrowException) as error:
                    problem = f"rows after transaction {txid} can't be taken out"
                    raise unavailable(self.location, problem, error) from None
                return
        raise SinkUnavailable(f"Delta table {self.location}: others write to it too often to take rows out of it")

    def _create(self, *, has_published: bool) -> None:
        owner = self.owner
        if has_published:
            raise StoreMismatch(
                f"sink {owner.sink!r} of topology {owner.topology_id!r}: there is no Delta table at {self.location}, "
                "and the store has published to it; restore the table from a backup"
            )
        try:
            self._log.create_table(self._columns.table_schema, self._columns.partition_names, {})
        except OSError as error:
            raise unavailable(self.location, "it can't be created", error) from None

    def _fenced(self, snapshot: TableSnapshot, *, has_published: bool) -> TableSnapshot:
        """Write the fence of this leader, and the columns that the stream has gained. Return the version after that."""
        owner = self.owner
        check_owner(snapshot, owner, self.location)
        if has_published and not snapshot.publisher and snapshot.position is None:
            raise StoreMismatch(
                f"sink {owner.sink!r} of topology {owner.topology_id!r}: Delta table {self.location} has no position "
                "of a sink, and the store has published to one; use the table to which it has published"
            )
        gained = self._columns.check_table(snapshot, str(self.location))
        if snapshot.fence_id > owner.fence_id:
            raise StoreMismatch(
                f"sink {owner.sink!r} of topology {owner.topology_id!r}: a leader with the fence id "
                f"{snapshot.fence_id} publishes to Delta table {self.location}, and this one has {owner.fence_id}: the "
                "store is an older backup, or a copy"
            )
        metadata = with_columns(snapshot.metadata, gained) if gained else snapshot.metadata
        if not snapshot.publisher:
            metadata = with_publisher(metadata, owner, "")
        if snapshot.fence_id == owner.fence_id and metadata is snapshot.metadata:
            return snapshot
        changed = None if metadata is snapshot.metadata else metadata
        self._log.write(snapshot.version + 1, entry(snapshot, owner, None, metadata=changed))
        return replace(snapshot, version=snapshot.version + 1, metadata=metadata, fence_id=int(owner.fence_id))

    def _unpublished(self, snapshot: TableSnapshot, group: Sequence[PublishedRecords]) -> Sequence[PublishedRecords]:
        """Return the transactions of a group that the table lacks: a commit without an answer may have succeeded.

        It may have been the commit of a larger group. Attempt ids only rise. Those of transactions do not: after a
        rewind they come again.
        """
        position, first = snapshot.position, group[0].publication.attempt
        if position is None or position.publication.attempt.attempt_id < first.attempt_id:
            return group
        publications = [published.publication for published in group]
        if position.publication in publications:
            return group[publications.index(position.publication) + 1 :]
        if position.publication.attempt.txid > publications[-1].attempt.txid:
            return ()
        raise StoreMismatch(
            f"Delta table {self.location} ends with {position.publication.attempt}, and {publications[0].attempt} is "
            "to be published: somebody else has written this sink's position"
        )

    def _append(self, snapshot: TableSnapshot, group: Sequence[PublishedRecords]) -> TableSnapshot:
        """Write the Delta commit that adds the files of a group, and return its version."""
        newest = group[-1].publication
        files = pa.concat_tables([published.records for published in group])
        if (self._is_fresh or self.location.scheme == "file") and (problem := self._files.find_missing(files)):
            raise CorruptRecord(
                f"sink {self.owner.sink!r}: a file of committed transactions {group[0].publication.attempt.txid} to "
                f"{newest.attempt.txid} is lost: {problem} in {self.location}; restore it from a backup"
            )
        metadata = snapshot.metadata
        if snapshot.publisher.get("run") != newest.run:
            metadata = with_publisher(metadata, self.owner, newest.run)
        changed = None if metadata is snapshot.metadata else metadata
        version = snapshot.version + 1
        self._log.write(version, entry(snapshot, self.owner, newest, files=files.to_pylist(), metadata=changed))
        attempt = newest.attempt
        self._snapshot = replace(
            snapshot, version=version, metadata=metadata, attempt_id=int(attempt.attempt_id), txid=int(attempt.txid)
        )
        self._is_fresh = False
        return self._snapshot
