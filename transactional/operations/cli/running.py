"""What `transactional run` sets up around a driver: its observers, where Spark's output goes, and signals."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType

from transactional.core.machine.protocol import Action, Event
from transactional.model.plumbing.garbage import keep_what_is_loaded
from transactional.operations.cli.output.display import Display
from transactional.operations.cli.output.lines import print_line
from transactional.operations.cli.output.standby import StandbyReporter
from transactional.operations.cli.output.stderr_log import StderrLog
from transactional.operations.launch.running import metrics_of_run
from transactional.operations.telemetry.run_log import LOGGER
from transactional.operations.telemetry.tracing import tracing
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.journal import JournalWriter
from transactional.runtime.engine.history.observing import Leading, Notice, Observer, StandingBy
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.topology.topology import Topology

_log = logging.getLogger(LOGGER)

SPARK_LOG = Path("transactional-spark.log")


def collect_options(
    max_pending: int | None, attempts_max: int | None, *, drains: bool, closes: bool
) -> dict[str, tuple[str, int | bool]]:
    """Return the options of `TopologyConfig` that the command line sets, each with its name and value there."""
    arguments = {
        "max_spout_pending": ("--max-pending", max_pending),
        "stop_when_drained": ("--until-drained", drains or None),
        "close_windows": ("--close-windows", closes or None),
        "attempts_max": ("--attempts-max", attempts_max),
    }
    return {option: (name, argument) for option, (name, argument) in arguments.items() if argument is not None}


def make_observers(
    stack: ExitStack,
    topology: Topology,
    *,
    stderr_log: StderrLog | None,
    journal: Path | None,
    standby: bool,
    metrics: str | None,
) -> list[Observer]:
    """Return the observers that are notified of everything in a run. `stack` closes them."""
    observers: list[Observer] = []
    if stderr_log is not None:
        observers.append(stderr_log.observe_run(topology.id))
    else:
        observers.append(stack.enter_context(Display(topology)))
    if journal is not None:
        observers.append(stack.enter_context(closing(JournalWriter(journal))))
    if standby and stderr_log is None:
        observers.append(StandbyReporter(topology.id))
    if metrics is not None:
        observers += stack.enter_context(
            metrics_of_run(topology, metrics, _report_metrics if stderr_log else print_line)
        )
    observers += stack.enter_context(tracing(topology.id))
    return [*observers, LoadedObjectsFreezer()]


class LoadedObjectsFreezer:
    """An observer that excludes everything loaded so far from garbage collections, once a run has been set up."""

    def __init__(self) -> None:
        self._has_settled = False

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Exclude the loaded objects when the run leads or stands by: Spark has started by then."""
        if isinstance(notice, StandingBy | Leading) and not self._has_settled:
            self._has_settled = True
            keep_what_is_loaded()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Events of the run are of no interest here."""


def _report_metrics(line: str) -> None:
    _log.info("%s", line, extra={"_event": "metrics", "url": line.rpartition(" ")[2]})


def choose_spark_log(path: Path | None, stderr_log: StderrLog | None) -> Path | None:
    """Return the file of Spark's own output, or None if it goes to stderr."""
    return SPARK_LOG if path is None and stderr_log is not None else path


def print_summary(summary: RunSummary, stderr_log: StderrLog | None) -> None:
    """Print how many transactions a run has committed, unless the run is logged."""
    if stderr_log is None:
        print_line(
            f"{summary.transactions} transactions committed, the last is {summary.committed_txid}; "
            f"{summary.failures} attempts failed"
        )


def stop_on_signals(driver: TopologyDriver) -> None:
    """Let the first signal end the run after its commit phase, and a second one of the same kind kill the process."""

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        driver.stop()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
