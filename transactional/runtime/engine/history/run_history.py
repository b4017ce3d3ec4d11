"""What a run records about itself in the store: its description, its lag, how it ended, and how long records are kept.

No decision depends on it: `status`, `runs` and the console show it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from transactional.core.ports import Spout
from transactional.core.store import DesiredState
from transactional.core.store.history import EndedHow, Keep, RunAbout, RunEnd
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig, redacted_options
from transactional.model.errors import TransactionalError
from transactional.model.names import DISTRIBUTION
from transactional.topology.describing import describe_topology
from transactional.topology.topology import Topology

_DAY_MS: Final = 86_400_000
_log: Final = logging.getLogger(__name__)


@cache
def installed_version() -> str:
    """Return the installed version, or an empty text if the code is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The transactions of one run: the first one, the last committed one, and how many attempts failed."""

    first_txid: TxId
    committed_txid: TxId
    failures: int

    @property
    def transactions(self) -> int:
        """Number of transactions committed by this run."""
        return self.committed_txid - self.first_txid + 1


def about(topology: Topology, config: TopologyConfig, sources: Mapping[str, object]) -> RunAbout:
    """Return the description of a run: its version, the topology as `describe` shows it, the options and their
    sources."""
    return RunAbout(installed_version(), describe_topology(topology), redacted_options(config), sources)


def end_of(error: BaseException | None, *, desired: DesiredState | None, is_drained: bool) -> RunEnd:
    """Return how a run ended: with an error, as requested (`desired` was carried out), drained, or stopped."""
    if error is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
        code = error.code if isinstance(error, TransactionalError) else type(error).__name__
        return RunEnd(EndedHow.FAILED, code, str(error))
    if error is None and desired is DesiredState.KILLED:
        return RunEnd(EndedHow.KILLED)
    return RunEnd(EndedHow.DRAINED if error is None and is_drained else EndedHow.STOPPED)


def retention(config: TopologyConfig, at_ms: int) -> Keep:
    """Return how many attempts the store keeps, and since when."""
    return Keep(config.keep_attempts_max, at_ms - config.keep_attempts_days * _DAY_MS)


LAGS_MAX: Final = 50
"""Number of partitions whose lag is recorded: those with the highest."""


def read_lags(spout: Spout, batch: BatchMetadata) -> dict[str, Any]:
    """Return the lag of the source and of its partitions, as stored with a transaction commit."""
    try:
        lags = spout.parts.backlog.lag_by_partition(batch)
    except Exception:
        _log.debug("the spout could not report its lag", exc_info=True)
        return {"lag": None}
    if lags is None:
        return {"lag": lag_of(spout, batch)}
    highest = sorted((-lag, *partition) for partition, lag in lags.items())[:LAGS_MAX]
    return {
        "lag": sum(lags.values()),
        "lags": [[source, index, -negated] for negated, source, index in highest],
    }


def lag_of(spout: Spout, batch: BatchMetadata) -> int | None:
    """Return the number of records that the source holds beyond this batch, as last seen, or None if it is unknown."""
    try:
        return spout.parts.backlog.lag(batch)
    except Exception:
        _log.debug("the spout could not report its lag", exc_info=True)
        return None
