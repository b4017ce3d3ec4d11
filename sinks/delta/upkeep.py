"""The upkeep of a sink's table, in a thread of its own: small files are merged, old ones deleted, the log kept short.

It begins after the first publication of a leader, and then after as many Delta commits as the table has between two
checkpoints. No publication waits for it. What fails is logged, and tried again the next time. Upkeep that is in
progress when a run ends continues, and the end of the process waits for it: short runs would never merge files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa
from deltalake.exceptions import DeltaError

from sinks.delta.append_log import AppendLog
from sinks.delta.compaction import FileMerger, Merge
from sinks.delta.run_files import RunFiles
from sinks.delta.sweeping import sweep
from state.delta.log.background import BackgroundWork
from transactional.model.attempt import AttemptId
from transactional.model.errors import OperatingError, StoreMismatch

_log = logging.getLogger(__name__)


class SinkUpkeep:
    """Maintains the table of one publisher. `commit` makes a merge part of the table; False: it was in vain."""

    def __init__(self, log: AppendLog, files: RunFiles, commit: Callable[[Merge], bool]) -> None:
        self._log, self._merger, self._commit = log, FileMerger(files), commit
        self._work = BackgroundWork[None]("upkeep")
        self._begun_version: int | None = None

    def begin_if_due(self, version: int, interval: int, first_unsettled: AttemptId) -> None:
        """Begin the upkeep at a Delta version, unless it is in progress or not due.

        All attempts before `first_unsettled` are settled in the store.
        """
        if self._work.has_ended:
            self._work.take()
        is_first = self._begun_version is None
        if self._work.is_pending or not (is_first or version // interval > (self._begun_version or 0) // interval):
            return
        needs_checkpoint = not is_first or version % interval == 0
        self._begun_version = version
        self._work.start(lambda: self._maintain(first_unsettled, needs_checkpoint=needs_checkpoint))

    def wait(self) -> None:
        """Wait until the upkeep that is in progress has ended."""
        self._work.wait(lambda: True)

    def _maintain(self, first_unsettled: AttemptId, *, needs_checkpoint: bool) -> None:
        location = self._log.location
        try:
            self._compact(first_unsettled)
            if needs_checkpoint:
                self._log.make_checkpoint()
            sweep(self._log, first_unsettled)
        except (DeltaError, OSError, pa.ArrowException, OperatingError, StoreMismatch) as error:
            _log.warning("Delta table %s can't be maintained: %s", location, location.describe_error(error))

    def _compact(self, first_unsettled: AttemptId) -> None:
        for merge in self._merger.merges(self._log.load(), first_unsettled):
            if not self._commit(merge):
                self._merger.discard(merge)
                return
