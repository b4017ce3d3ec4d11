"""A table of segments, whose rows tasks stage as files: commits name files, compactions replace them, orphans are
deleted.

Which files may be deleted is told by the product; what a Delta log does is told by a dictionary of live files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Self

from state.fence import Verdict
from state.orphans import NotedOrphans
from tests.simulation.faults import demand
from tests.simulation.pools import SimulatedExecutor
from tests.simulation.tables import Before, Counts, SimulatedState, SimulatedTable
from transactional.core.ports import Partials, Processed
from transactional.core.ports.staged import StagedFile
from transactional.errors import FailedException, OperatingError
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata

TASKS_MAX = 3
RETENTION_S = 2.0


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the table's folder, live or not."""

    attempt: TransactionAttempt | None
    """None: somebody else has written it, under a name that is not ours."""
    counts: Mapping[str, int]


@dataclass(slots=True)
class SegmentedTable(SimulatedTable):
    """A table as a folder of files, and which of them are live, with their transactions."""

    folder: dict[str, StoredFile] = field(default_factory=dict)
    live: Mapping[str, TxId] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    now_ms: Callable[[], int] = lambda: 0

    def write_file(self, attempt: TransactionAttempt | None, counts: Mapping[str, int]) -> str:
        """Write a file of a new name."""
        path = f"{attempt}-{next(self.numbers)}"
        self.folder[path] = StoredFile(attempt, dict(counts))
        return path

    def commit_live(self, version: AttemptId | None, live: Mapping[str, TxId]) -> None:
        """The next Delta version, with other live files."""
        self.commit(version)
        self.live = live

    def optimize(self) -> None:
        """Somebody else compacts the files of each transaction."""
        live = dict[str, TxId]()
        for txid in sorted(set(self.live.values())):
            live[self.write_file(None, self.counts(self.of(txid)))] = txid
        self.commit_live(self.version, live)

    def of(self, txid: TxId) -> list[str]:
        """The live files of a transaction."""
        return [path for path, its in self.live.items() if its == txid]

    def counts(self, paths: Iterable[str]) -> Counter[str]:
        """What some files amount to."""
        total: Counter[str] = Counter()
        for path in paths:
            demand(path in self.folder, f"a live file of table {self.name} is gone: {path}")
            total.update(self.folder[path].counts)
        return total

    def seen(self, committed_txid: TxId) -> dict[str, int]:
        """What a reader sees."""
        return dict(self.counts(path for path, txid in self.live.items() if txid <= committed_txid))


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded of a table of segments."""

    delta_version: int
    version: AttemptId | None
    live: Mapping[str, TxId]


@dataclass(frozen=True, slots=True)
class BackgroundCompaction:
    """A compaction that is written, and waits for its commit."""

    until: TxId
    inputs: frozenset[str]
    path: str


class SegmentedState(SimulatedState):
    """One process' handle of a table of segments."""

    stored: SegmentedTable
    orphans: NotedOrphans
    apart: BackgroundCompaction | None = None
    wrote: AttemptId | None = None

    def of_process(self, before: Before) -> Self:
        handle = super().of_process(before)
        handle.apart, handle.orphans, handle.wrote = None, NotedOrphans(), None
        return handle

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """Commit what tasks have staged, and what came through the driver."""
        assert isinstance(partials, Counts)
        if self._faults.strikes("a committer fails"):
            raise FailedException(f"table {self.stored.name} can't be written")
        while not self._is_committed(attempt, partials):
            self._reached["a write is refused for others' OPTIMIZE, and checked again"] += 1
        self.wrote = attempt.attempt_id
        self._fence.record_write(attempt)

    def fence(self, attempt_id: AttemptId) -> None:
        super().fence(attempt_id)
        self.wrote = attempt_id

    def _is_committed(self, attempt: TransactionAttempt, partials: Counts) -> bool:
        self._before(f"load {self.stored.name} for {attempt}")
        loaded = self._loaded_now()
        verdict = self._decide(loaded.version, attempt)
        self._check_staged(attempt, partials.staged)
        paths = [file.path for file in partials.staged]
        if partials.counts:
            paths.append(self.stored.write_file(attempt, partials.counts))
        moved = partial(self._is_moved, loaded)
        self._before(f"write {self.stored.name} as {attempt}", moved)
        if self._faults.strikes("others optimize a table between the check and the write"):
            self.stored.optimize()
        if moved():
            self._check_not_moved(loaded.version)
            return False
        live = self._replaced(loaded, attempt, paths) if verdict is Verdict.WRITE else loaded.live
        self.stored.commit_live(attempt.attempt_id, live)
        return True

    def _is_moved(self, loaded: Loaded) -> bool:
        return self.stored.delta_version != loaded.delta_version

    def _loaded_now(self) -> Loaded:
        return Loaded(self.stored.delta_version, self.stored.version, self.stored.live)

    def _check_staged(self, attempt: TransactionAttempt, staged: Sequence[StagedFile]) -> None:
        """Each file has to be there as it was reported."""
        for file in staged:
            there = self.stored.folder.get(file.path)
            if there is None:
                self._reached["a file that was reported is not there"] += 1
                raise OperatingError(f"{file.path} was reported, and is not there")
            demand(there.attempt == attempt, f"{file.path} is of {there.attempt}, and committed as {attempt}")

    def _replaced(self, loaded: Loaded, attempt: TransactionAttempt, paths: Iterable[str]) -> dict[str, TxId]:
        """The live files after a write: in place of all that a dead attempt has committed, whoever has compacted it."""
        kept = {path: txid for path, txid in loaded.live.items() if txid != attempt.txid}
        self._reached["staged files of a dead attempt are replaced"] += len(kept) < len(loaded.live)
        return kept | dict.fromkeys(paths, attempt.txid)

    # --- maintenance --------------------------------------------------------------------------------------------

    def maintain(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """Compact, in line or apart; and delete what nobody commits any more."""
        draw = self._faults.random.random()
        if self.apart is not None:
            if draw < 0.5:
                self._commit_apart(self.apart)
        elif draw < 0.5:
            self._compact(committed_txid, is_apart=draw < 0.25)
        if self.apart is None and may_go_on() and self._faults.random.random() < 0.5:
            self._sweep()

    def _compact(self, until: TxId, *, is_apart: bool) -> None:
        self._before(f"load {self.stored.name} to compact it")
        loaded = self._loaded_now()
        inputs = frozenset(path for path, txid in loaded.live.items() if txid <= until)
        if loaded.version != self.wrote or len(inputs) < 2:
            return
        attempt = TransactionAttempt(until, loaded.version or AttemptId(0))
        compaction = BackgroundCompaction(until, inputs, self.stored.write_file(attempt, self.stored.counts(inputs)))
        if is_apart:
            self.apart = compaction
            return
        self._before(f"compact {self.stored.name} up to {until}", partial(self._is_moved, loaded))
        if not self._is_moved(loaded):
            self._reached["a table is compacted between transactions"] += 1
            self._commit_compaction(loaded, compaction)

    def _commit_apart(self, compaction: BackgroundCompaction) -> None:
        self.apart = None
        self._before(f"load {self.stored.name} to commit a compaction")
        loaded = self._loaded_now()
        if (
            loaded.version != self.wrote
            or not self._says_the_same(loaded, compaction)
            or compaction.path not in self.stored.folder
        ):
            self._reached["a compaction that was written in the background is dropped"] += 1
            return
        self._before(
            f"commit the compaction of {self.stored.name} up to {compaction.until}", partial(self._is_moved, loaded)
        )
        if not self._is_moved(loaded):
            self._reached["a compaction that was written in the background is committed"] += 1
            self._commit_compaction(loaded, compaction)

    def _says_the_same(self, loaded: Loaded, compaction: BackgroundCompaction) -> bool:
        """Whether the range still consists of what the compaction was made of."""
        return {path for path, txid in loaded.live.items() if txid <= compaction.until} == compaction.inputs

    def _commit_compaction(self, loaded: Loaded, compaction: BackgroundCompaction) -> None:
        kept = {path: txid for path, txid in loaded.live.items() if path not in compaction.inputs}
        self.stored.commit_live(loaded.version, {**kept, compaction.path: compaction.until})

    def _sweep(self) -> None:
        """Delete orphans: first listed, then loaded."""
        listed = self._listed()
        self._before(f"load {self.stored.name} to look for orphans")
        loaded = self._loaded_now()
        if loaded.version is None or loaded.version != self.wrote:
            return
        for path in self._due(listed, loaded):
            self._before(f"delete {path} of {self.stored.name}")
            self._reached["a staged file that nobody commits is deleted"] += 1
            self.stored.folder.pop(path, None)

    def _listed(self) -> dict[str, AttemptId]:
        files = self.stored.folder.items()
        return {path: file.attempt.attempt_id for path, file in files if file.attempt is not None}

    def _due(self, listed: Mapping[str, AttemptId], loaded: Loaded) -> list[str]:
        assert loaded.version is not None
        now_s = self.stored.now_ms() / 1_000
        return sorted(self.orphans.due(listed, loaded.live, loaded.version, now_s=now_s, retention_s=RETENTION_S))


@dataclass(slots=True)
class StagingExecutor(SimulatedExecutor):
    """Its tasks stage a part of what they have counted for one table. They may be run twice, or go on too long."""

    table: SegmentedTable | None = None

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Stage files, and report them."""
        processed = SimulatedExecutor.run(self, attempt, batch)
        assert self.table is not None
        part = processed.parts[self.table.name]
        assert isinstance(part, Counts)
        tasks = [Counter[str]() for _ in range(self.faults.random.randint(1, TASKS_MAX))]
        for number, (key, amount) in enumerate(part.counts.items()):
            tasks[number % len(tasks)][key] += amount
        through_driver = tasks.pop() if self.faults.random.random() < 0.5 else Counter[str]()
        staged = [self._staged(attempt, counts) for counts in tasks if counts]
        self.check_goes_on(attempt)
        parts = {**processed.parts, self.table.name: replace(part, counts=through_driver, staged=staged)}
        return replace(processed, parts=parts)

    def _staged(self, attempt: TransactionAttempt, counts: Mapping[str, int]) -> StagedFile:
        self.scheduler.before(f"stage rows of {attempt}")
        path = self.write(attempt, counts)
        if self.faults.strikes("a task is run twice"):
            # One of the two is reported, and the other may go on for long.
            self.scheduler.later(self.faults.random.choice((0, 500, 5_000)), lambda: self._write_late(attempt, counts))
        if self.faults.strikes("a staged file is lost"):
            self.table_of_files.folder.pop(path, None)
        return StagedFile(path, 1, len(counts), "", {}, is_synced=True)

    def _write_late(self, attempt: TransactionAttempt, counts: Mapping[str, int]) -> None:
        self.write(attempt, counts)

    @property
    def table_of_files(self) -> SegmentedTable:
        assert self.table is not None
        return self.table

    def write(self, attempt: TransactionAttempt, counts: Mapping[str, int]) -> str:
        """Write a file, and tell its name."""
        return self.table_of_files.write_file(attempt, counts)
