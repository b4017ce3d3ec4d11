"""Checks a table's Delta commits against the store: each transaction once, in order, by its attempt and nobody else.

`check_log` goes through the log once, oldest commit first, and distinguishes what a commit can be: a transaction or
fence, a rewind, a compaction, a change of layout, maintenance, or a foreign write. Only the log is read, no data file.
The other functions check the files of the newest version, and which transaction the table is at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from verifier.evidence.delta_log import DataFile, DeltaCommit, TableLog
from verifier.evidence.findings import Findings, Kind
from verifier.evidence.storage import Storage
from verifier.evidence.store import StoreHistory

OWNER_PROPERTY = "transactional.owner"


@dataclass(frozen=True, slots=True)
class TableTxid:
    """The attempt or fence that wrote a table last, and its transaction, if that is known."""

    attempt_id: int | None
    txid: int | None


def check_log(
    component: str, log: TableLog, history: StoreHistory, txid_before: int, txid_column: str, findings: Findings
) -> TableTxid:
    """Check all Delta commits of a committer's table. Return its last writer.

    `txid_before` was committed before the log was read; later ones may have been written again since.
    """
    check = _LogCheck(component, log, history, txid_before, txid_column, findings)
    for commit in log.commits:
        check.take(commit)
    check.finish()
    findings.add_checked("Delta commits", len(log.commits))
    return TableTxid(check.attempt_id, check.txid)


def changed_files(storage: Storage, log: TableLog) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield the data files of the newest version whose size has changed: path, size in the log, and current size. The
    size in the log is None if it is unknown, the current one if the file does not exist."""
    for file in log.files().values():
        current_size = storage.size_bytes(file.path)
        if current_size is None or file.size_bytes not in (None, current_size):
            yield file.path, file.size_bytes, current_size


def check_contents(component: str, storage: Storage, log: TableLog, findings: Findings) -> None:
    """Check the digests of the data files of the newest version that have one in the log."""
    for file in log.files().values():
        if file.digest is not None:
            size = len(file.digest) // 2
            digest = hashlib.blake2b(storage.read(unquote(file.path)), digest_size=size).hexdigest()
            if digest != file.digest:
                place = f"table of {component!r}, data file {file.path}"
                findings.add(Kind.FILE_CHANGED, place, f"the bytes that were written, of digest {file.digest}", digest)


def check_table_txid(
    component: str, position: TableTxid, history: StoreHistory, txid_before: int, findings: Findings
) -> None:
    """Check that a table contains all committed transactions, and at most the next one.

    `txid_before` was committed before the table was read: for a running topology the store is ahead by now.
    """
    place = f"table of {component!r}"
    if position.attempt_id is None:
        if txid_before and history.fences.get(component):
            findings.add(Kind.TABLE_BEHIND, place, f"transaction {txid_before}", "none: nothing was written to it")
        return
    if position.txid is None:
        return  # already reported, or deleted from the store
    if position.txid < txid_before:
        findings.add(Kind.TABLE_BEHIND, place, f"transaction {txid_before}, which is committed", position.txid)
    elif position.txid > history.committed_txid + 1:
        findings.add(Kind.TABLE_AHEAD, place, f"at most transaction {history.committed_txid + 1}", position.txid)


