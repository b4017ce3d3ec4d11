"""The upkeep of a sink's table, in a thread of its own: small files are merged, old ones deleted, the log kept short.

It begins after the first publication of a leader, and then after as many Delta commits as the table has between two
checkpoints. No publication waits for it. What fails is logged, and tried again the next time. The end of a run waits
for upkeep in progress, since short runs would never merge files, but not for long. It takes no further step then.
"""

from __future__ import annotations

import logging
import time
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
        self._is_ending = False

    def begin_if_due(self, version: int, interval: int, first_unsettled: AttemptId) -> None:
        """Begin the upkeep at a Delta version, unless it is in progress or not due.

        All attempts before `first_unsettled` are settled in the store.
        """
        if self._work.has_ended:
            self._work.take()
        is_first = self._begun_version is None
        if (
            self._is_ending
            or self._work.is_pending
            or not (is_first or version // interval > (self._begun_version or 0) // interval)
        ):
            return
        needs_checkpoint = not is_first or version % interval == 0
        self._begun_version = version
        self._work.start(lambda: self._maintain(first_unsettled, needs_checkpoint=needs_checkpoint))

    def wait(self) -> None:
        """Wait until the upkeep that is in progress has ended."""
        self._work.wait(lambda: True)

    def end(self, wait_s: float) -> None:
        """Wait so long at most for the upkeep that is in progress, which then ends before its next step."""
        until_s = time.monotonic() + wait_s
        self._work.wait(lambda: time.monotonic() < until_s)
        self._is_ending = True

    def _maintain(self, first_unsettled: AttemptId, *, needs_checkpoint: bool) -> None:
        location = self._log.location
        try:
            self._compact(first_unsettled)
            if needs_checkpoint and not self._is_ending:
                self._log.make_checkpoint()
            if not self._is_ending:
                sweep(self._log, first_unsettled)
        except (DeltaError, OSError, pa.ArrowException, OperatingError, StoreMismatch) as error:
            if not self._is_ending:  # nobody maintains the table of a run that is over: it may be deleted
                _log.warning("Delta table %s can't be maintained: %s", location, location.describe_error(error))

    def _compact(self, first_unsettled: AttemptId) -> None:
        for merge in self._merger.merges(self._log.load(), first_unsettled):
            if self._is_ending or not self._commit(merge):
                self._merger.discard(merge)
                return
