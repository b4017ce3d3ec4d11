"""Wrong tables of segments, wrong tasks that stage, and wrong new values, each with one bug. See `wrong_parts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from state.rows.stored_value import StoredValue
from tests.simulation.changes import AGGREGATOR, CHANGES, counts_of, rows_of
from tests.simulation.segments import BackgroundCompaction, Loaded, SegmentedState, StagingExecutor
from tests.simulation.tables import Counts, SimulatedState
from transactional.core.ports import Processed
from transactional.core.ports.staged import StagedFile
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata


class KeepsSegmentsOfDeadAttempts(SegmentedState):
    """What is staged is added to what a dead attempt has committed."""

    def _replaced(self, loaded: Loaded, attempt: TransactionAttempt, paths: Iterable[str]) -> dict[str, TxId]:
        return {**loaded.live, **dict.fromkeys(paths, attempt.txid)}


class ReplacesWhatItKnows(SegmentedState):
    """Replaced is what dead attempts have named, though somebody has compacted it since."""

    def _replaced(self, loaded: Loaded, attempt: TransactionAttempt, paths: Iterable[str]) -> dict[str, TxId]:
        foreign = {path: txid for path, txid in loaded.live.items() if self.stored.folder[path].attempt is None}
        return {**super()._replaced(loaded, attempt, paths), **foreign}


class CommitsWhatIsNotThere(SegmentedState):
    """A file that was reported is taken for one that is there."""

    def _check_staged(self, attempt: TransactionAttempt, staged: Sequence[StagedFile]) -> None:
        """Does not look."""


class CommitsACompactionOverWhatHasChanged(SegmentedState):
    """A compaction that was written in the background is committed though its range consists of other files by now."""

    def _says_the_same(self, loaded: Loaded, compaction: BackgroundCompaction) -> bool:
        return True


class AddsACompactionToItsRange(SegmentedState):
    """What a compaction was made of stays live beside it."""

    def _commit_compaction(self, loaded: Loaded, compaction: BackgroundCompaction) -> None:
        self.stored.commit_live(loaded.version, {**loaded.live, compaction.path: compaction.until})


class ListsAfterItLoads(SegmentedState):
    """Orphans are looked for in a list that is newer than the version: what was committed in between is deleted."""

    def _due(self, listed: Mapping[str, AttemptId], loaded: Loaded) -> list[str]:
        self._before(f"list the files of {self.stored.name}")
        there = dict.fromkeys(self._listed(), AttemptId(0))
        return [path for path in there if path not in loaded.live]


class ForgetsThatOthersLead(SegmentedState):
    """A zombie goes on to compact: it does not compare the version with what it has written."""

    def _is_moved(self, loaded: Loaded) -> bool:
        return False


SEGMENTED: tuple[type[SegmentedState], ...] = (
    KeepsSegmentsOfDeadAttempts,
    ReplacesWhatItKnows,
    CommitsWhatIsNotThere,
    CommitsACompactionOverWhatHasChanged,
    AddsACompactionToItsRange,
    ListsAfterItLoads,
    ForgetsThatOthersLead,
)


class NamesFilesByTransaction(StagingExecutor):
    """Attempts at one transaction write files of the same names: one that goes on writes over a newer one's."""

    def write(self, attempt: TransactionAttempt, counts: Mapping[str, int]) -> str:
        path = super().write(attempt, counts)
        folder = self.table_of_files.folder
        name = f"{attempt.txid}"
        folder[name] = folder.pop(path)
        return name


class ReportsBothOfTwo(StagingExecutor):
    """A task that was run twice reports the files of both runs."""

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        processed = super().run(attempt, batch)
        table = self.table_of_files
        part = processed.parts[table.name]
        assert isinstance(part, Counts)
        twice = [
            file for file in part.staged if file.path in table.folder and self.faults.strikes("a task is run twice")
        ]
        others = [replace(file, path=self.write(attempt, table.folder[file.path].counts)) for file in twice]
        return replace(processed, parts={**processed.parts, table.name: replace(part, staged=[*part.staged, *others])})


STAGING: tuple[type[StagingExecutor], ...] = (NamesFilesByTransaction, ReportsBothOfTwo)


class TellsOverADeadAttempt(SimulatedState):
    """New values are computed over what a dead attempt has written."""

    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        there: dict[str, StoredValue] = {key[0]: row for key, row in self.stored.rows.items()}
        asked = keys["word"].to_pylist()
        return rows_of({key: there[key].value[0] for key in asked if key in there and there[key].value is not ABSENT})


class TellsOfTheBatchAlone(SimulatedState):
    """New values are what the batch has added, not what is there then."""

    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        return rows_of({})


class TellsWhatIsNotWritten(SimulatedState):
    """New values are told, and another row is written: that of the batch is counted twice."""

    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        before = super().rows_before(attempt, keys)
        if self.stored.name == CHANGES or not before.num_rows:
            return before
        return rows_of({key: amount + 1 for key, amount in counts_of(AGGREGATOR.combine([before])).items()})


TELLING: tuple[type[SimulatedState], ...] = (TellsOverADeadAttempt, TellsOfTheBatchAlone, TellsWhatIsNotWritten)