@dataclass(slots=True)
class _LogCheck:
    """Checks a table's Delta commits one by one, oldest first.

    `attempt_id` and `txid` are those of the last writer, `written_by` the attempt of each transaction, `files` the data
    files, all as of the last commit that was taken. `foreign` is the first foreign write since a transaction.
    """

    component: str
    log: TableLog
    history: StoreHistory
    txid_before: int
    txid_column: str
    findings: Findings
    owner: str = ""
    fences: dict[int, int] = field(default_factory=dict)
    oldest_attempt_id: int = 0
    attempt_id: int | None = None
    txid: int | None = None
    written_by: dict[int, int] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    restored: dict[int, tuple[int | None, frozenset[str]]] = field(default_factory=dict)
    """The transaction and the files of each Delta version that a rewind goes back to."""
    foreign: DeltaCommit | None = None
    files_before_foreign: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.owner = f"{self.history.topology_id}/{self.component}"
        self.fences = self.history.fences_of(self.component)
        self.oldest_attempt_id = self.history.oldest_attempt_id or 0
        self.files = dict(self.log.base_files)
        self.restored = {
            commit.restored: (None, frozenset()) for commit in self.log.commits if commit.restored is not None
        }
        self.attempt_id = self.log.base_app_versions.get(self.owner)
        if self.attempt_id is not None:
            self.txid = self._txid_of(self.attempt_id, f"{self._place} before Delta version {self.log.base_version}")
        if self.log.base_version >= 0:
            self.findings.note(
                f"{self._place}: its history up to Delta version {self.log.base_version} has been cleaned up"
            )

    @property
    def _place(self) -> str:
        return f"table of {self.component!r}"

    def take(self, commit: DeltaCommit) -> None:
        """Check the next Delta commit."""
        place = f"{self._place}, Delta version {commit.version}"
        attempt_id = commit.app_versions.get(self.owner)
        compacted_txid = commit.app_versions.get(f"{self.owner}#compaction")
        if compacted_txid is not None and attempt_id == self.attempt_id and self._changes_layout(commit):
            self._take_layout_change(compacted_txid, commit, place)
        elif attempt_id is not None and commit.restored is not None and attempt_id in self.fences:
            self._take_rewind(attempt_id, commit, place)
        elif attempt_id is not None:
            self._take_attempt(attempt_id, commit, place)
        elif compacted_txid is not None and self._has_log_layout(commit):
            self._take_compaction(compacted_txid, commit, place)
        elif commit.changes_data and self.foreign is None:
            self.foreign, self.files_before_foreign = commit, frozenset(self.files)
        elif commit.added and not commit.changes_data:
            self._check_row_count(commit, place)
        for path in commit.removed:
            self.files.pop(path, None)
        for file in commit.added:
            self.files[file.path] = file
        if self.foreign is not None and attempt_id is None:
            self._forget_undone_write(commit)
        if commit.version in self.restored:
            self.restored[commit.version] = (self.txid, frozenset(self.files))

    def finish(self) -> None:
        """Check what can only be said after the last Delta commit."""
        self._report_foreign_write("no transaction since")
        stored = self.log.shape.properties.get(OWNER_PROPERTY)
        if stored not in (None, self.owner):
            self.findings.add(Kind.WRONG_TABLE, self._place, f"the table of {self.owner!r}", f"that of {stored!r}")
        self._check_attempts()

    def _take_attempt(self, attempt_id: int, commit: DeltaCommit, place: str) -> None:
        if attempt_id == self.attempt_id and not commit.added and not commit.removed:
            return  # properties that are written under the version that was read
        if self.attempt_id is not None and attempt_id <= self.attempt_id:
            kind = Kind.TRANSACTION_TWICE if attempt_id == self.attempt_id else Kind.OUT_OF_ORDER
            self.findings.add(kind, place, f"an attempt after {self.attempt_id}", f"attempt {attempt_id}")
        txid = self._txid_of(attempt_id, place)
        self._report_foreign_write(f"transaction {txid or '?'} was built on it")
        is_fence = attempt_id in self.fences
        if is_fence and (commit.added or commit.removed):
            self.findings.add(
                Kind.PARTLY_VISIBLE, place, f"no rows with fence {attempt_id}", f"{len(commit.added)} files"
            )
        if txid is not None:
            self._check_step(txid, place)
            if commit.added and not commit.changes_data and attempt_id != self.attempt_id:
                self.findings.add(
                    Kind.BROKEN_LOG, place, "an entry that says that it changes rows", "one that denies it"
                )
            self._check_statistics(txid, commit, place)
            self._check_partitions({txid}, {txid}, commit, place, Kind.PARTLY_VISIBLE)
            if not is_fence:
                self.written_by[txid] = attempt_id
        self.attempt_id, self.txid = attempt_id, txid

    def _txid_of(self, attempt_id: int, place: str) -> int | None:
        txid = self.fences.get(attempt_id, self.history.txid_of.get(attempt_id))
        if txid is None and attempt_id < self.oldest_attempt_id:
            self.findings.note(f"{self._place}: some of its Delta commits are older than the store's history")
        elif txid is None:
            self.findings.add(Kind.UNKNOWN_ATTEMPT, place, "an attempt or fence of the store", f"attempt {attempt_id}")
        return txid

    def _check_step(self, txid: int, place: str) -> None:
        last = self.txid
        if last is None or txid in (last, last + 1):
            return
        if txid < last:
            self.findings.add(Kind.OUT_OF_ORDER, place, f"transaction {last} or {last + 1}", txid)
        else:
            self.findings.add(Kind.TRANSACTION_LOST, place, f"transaction {last + 1}", txid)

    def _check_statistics(self, txid: int, commit: DeltaCommit, place: str) -> None:
        """Check that a Delta commit adds no row of a later transaction."""
        for file in commit.added:
            newest = file.statistics().get("maxValues", {}).get(self.txid_column)
            if newest is not None and newest > txid:
                self.findings.add(Kind.PARTLY_VISIBLE, place, f"rows of transactions up to {txid}", f"of {newest}")

    # --- rewinds ----------------------------------------------------------------------------------------------------

    def _take_rewind(self, fence_id: int, commit: DeltaCommit, place: str) -> None:
        """Check a rewind: a fence restores exactly the files that the table had after an earlier transaction."""
        if self.attempt_id is not None and fence_id <= self.attempt_id:
            self.findings.add(Kind.OUT_OF_ORDER, place, f"a fence after {self.attempt_id}", f"fence {fence_id}")
        txid, version = self.fences[fence_id], commit.restored
        assert version is not None
        if version > self.log.base_version:
            restored_txid, files = self.restored[version]
            is_empty = not files and (txid == 0 or txid <= self.history.joined_at(self.component))
            if restored_txid != txid and not is_empty:
                expected = f"a Delta version with the table as of transaction {txid} to be restored"
                self.findings.add(
                    Kind.OUT_OF_ORDER, place, expected, f"version {version}, of transaction {restored_txid}"
                )
            current_files = (self.files.keys() - set(commit.removed)) | {file.path for file in commit.added}
            if current_files != files:
                expected = f"the {len(files)} files of Delta version {version}"
                difference = f"{len(current_files ^ files)} that are not in both"
                self.findings.add(Kind.PARTLY_VISIBLE, place, expected, difference)
            if self.foreign is not None and self.foreign.version > version:
                self.foreign = None  # the rewind has undone it
        else:
            self.findings.note(f"{place}: it goes back to Delta version {version}, which has been cleaned up")
        self._report_foreign_write(f"a rewind to transaction {txid} has kept it")
        self.written_by = {
            written_txid: attempt_id for written_txid, attempt_id in self.written_by.items() if written_txid <= txid
        }
        self.attempt_id, self.txid = fence_id, txid

    # --- the log layout: each transaction has a partition ---------------------------------------------------------

    def _has_log_layout(self, commit: DeltaCommit) -> bool:
        """Return whether the table was partitioned by txid after a Delta commit."""
        return self.txid_column in commit.partition_columns

    def _changes_layout(self, commit: DeltaCommit) -> bool:
        """Return whether a Delta commit has given the log layout to a table in the merge layout."""
        return self._has_log_layout(commit) and self.txid_column not in commit.partition_columns_before

    def _take_layout_change(self, txid: int, commit: DeltaCommit, place: str) -> None:
        """Check a change to the log layout: all rows become the first segment, under the table's transaction."""
        self._report_foreign_write("the table was given the log layout since")
        if self.txid is not None and txid != self.txid:
            expected = f"the rows under transaction {self.txid}, which the table is at"
            self.findings.add(Kind.PARTLY_VISIBLE, place, expected, f"under {txid}")
        if remaining := self.files.keys() - set(commit.removed):
            self.findings.add(
                Kind.PARTLY_VISIBLE, place, "all rows in the log layout", f"{len(remaining)} files are not"
            )
        self._check_partitions({txid}, {0}, commit, place, Kind.PARTLY_VISIBLE)

    def _take_compaction(self, until: int, commit: DeltaCommit, place: str) -> None:
        """Check a compaction, which merges the rows of several committed transactions under the last one."""
        if self.txid is not None and until >= self.txid:
            expected = f"a compaction of transactions before {self.txid}, which may be replayed"
            self.findings.add(Kind.PARTLY_VISIBLE, place, expected, f"a compaction up to {until}")
        self._check_partitions({until}, range(1, until + 1), commit, place, Kind.FOREIGN_WRITER)

    def _check_partitions(
        self, targets: Container[int], sources: Container[int], commit: DeltaCommit, place: str, kind: Kind
    ) -> None:
        """Check that a commit adds rows to the partitions `targets` alone, and removes rows of `sources` alone."""
        if not self._has_log_layout(commit):
            return
        added = [self._partition(file) for file in commit.added]
        removed = [self._partition(self.files[path]) for path in commit.removed if path in self.files]
        for number in sorted(
            {txid for txid in added if txid not in targets} | {txid for txid in removed if txid not in sources}
        ):
            self.findings.add(kind, place, "rows of its own transaction to be replaced alone", f"rows of {number}")

    def _partition(self, file: DataFile) -> int:
        return int(file.partition.get(self.txid_column) or 0)

    # --- other writers --------------------------------------------------------------------------------------------

    def _check_row_count(self, commit: DeltaCommit, place: str) -> None:
        """Check that a Delta commit that claims to change no row keeps the number of rows."""
        removed = [self.files[path].statistics().get("numRecords") for path in commit.removed if path in self.files]
        added = [file.statistics().get("numRecords") for file in commit.added]
        if None not in (*removed, *added) and len(removed) == len(commit.removed):
            old, new = sum(filter(None, removed)), sum(filter(None, added))
            if old != new:
                expected = f"as many rows as before ({old}), since {commit.operation} claims to change none"
                self.findings.add(Kind.FOREIGN_WRITER, place, expected, new)

    def _forget_undone_write(self, commit: DeltaCommit) -> None:
        """Note a foreign write that a later commit has undone, instead of reporting it."""
        if self.foreign is not None and commit is not self.foreign and self.files_before_foreign == self.files.keys():
            self.findings.note(
                f"{self._place}: Delta version {self.foreign.version} ({self.foreign.operation}) is not the topology's;"
                f" Delta version {commit.version} has undone it"
            )
            self.foreign = None

    def _report_foreign_write(self, consequence: str) -> None:
        """Report the first foreign write since a transaction, if there is one, with its consequence."""
        if self.foreign is not None:
            place = f"{self._place}, Delta version {self.foreign.version}"
            actual = f"{self.foreign.operation or 'a write'} without app transaction {self.owner!r}; {consequence}"
            self.findings.add(Kind.FOREIGN_WRITER, place, "rows changed by the topology alone", actual)
            self.foreign = None

    def _check_attempts(self) -> None:
        """Check that each transaction in the table was written by the attempt that has committed it."""
        batches = (batch for batch in self.history.committed if batch.txid <= self.txid_before)
        committed = {batch.txid: batch.attempt_id for batch in batches}
        for txid, attempt_id in self.written_by.items():
            if txid in committed and committed[txid] != attempt_id:
                place = f"{self._place}, transaction {txid}"
                expected = f"as attempt {committed[txid]} wrote it, which the store has committed"
                self.findings.add(Kind.WRONG_ATTEMPT, place, expected, f"attempt {attempt_id}")
