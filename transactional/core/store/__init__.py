"""The coordinator's store: the port, what is kept in it, and the rules that every implementation follows."""

from __future__ import annotations

from transactional.core.store.port import (
    AttemptRecord,
    AttemptTimes,
    CoordinatorStore,
    Desired,
    DesiredState,
    Lease,
    Position,
    StalledLease,
    StoreReader,
    TopologyStatus,
)

__all__ = [
    "AttemptRecord",
    "AttemptTimes",
    "CoordinatorStore",
    "Desired",
    "DesiredState",
    "Lease",
    "Position",
    "StalledLease",
    "StoreReader",
    "TopologyStatus",
]
