"""Where a transaction ran: its processing phase, and each step of its commit phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from transactional.core.machine.report import IN_DRIVER

_OF_STEP: Final = {"driver": IN_DRIVER, "job": "as a job"}


@dataclass(frozen=True, slots=True)
class PhasePlace:
    """Where a phase ran, of the commit phase the step of one `component`; and `why` there, if there was a choice."""

    phase: str
    component: str
    where: str
    why: str


def places_of(details: Mapping[str, Any] | None) -> list[PhasePlace]:
    """The places of a committed transaction, as far as they were recorded with it."""
    details = details or {}
    processing = str(details.get("processing", ""))
    places = [_place("processing", "", processing)] if processing else []
    return places + [_place("commit", str(name), str(step)) for name, step in details.get("steps", {}).items()]


def _place(phase: str, component: str, recorded: str) -> PhasePlace:
    """`driver: all steps do` is a step in the driver, and why."""
    where, _, why = recorded.partition(": ")
    return PhasePlace(phase, component, _OF_STEP.get(where, where), why)
