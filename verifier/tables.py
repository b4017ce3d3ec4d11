"""A table's Delta commits compared with the store: each transaction once, in order, by its attempt and nobody else."""

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
    """Where a table is: the attempt or fence of its last writer, and the transaction of that, if known."""

    attempt_id: int | None
    txid: int | None


def check_log(
    component: str, log: TableLog, history: StoreHistory, txid_before: int, txid_column: str, findings: Findings
) -> TableTxid:
    """Check all Delta commits of a committer's table. Returns where the table is.

    `txid_before` was committed before the log was read; later ones may have been written again since.
    """
    walk = _Walk(component, log, history, txid_before, txid_column, findings)
    for commit in log.commits:
        walk.take(commit)
    walk.end()
    findings.looked_at("Delta commits", len(log.commits))
    return TableTxid(walk.attempt_id, walk.txid)


def changed_files(storage: Storage, log: TableLog) -> Iterator[tuple[str, int | None, int | None]]:
    """The data files of the newest version whose size is not the one that was written: path, written size, size now;
    None: it is not known, and the file is gone."""
    for file in log.files().values():
        found = storage.size_bytes(file.path)
        if found is None or file.size_bytes not in (None, found):
            yield file.path, file.size_bytes, found


def check_contents(component: str, storage: Storage, log: TableLog, findings: Findings) -> None:
    """Check that the files of the newest version have the bytes whose digest was noted, where one was."""
    for file in log.files().values():
        if file.digest is not None:
            found = hashlib.blake2b(storage.read(unquote(file.path)), digest_size=len(file.digest) // 2).hexdigest()
            if found != file.digest:
                where = f"table of {component!r}, data file {file.path}"
                findings.add(Kind.FILE_CHANGED, where, f"the bytes that were written, of digest {file.digest}", found)


def check_reached(
    component: str, stands: TableTxid, history: StoreHistory, txid_before: int, findings: Findings
) -> None:
    """Check that a table contains what is committed: nothing less, and at most the next transaction.

    `txid_before` was committed before the table was read: for a running topology the store is ahead by now.
    """
    where = f"table of {component!r}"
    if stands.attempt_id is None:
        if txid_before and history.fences.get(component):
            findings.add(Kind.TABLE_BEHIND, where, f"transaction {txid_before}", "none: nothing was written to it")
        return
    if stands.txid is None:
        return  # already reported, or deleted from the store
    if stands.txid < txid_before:
        findings.add(Kind.TABLE_BEHIND, where, f"transaction {txid_before}, which is committed", stands.txid)
    elif stands.txid > history.committed_txid + 1:
        findings.add(Kind.TABLE_AHEAD, where, f"at most transaction {history.committed_txid + 1}", stands.txid)


@dataclass(slots=True)
class _Walk:
    """Goes through a table's Delta commits, oldest first."""

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
    then: dict[int, tuple[int | None, frozenset[str]]] = field(default_factory=dict)
    """The transaction and the files of each Delta version that a rewind goes back to."""
    foreign: DeltaCommit | None = None
    before_foreign: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.owner = f"{self.history.topology_id}/{self.component}"
        self.fences = self.history.fences_of(self.component)
        self.oldest_attempt_id = self.history.oldest_attempt_id or 0
        self.files = dict(self.log.base_files)
        self.then = {each.restored: (None, frozenset()) for each in self.log.commits if each.restored is not None}
        self.attempt_id = self.log.base_app_versions.get(self.owner)
        if self.attempt_id is not None:
            self.txid = self._txid_of(self.attempt_id, f"{self._where} before Delta version {self.log.base_version}")
        if self.log.base_version >= 0:
            self.findings.note(
                f"{self._where}: its history up to Delta version {self.log.base_version} has been cleaned up"
            )

    @property
    def _where(self) -> str:
        return f"table of {self.component!r}"

    def take(self, commit: DeltaCommit) -> None:
        """The next Delta commit."""
        where = f"{self._where}, Delta version {commit.version}"
        own, compacted = commit.app_versions.get(self.owner), commit.app_versions.get(f"{self.owner}#compaction")
        if compacted is not None and own == self.attempt_id and self._turns(commit):
            self._take_turn(compacted, commit, where)
        elif own is not None and commit.restored is not None and own in self.fences:
            self._take_rewind(own, commit, where)
        elif own is not None:
            self._take_own(own, commit, where)
        elif compacted is not None and self._is_log(commit):
            self._take_compaction(compacted, commit, where)
        elif commit.changes_data and self.foreign is None:
            self.foreign, self.before_foreign = commit, frozenset(self.files)
        elif commit.added and not commit.changes_data:
            self._check_rearranged(commit, where)
        for path in commit.removed:
            self.files.pop(path, None)
        for file in commit.added:
            self.files[file.path] = file
        if self.foreign is not None and own is None:
            self._look_if_healed(commit)
        if commit.version in self.then:
            self.then[commit.version] = (self.txid, frozenset(self.files))

    def end(self) -> None:
        """After the last one."""
        self._tell_foreign("no transaction since")
        stored = self.log.shape.properties.get(OWNER_PROPERTY)
        if stored not in (None, self.owner):
            self.findings.add(Kind.WRONG_TABLE, self._where, f"the table of {self.owner!r}", f"that of {stored!r}")
        self._check_attempts()

    def _take_own(self, own: int, commit: DeltaCommit, where: str) -> None:
        if own == self.attempt_id and not commit.added and not commit.removed:
            return  # properties that are written under the version that was read
        if self.attempt_id is not None and own <= self.attempt_id:
            kind = Kind.TRANSACTION_TWICE if own == self.attempt_id else Kind.OUT_OF_ORDER
            self.findings.add(kind, where, f"an attempt after {self.attempt_id}", f"attempt {own}")
        txid = self._txid_of(own, where)
        self._tell_foreign(f"transaction {txid or '?'} was built on it")
        is_fence = own in self.fences
        if is_fence and (commit.added or commit.removed):
            self.findings.add(Kind.PARTLY_VISIBLE, where, f"no rows with fence {own}", f"{len(commit.added)} files")
        if txid is not None:
            self._check_step(txid, where)
            if commit.added and not commit.changes_data and own != self.attempt_id:
                self.findings.add(
                    Kind.BROKEN_LOG, where, "an entry that says that it changes rows", "one that denies it"
                )
            self._check_statistics(txid, commit, where)
            self._check_partitions({txid}, {txid}, commit, where, Kind.PARTLY_VISIBLE)
            if not is_fence:
                self.written_by[txid] = own
        self.attempt_id, self.txid = own, txid

    def _txid_of(self, attempt_id: int, where: str) -> int | None:
        txid = self.fences.get(attempt_id, self.history.txid_of.get(attempt_id))
        if txid is None and attempt_id < self.oldest_attempt_id:
            self.findings.note(f"{self._where}: some of its Delta commits are older than the store's history")
        elif txid is None:
            self.findings.add(Kind.UNKNOWN_ATTEMPT, where, "an attempt or fence of the store", f"attempt {attempt_id}")
        return txid

    def _check_step(self, txid: int, where: str) -> None:
        before = self.txid
        if before is None or txid in (before, before + 1):
            return
        if txid < before:
            self.findings.add(Kind.OUT_OF_ORDER, where, f"transaction {before} or {before + 1}", txid)
        else:
            self.findings.add(Kind.TRANSACTION_LOST, where, f"transaction {before + 1}", txid)

    def _check_statistics(self, txid: int, commit: DeltaCommit, where: str) -> None:
        """No row that a Delta commit adds may be of a later transaction than the commit's."""
        for file in commit.added:
            newest = file.statistics().get("maxValues", {}).get(self.txid_column)
            if newest is not None and newest > txid:
                self.findings.add(Kind.PARTLY_VISIBLE, where, f"rows of transactions up to {txid}", f"of {newest}")

    # --- rewinds ----------------------------------------------------------------------------------------------------

    def _take_rewind(self, own: int, commit: DeltaCommit, where: str) -> None:
        """The table goes back, under a fence, to exactly the files that it had after an earlier transaction."""
        if self.attempt_id is not None and own <= self.attempt_id:
            self.findings.add(Kind.OUT_OF_ORDER, where, f"a fence after {self.attempt_id}", f"fence {own}")
        txid, version = self.fences[own], commit.restored
        assert version is not None
        if version > self.log.base_version:
            found, files = self.then[version]
            is_empty = not files and (txid == 0 or txid <= self.history.joined_at(self.component))
            if found != txid and not is_empty:
                expected = f"a Delta version with the table as of transaction {txid} to be restored"
                self.findings.add(Kind.OUT_OF_ORDER, where, expected, f"version {version}, of transaction {found}")
            left = (self.files.keys() - set(commit.removed)) | {file.path for file in commit.added}
            if left != files:
                expected = f"the {len(files)} files of Delta version {version}"
                found_now = f"{len(left ^ files)} that are not in both"
                self.findings.add(Kind.PARTLY_VISIBLE, where, expected, found_now)
            if self.foreign is not None and self.foreign.version > version:
                self.foreign = None  # it has gone with the rest
        else:
            self.findings.note(f"{where}: it goes back to Delta version {version}, which has been cleaned up")
        self._tell_foreign(f"a rewind to transaction {txid} has kept it")
        self.written_by = {each: by for each, by in self.written_by.items() if each <= txid}
        self.attempt_id, self.txid = own, txid

    # --- the log layout: each transaction has a partition ---------------------------------------------------------

    def _is_log(self, commit: DeltaCommit) -> bool:
        """True when the table was partitioned by txid after a Delta commit."""
        return self.txid_column in commit.partition_columns

    def _turns(self, commit: DeltaCommit) -> bool:
        """True when a Delta commit has given the log layout to a table of the merge layout."""
        return self._is_log(commit) and self.txid_column not in commit.partition_columns_before

    def _take_turn(self, txid: int, commit: DeltaCommit, where: str) -> None:
        """All rows of the merge layout become the first segment, under the transaction that the table is at."""
        self._tell_foreign("the table was given the log layout since")
        if self.txid is not None and txid != self.txid:
            expected = f"the rows under transaction {self.txid}, which the table is at"
            self.findings.add(Kind.PARTLY_VISIBLE, where, expected, f"under {txid}")
        if left := self.files.keys() - set(commit.removed):
            self.findings.add(Kind.PARTLY_VISIBLE, where, "all rows in the log layout", f"{len(left)} files are not")
        self._check_partitions({txid}, {0}, commit, where, Kind.PARTLY_VISIBLE)

    def _take_compaction(self, until: int, commit: DeltaCommit, where: str) -> None:
        """A compaction merges the rows of several committed transactions under the last one of them."""
        if self.txid is not None and until >= self.txid:
            expected = f"a compaction of transactions before {self.txid}, which may be replayed"
            self.findings.add(Kind.PARTLY_VISIBLE, where, expected, f"a compaction up to {until}")
        self._check_partitions({until}, range(1, until + 1), commit, where, Kind.FOREIGN_WRITER)

    def _check_partitions(
        self, into: Container[int], out_of: Container[int], commit: DeltaCommit, where: str, kind: Kind
    ) -> None:
        if not self._is_log(commit):
            return
        added = [self._partition(file) for file in commit.added]
        removed = [self._partition(self.files[path]) for path in commit.removed if path in self.files]
        for number in sorted({n for n in added if n not in into} | {n for n in removed if n not in out_of}):
            self.findings.add(kind, where, "rows of its own transaction to be replaced alone", f"rows of {number}")

    def _partition(self, file: DataFile) -> int:
        return int(file.partition.get(self.txid_column) or 0)

    # --- other writers --------------------------------------------------------------------------------------------

    def _check_rearranged(self, commit: DeltaCommit, where: str) -> None:
        """A Delta commit that claims to change no row (compaction) must keep the number of rows."""
        before = [self.files[path].statistics().get("numRecords") for path in commit.removed if path in self.files]
        after = [file.statistics().get("numRecords") for file in commit.added]
        known = [number for number in (*before, *after) if number is not None]
        if len(known) == len(before) + len(after) and len(before) == len(commit.removed):
            old, new = sum(filter(None, before)), sum(filter(None, after))
            if old != new:
                expected = f"as many rows as before ({old}), since {commit.operation} claims to change none"
                self.findings.add(Kind.FOREIGN_WRITER, where, expected, new)

    def _look_if_healed(self, commit: DeltaCommit) -> None:
        if self.foreign is not None and commit is not self.foreign and self.before_foreign == self.files.keys():
            self.findings.note(
                f"{self._where}: Delta version {self.foreign.version} ({self.foreign.operation}) is not the topology's;"
                f" Delta version {commit.version} has undone it"
            )
            self.foreign = None

    def _tell_foreign(self, since: str) -> None:
        if self.foreign is not None:
            where = f"{self._where}, Delta version {self.foreign.version}"
            found = f"{self.foreign.operation or 'a write'} without app transaction {self.owner!r}; {since}"
            self.findings.add(Kind.FOREIGN_WRITER, where, "rows changed by the topology alone", found)
            self.foreign = None

    def _check_attempts(self) -> None:
        """What remains of a transaction is what its committed attempt wrote."""
        known = (batch for batch in self.history.committed if batch.txid <= self.txid_before)
        committed = {batch.txid: batch.attempt_id for batch in known}
        for txid, attempt_id in self.written_by.items():
            if txid in committed and committed[txid] != attempt_id:
                where = f"{self._where}, transaction {txid}"
                expected = f"as attempt {committed[txid]} wrote it, which the store has committed"
                self.findings.add(Kind.WRONG_ATTEMPT, where, expected, f"attempt {attempt_id}")
