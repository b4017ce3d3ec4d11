"""Which executor ran the processing phase and each step of the commit phase of a transaction, and why.

An executor is a `JobExecutor`: the driver, workers or Spark. The choice is read from the details of the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from transactional.core.machine.report import IN_DRIVER

_STEP_EXECUTORS: Final = {"driver": IN_DRIVER, "job": "as a job"}


@dataclass(frozen=True, slots=True)
class PhaseExecutor:
    """The executor of a phase, with the reason if there was a choice. In the commit phase each step has one, named by
    its `component`."""

    phase: str
    component: str
    executor: str
    reason: str


def phase_executors_of(details: Mapping[str, Any] | None) -> list[PhaseExecutor]:
    """Return the executors of a committed transaction from its recorded details, which may lack some or all."""
    details = details or {}
    processing = str(details.get("processing", ""))
    executors = [_phase_executor("processing", "", processing)] if processing else []
    return executors + [
        _phase_executor("commit", str(name), str(step)) for name, step in details.get("steps", {}).items()
    ]


def _phase_executor(phase: str, component: str, recorded: str) -> PhaseExecutor:
    """Parse a recorded text, such as `driver: all steps do`."""
    executor, _, reason = recorded.partition(": ")
    return PhaseExecutor(phase, component, _STEP_EXECUTORS.get(executor, executor), reason)
