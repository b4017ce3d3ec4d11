"""For tests of topologies: a coordinator's store in memory, and a clock that moves only when told to."""

from __future__ import annotations

from transactional.manual_clock import ManualClock
from transactional.memory_store import MemoryCoordinatorStore

__all__ = ["ManualClock", "MemoryCoordinatorStore"]
